"""What the ranks of torch_backend_test.py do: the backend "gradwire" of torch.distributed beside Gloo. Started by
torchrun, with and without GRADWIRE_COMPRESSION.

python -m torch.distributed.run --nproc-per-node 2 torch_backend_cases.py
"""

from __future__ import annotations

import copy
import gc
import os
import re
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._functional_collectives import all_reduce as functional_all_reduce
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch_programs import Net, case, images, run_cases_in_a_group, warnings_of_adam

POLICY = os.environ.get("GRADWIRE_COMPRESSION")  # of the whole program
DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
)
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def ranks() -> int:
    return dist.get_world_size()


def gloo_group() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group


def numbers(dtype: torch.dtype, elements: int, seed: int = 0) -> torch.Tensor:
    """This rank's own."""
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    if dtype == torch.bool or not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, 4, (elements,), generator=generator).to(dtype)
    return torch.randn(elements, generator=generator).to(dtype)


# -- collectives -----------------------------------------------------------------------------------


def all_reduce(given: torch.Tensor, group: Any, op: Any) -> Any:
    dist.all_reduce(given, op, group)
    return given


def all_reduce_later(given: torch.Tensor, group: Any, op: Any) -> Any:
    work = dist.all_reduce(given, op, group, async_op=True)
    assert work is not None
    work.wait()
    return given


def reduce(given: torch.Tensor, group: Any, op: Any) -> Any:
    dist.reduce(given, 1, op, group)
    return given if dist.get_rank() == 1 else None


def reduce_scatter_tensor(given: torch.Tensor, group: Any, op: Any) -> Any:
    own = given.new_zeros(len(given) // ranks())
    dist.reduce_scatter_tensor(own, given, op, group)
    return own


def reduce_scatter(given: torch.Tensor, group: Any, op: Any) -> Any:
    own = given.new_zeros(len(given) // ranks())
    dist.reduce_scatter(own, list(given.chunk(ranks())), op, group)
    return own


def broadcast(given: torch.Tensor, group: Any, op: Any) -> Any:
    dist.broadcast(given, 1, group)
    return given


def all_gather(given: torch.Tensor, group: Any, op: Any) -> Any:
    everyone = [torch.zeros_like(given) for _ in range(ranks())]
    dist.all_gather(everyone, given, group)
    return everyone


def all_gather_into_tensor(given: torch.Tensor, group: Any, op: Any) -> Any:
    whole = given.new_zeros(len(given) * ranks())
    dist.all_gather_into_tensor(whole, given, group)
    return whole


def gather(given: torch.Tensor, group: Any, op: Any) -> Any:
    everyone = [torch.zeros_like(given) for _ in range(ranks())] if dist.get_rank() == 0 else None
    dist.gather(given, everyone, 0, group)
    return everyone


def scatter(given: torch.Tensor, group: Any, op: Any) -> Any:
    own = given.new_zeros(len(given) // ranks())
    dist.scatter(own, list(given.chunk(ranks())) if dist.get_rank() == 0 else None, 0, group)
    return own


def all_to_all_single(given: torch.Tensor, group: Any, op: Any) -> Any:
    received = torch.zeros_like(given)
    dist.all_to_all_single(received, given, group=group)
    return received


def all_to_all(given: torch.Tensor, group: Any, op: Any) -> Any:
    parts = list(given.chunk(ranks()))
    received = [torch.zeros_like(part) for part in parts]
    dist.all_to_all(received, parts, group)
    return received


def send_and_receive(given: torch.Tensor, group: Any, op: Any) -> Any:
    """Around a ring."""
    received = torch.zeros_like(given)
    after, before = (dist.get_rank() + 1) % ranks(), (dist.get_rank() - 1) % ranks()
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, given, after, group),
            dist.P2POp(dist.irecv, received, before, group),
        ]
    )
    for work in works:
        work.wait()
    return received


Collective = Callable[[torch.Tensor, Any, Any], Any]
SUMS: tuple[Collective, ...] = (
    *(all_reduce, all_reduce_later, reduce, reduce_scatter_tensor, reduce_scatter),
)
MOVES: tuple[Collective, ...] = (
    *(broadcast, all_gather, all_gather_into_tensor, gather, scatter, all_to_all_single, all_to_all),
    send_and_receive,
)


def outcome(collective: Collective, dtype: torch.dtype, group: Any, op: Any) -> Any:
    """What a collective leaves on this rank, as bytes; or its error, where the group has no such collective."""
    try:
        result = collective(numbers(dtype, 3 * ranks()), group, op)
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {re.sub(r'0x[0-9a-f]+', '', str(error))}"
    tensors = result if isinstance(result, list) else [result]
    return [None if each is None else each.contiguous().view(torch.uint8).tolist() for each in tensors]


@case
def every_collective_is_gloos() -> None:
    """To the bit, for each dtype and operation; what Gloo refuses is refused with the same words."""
    theirs = gloo_group()
    refused = total = 0
    for dtype in DTYPES:
        pairs = [(collective, op) for collective in SUMS for op in OPS]
        for collective, op in pairs + [(collective, "SUM") for collective in MOVES]:
            reduce_op = getattr(dist.ReduceOp, op)
            ours = outcome(collective, dtype, None, reduce_op)
            assert ours == outcome(collective, dtype, theirs, reduce_op), (collective.__name__, dtype, op)
            refused += isinstance(ours, str)
            total += 1
    assert total == 12 * (5 * 8 + 8)
    assert refused < total / 2


@case
def objects_and_barriers() -> None:
    own = {"rank": dist.get_rank(), "words": ["a"] * dist.get_rank()}
    everyone: list[Any] = [None] * ranks()
    dist.all_gather_object(everyone, own)
    assert [each["rank"] for each in everyone] == list(range(ranks()))
    sent = [own, "text"] if dist.get_rank() == 1 else [None, None]
    dist.broadcast_object_list(sent, src=1)
    assert sent == [{"rank": 1, "words": ["a"]}, "text"]
    received: list[Any] = [None]
    dist.scatter_object_list(received, [f"for {rank}" for rank in range(ranks())], src=0)
    assert received == [f"for {dist.get_rank()}"]
    gathered: list[Any] | None = [None] * ranks() if dist.get_rank() == 0 else None
    dist.gather_object(own, gathered)
    assert gathered is None or gathered == everyone
    if dist.get_rank() == 0:
        dist.send_object_list(["to 1"], dst=1)
    elif dist.get_rank() == 1:
        dist.recv_object_list(received, src=0)
        assert received == ["to 1"]
    dist.barrier()


@case
def groups_and_meshes() -> None:
    assert dist.get_backend() == "gradwire"
    for size in range(1, ranks() + 1):
        group = dist.new_group(list(range(size)))
        if dist.get_rank() < size:
            assert dist.get_backend(group) == "gradwire"
            total = torch.ones(2)
            dist.all_reduce(total, group=group)
            assert total.tolist() == [size, size]
            dist.destroy_process_group(group)
    mesh = init_device_mesh("cpu", (ranks() // 2, 2), mesh_dim_names=("replicas", "shards"))
    assert dist.get_backend(mesh.get_group("shards")) == "gradwire"
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total, group=mesh.get_group("shards"))
    assert total.item() == 2 * (dist.get_rank() // 2 * 2) + 1
    line = init_device_mesh("cpu", (ranks(),))
    whole = torch.arange(24.0).view(12, 2)
    shards = distribute_tensor(whole, line, [Shard(0)])
    assert torch.equal(shards.redistribute(placements=[Replicate()]).to_local(), whole)
    assert torch.equal((shards.t() @ shards).full_tensor(), whole.t() @ whole)
    summed = functional_all_reduce(torch.ones(3), "sum", line.get_group())
    assert summed.tolist() == [ranks()] * 3
    assert Partial().is_partial()


@case
def a_group_is_destroyed_and_made_again() -> None:
    group = dist.new_group(timeout=timedelta(seconds=40))
    backend = group._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    assert backend.options._timeout == timedelta(seconds=40)
    dist.destroy_process_group(group)
    again = dist.new_group()
    total = torch.ones(1)
    dist.all_reduce(total, group=again)
    assert total.item() == ranks()


# -- models ----------------------------------------------------------------------------------------


def ddp(group: dist.ProcessGroup | None, model: nn.Module, **options: Any) -> DistributedDataParallel:
    chosen = {"bucket_cap_mb": 0.05, "process_group": group} | options
    return DistributedDataParallel(model, **chosen)


class Wide(nn.Module):
    """With matrices in several of the buckets that ddp() asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 200), nn.Linear(200, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def trained(
    wrap: Callable[[nn.Module], nn.Module], steps: int = 6, model: type[nn.Module] = Wide
) -> tuple[list[float], list[torch.Tensor]]:
    """Returns losses, and weights."""
    torch.manual_seed(0)
    wrapped = wrap(model())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        seed = 10 * step + dist.get_rank()
        x = torch.randn(8, 20, generator=torch.Generator().manual_seed(seed))
        loss = wrapped(images(seed) if model is not Wide else x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, whole_weights(wrapped)


def whole_weights(model: nn.Module) -> list[torch.Tensor]:
    return [
        (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in model.parameters()
    ]


def require_equal(one: tuple[list[float], list[torch.Tensor]], other: Any) -> None:
    """To the bit."""
    assert one[0] == other[0]
    assert all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


def sharded(group: dist.ProcessGroup | None) -> Callable[[nn.Module], nn.Module]:
    mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu")

    def shard(model: nn.Module) -> nn.Module:
        for layer in model.layers:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    return shard


@contextmanager
def one_warning(match: str) -> Iterator[None]:
    """Every rank warns once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts = [str(each.message) for each in caught if "gradwire" in str(each.message)]
    assert len(texts) == 1, texts
    assert re.search(match, texts[0]), texts


if POLICY is None:

    @case
    def weights_are_gloos_without_a_policy() -> None:
        theirs = gloo_group()
        for model in (Wide, Net):
            options = {"find_unused_parameters": model is Net}
            require_equal(
                trained(lambda module: ddp(None, module, **options), model=model),  # noqa: B023
                trained(lambda module: ddp(theirs, module, **options), model=model),  # noqa: B023
            )
        require_equal(trained(sharded(None)), trained(sharded(theirs)))

    @case
    def a_policy_gives_what_the_hook_gives() -> None:
        """DDP cuts its buckets anew after the first step, and residuals stay with their parameters."""
        from gradwire.torch import HookState, compress_group, ddp_hook, group_compression

        def hooked(codec: str) -> Callable[[nn.Module], nn.Module]:
            def wrap(module: nn.Module) -> nn.Module:
                wrapped = ddp(None, module)
                wrapped.register_comm_hook(HookState(codec=codec), ddp_hook)
                return wrapped

            return wrap

        exact = trained(lambda module: ddp(None, module))
        for codec in ("2bit", "int8"):
            expected = trained(hooked(codec))
            assert not torch.equal(expected[1][0], exact[1][0])
            group = dist.new_group()
            policy = compress_group(group, codec)
            assert group_compression(group) is policy
            require_equal(trained(lambda module: ddp(group, module)), expected)  # noqa: B023
            one_bucket = trained(lambda module: ddp(group, module, bucket_cap_mb=100))  # noqa: B023
            require_equal(one_bucket, expected)

            def stated(module: nn.Module) -> nn.Module:
                other = dist.new_group()
                wrapped = ddp(other, module)
                state = compress_group(other, codec, model=wrapped)  # noqa: B023
                assert isinstance(state.state_of(wrapped), HookState)
                return wrapped

            require_equal(trained(stated), expected)
        require_equal(trained(lambda module: ddp(None, module)), exact)  # that group has none

    @case
    def a_policy_gives_what_the_reduce_scatter_gives() -> None:
        from gradwire.torch import compress_group, compress_reduce_scatter

        exact = trained(sharded(None))
        for codec in ("2bit", "int8"):

            def expected(module: nn.Module) -> nn.Module:
                wrapped = sharded(None)(module)
                compress_reduce_scatter(wrapped, codec)  # noqa: B023
                return wrapped

            by_hand = trained(expected)
            assert not torch.equal(by_hand[1][0], exact[1][0])
            group = dist.new_group()
            compress_group(group, codec)
            require_equal(trained(sharded(group)), by_hand)

            states = []

            def stated(module: nn.Module) -> nn.Module:
                other = dist.new_group()
                wrapped = sharded(other)(module)
                policy = compress_group(other, codec, model=wrapped)  # noqa: B023
                states.append(policy.state_of(wrapped))  # noqa: B023
                return wrapped

            require_equal(trained(stated), by_hand)
            assert len(states[0].state_dict()["modules"]) == 3

    @case
    def models_under_a_policy_are_freed() -> None:
        from gradwire.torch import compress_group

        group = dist.new_group()
        policy = compress_group(group, "int8")
        for wrap in (sharded(group), lambda module: ddp(group, module)):
            model = wrap(Wide())
            model(torch.ones(2, 20)).sum().backward()
            assert policy.state_of(model).state_dict()
            there = weakref.ref(model)
            del model
            for _ in range(3):  # autograd's nodes may go with the first
                gc.collect()
            assert there() is None

    @case
    def small_gradients_stay_exact() -> None:
        """min_bytes: of one matrix of three, the gradient is compressed."""
        from gradwire.torch import HookState, compress_group, ddp_hook

        def by_hand(module: nn.Module) -> nn.Module:
            wrapped = ddp(None, module)
            codecs = {"layers.0.weight": "none", "layers.3.weight": "none"}
            names = list(module.named_parameters())
            wrapped.register_comm_hook(HookState("2bit", named_parameters=names, codecs=codecs), ddp_hook)
            return wrapped

        group = dist.new_group()
        compress_group(group, "2bit", min_bytes=4 * 300 * 200)
        require_equal(trained(lambda module: ddp(group, module)), trained(by_hand))

    @case
    def all_but_gradient_sums_stays_exact() -> None:
        from gradwire.torch import compress_group

        ours, theirs = dist.new_group(), gloo_group()
        compress_group(ours, "2bit")
        for step in range(2):
            trained(lambda module: ddp(ours, module), steps=2)
            for elements in (1, 1000, 10**6):
                one, other = numbers(torch.float32, elements, step), numbers(torch.float32, elements, step)
                dist.all_reduce(one, dist.ReduceOp.AVG, ours)
                dist.all_reduce(other, dist.ReduceOp.AVG, theirs)
                assert torch.equal(one, other)

    @case
    def a_hook_of_the_script_wins() -> None:
        from gradwire.torch import compress_group
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        group = dist.new_group()
        compress_group(group, "2bit")

        def hooked(module: nn.Module) -> nn.Module:
            wrapped = ddp(group, module)
            wrapped.register_comm_hook(None, allreduce_hook)
            with pytest.raises(RuntimeError, match="has a communication hook already"):
                compress_group(group, "2bit", model=wrapped)
            return wrapped

        exact = trained(lambda module: ddp(None, module))
        with one_warning("a communication hook of its own"):
            require_equal(trained(hooked), exact)
            require_equal(trained(hooked), exact)

    @case
    def evaluation_and_accumulation_begin_nothing() -> None:
        """The policy waits for the first forward pass that DDP synchronizes: rank 0 alone may evaluate before."""
        from gradwire.torch import compress_group

        group = dist.new_group()
        policy = compress_group(group, "int8")
        torch.manual_seed(0)
        wrapped = ddp(group, Wide())
        if dist.get_rank() == 0:
            with torch.no_grad():
                wrapped(torch.ones(2, 20))
        with wrapped.no_sync():
            wrapped(torch.ones(2, 20)).sum().backward()
        with pytest.raises(KeyError, match="no sum of this DistributedDataParallel"):
            policy.state_of(wrapped)
        copy.deepcopy(wrapped.module)
        wrapped(torch.ones(2, 20)).sum().backward()
        assert policy.state_of(wrapped).stats()["bytes_encoded"] > 0  # type: ignore[union-attr]

    @case
    def compiled_models_are_compressed_too() -> None:
        from gradwire.torch import compress_group

        group = dist.new_group()
        compress_group(group, "2bit")
        options = {"bucket_cap_mb": 25}  # torch.compile() takes no smaller ones
        expected = trained(lambda module: ddp(group, module, **options))
        compiled = trained(lambda module: torch.compile(ddp(group, module, **options), backend="eager"))
        require_equal(compiled, expected)

    @case
    def bad_arguments_are_refused_in_words() -> None:
        from gradwire.torch import compress_group

        with pytest.raises(ValueError, match="codec"):
            compress_group()
        with pytest.raises(ValueError, match="3bit"):
            compress_group(codec="3bit")
        with pytest.raises(ValueError, match="min_bytes=-1"):
            compress_group(codec="int8", min_bytes=-1)
        with pytest.raises(TypeError, match="model is a Linear"):
            compress_group(codec="int8", model=nn.Linear(2, 2))
        with pytest.raises(ValueError, match="expected 'gradwire' among them"):
            compress_group(gloo_group(), "int8")
        with pytest.raises(ValueError, match="another process group"):
            compress_group(dist.new_group(), "int8", model=ddp(None, Wide()))
        with pytest.raises(ValueError, match=r"codec is 'int8' on rank 0 and '2bit' on rank 1"):
            compress_group(dist.new_group(), "2bit" if dist.get_rank() == 1 else "int8")

    @case
    def a_group_of_other_ranks_stays_exact() -> None:
        """A process joins one gradwire job. That of the cases before has all ranks."""
        from gradwire.torch import compress_group

        halves = [dist.new_group([rank for rank in range(ranks()) if rank % 2 == half]) for half in (0, 1)]
        theirs = [
            dist.new_group([rank for rank in range(ranks()) if rank % 2 == half], backend="gloo")
            for half in (0, 1)
        ]
        half = dist.get_rank() % 2
        if ranks() > 2:
            compress_group(halves[half], "2bit")
            with one_warning("joins one gradwire job"):
                ours = trained(lambda module: ddp(halves[half], module))
            require_equal(ours, trained(lambda module: ddp(theirs[half], module)))

    @case
    def checkpoints_of_torch() -> None:
        torch.manual_seed(0)
        model = sharded(None)(Wide())
        saved = get_model_state_dict(model)
        place: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(place)
        dcp.save({"model": saved}, checkpoint_id=place[0])
        expected = whole_weights(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        dcp.load({"model": saved}, checkpoint_id=place[0])
        assert all(torch.equal(a, b) for a, b in zip(whole_weights(model), expected, strict=True))

else:

    @case
    def the_environment_gives_what_the_hook_gives() -> None:
        from gradwire.torch import HookState, ddp_hook, group_compression

        policy = group_compression()
        assert policy is not None
        assert policy.codec == POLICY
        theirs = gloo_group()

        def hooked(module: nn.Module) -> nn.Module:
            wrapped = ddp(theirs, module)
            wrapped.register_comm_hook(HookState(codec=POLICY, process_group=theirs), ddp_hook)
            return wrapped

        ours = trained(lambda module: ddp(None, module))
        require_equal(ours, trained(hooked))
        assert not torch.equal(ours[1][0], trained(lambda module: ddp(theirs, module))[1][0])

    @case
    def the_environment_gives_what_the_reduce_scatter_gives() -> None:
        from gradwire.torch import compress_reduce_scatter

        theirs = gloo_group()

        def by_hand(module: nn.Module) -> nn.Module:
            wrapped = sharded(theirs)(module)
            compress_reduce_scatter(wrapped, POLICY, theirs)
            return wrapped

        ours = trained(sharded(None))
        require_equal(ours, trained(by_hand))
        assert not torch.equal(ours[1][0], trained(sharded(theirs))[1][0])

    @case
    def adam_with_few_levels_warns_in_its_first_step() -> None:
        def steps(wrap: Callable[[nn.Module], nn.Module]) -> None:
            wrapped = wrap(Wide())
            optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
            for _ in range(2):
                wrapped(torch.ones(8, 20)).square().mean().backward()
                optimizer.step()

        for wrap in (lambda module: ddp(None, module), sharded(None)):
            found = warnings_of_adam(lambda: steps(wrap))  # noqa: B023
            assert ["AdamW loses accuracy with the codec 2bit" in text for text in found] == (
                [True] if POLICY == "2bit" else []
            )

    @case
    def ranks_join_again_after_another_init() -> None:
        """Destroys the default group, and makes it again through torchrun's store."""
        expected = trained(lambda module: ddp(None, module))
        store = dist.distributed_c10d._get_default_store()
        dist.destroy_process_group()
        dist.init_process_group(
            "gradwire",
            store=dist.PrefixStore("again", store),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        require_equal(trained(lambda module: ddp(None, module)), expected)


if __name__ == "__main__":
    run_cases_in_a_group(backend="gradwire")
