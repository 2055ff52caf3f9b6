"""What two ranks do in torch_ddp_test.py: models in DistributedDataParallel with gradwire's hook, FSDP2 with its
reduce-scatter, beside torch's own. Started by torchrun: gradwire finds its job by the process group.

python -m torch.distributed.run --nproc-per-node 2 torch_ddp_cases.py
"""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_programs import Net, case, case_from, images, run_cases_in_a_group

STATES: list[gw.torch.HookState] = []  # of the case that runs


def wide_net() -> Net:
    """With more than one of the buckets that hooked() asks for."""
    return Net(wide=9000)


def require_one_model(model: nn.Module) -> None:
    """All ranks hold the same bits."""
    for p in model.parameters():
        everyone = [torch.empty_like(p) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, p.detach().contiguous())
        assert all(torch.equal(everyone[0], each) for each in everyone)


def hooked(
    model: nn.Module, codec: str, **options: Any
) -> tuple[DistributedDataParallel, gw.torch.HookState]:
    ddp_options = {"find_unused_parameters": True, "bucket_cap_mb": 0.05} | options.pop("ddp", {})
    wrapped = DistributedDataParallel(model, **ddp_options)
    state = gw.torch.HookState(codec=codec, named_parameters=model.named_parameters(), **options)
    wrapped.register_comm_hook(state, gw.torch.ddp_hook)
    STATES.append(state)
    return wrapped, state


def descend(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Makes the model's answers smaller, each step on images of its own."""
    for step in steps:
        optimizer.zero_grad()
        model(images(10 * step + dist.get_rank())).square().mean().backward()
        optimizer.step()


def fit(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, target: torch.Tensor, steps: int
) -> list[float]:
    """Teaches the model this rank's classes of x. Returns the losses."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def require_learning(model: nn.Module, wrapped: nn.Module, steps: int) -> None:
    """Ranks that have images and classes of their own halve their losses, and stay one model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    target = torch.randint(4, (6,), generator=torch.Generator().manual_seed(dist.get_rank()))
    losses = fit(wrapped, optimizer, images(dist.get_rank()), target, steps)
    assert losses[-1] < 0.5 * losses[0], losses
    require_one_model(model)


@case
def gradients_are_ddps() -> None:
    """Uncompressed: bit-equal, with accumulation, parameters that are not used, and buckets that are cut anew."""
    for ddp in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 25}):
        torch.manual_seed(0)
        model = wide_net()
        theirs = DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=True)
        ours, _ = hooked(model, "none", ddp=ddp)
        for step in range(5):
            for each in (ours, theirs):
                each.zero_grad(set_to_none=step % 2 == 0)
                for part in range(3):
                    with each.no_sync() if part < 2 else contextlib.nullcontext():
                        each(images(100 * step + 10 * part + dist.get_rank())).square().sum().backward()
            for (name, a), b in zip(model.named_parameters(), theirs.parameters(), strict=True):
                assert (a.grad is None) == (b.grad is None), name
                if b.grad is not None:
                    torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=0)


def train(codec: str, steps: int = 6, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = wide_net()
    wrapped, _ = hooked(model, codec, **options)
    descend(wrapped, torch.optim.SGD(model.parameters(), lr=0.002), range(steps))
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    return model


@case
def residuals_survive_other_buckets() -> None:
    """DDP cuts small buckets anew after the first step; one large bucket stays as it is. No bit differs."""
    for codec in ("2bit:threshold=0.001", "2bit", "int8"):
        cut_anew = train(codec, ddp={"find_unused_parameters": False, "bucket_cap_mb": 0.05} | FULL)
        whole = train(codec, ddp={"bucket_cap_mb": 100})
        for (name, a), b in zip(cut_anew.named_parameters(), whole.parameters(), strict=True):
            assert torch.equal(a, b), (codec, name)
        require_one_model(cut_anew)


FULL = {"static_graph": True}  # it knows by itself which parameters are not used, and cuts anew


@case
def two_bits_learn() -> None:
    torch.manual_seed(0)
    model = wide_net()
    wrapped, state = hooked(model, "2bit", warm_up=[("none", 3), ("fp16", 3)], codecs={"last.*": "int8"})
    require_learning(model, wrapped, 60)
    assert state.state_dict()["step"] == 60


@case
def codecs_are_chosen_while_a_model_trains() -> None:
    """Parameters come with DDP's first buckets, and their codecs change in trials; ranks stay one model."""
    torch.manual_seed(0)
    model = wide_net()
    wrapped, state = hooked(model, "auto", budget="30% error", codecs={"last.*": "int8"})
    require_learning(model, wrapped, 40)
    saved = state.state_dict()["auto"]
    assert saved["step"] == 40
    assert saved["codecs"]["last.weight"] == "none"  # not its to choose
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, saved)
    assert everyone[0] == everyone[1]
    (chosen,) = [d for d in state._store.stats()["decisions"] if d["event"] == "chosen"]
    assert chosen["step"] == 20


@case
def a_checkpoint_goes_on_bit_for_bit() -> None:
    torch.manual_seed(0)
    model = wide_net()
    wrapped, state = hooked(model, "2bit:threshold=0.001")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    descend(wrapped, optimizer, range(3))
    saved = copy.deepcopy(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "hook": state.state_dict()}
    )
    descend(wrapped, optimizer, range(3, 6))
    torch.manual_seed(7)
    later = wide_net()
    later.load_state_dict(saved["model"])
    wrapped, state = hooked(later, "2bit:threshold=0.001")
    optimizer = torch.optim.SGD(later.parameters(), lr=0.002)
    optimizer.load_state_dict(saved["optimizer"])
    state.load_state_dict(saved["hook"])
    descend(wrapped, optimizer, range(3, 6))
    for (name, a), b in zip(model.named_parameters(), later.parameters(), strict=True):
        assert torch.equal(a, b), name


@case
def sparse_and_half_precision() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 3, sparse=True)
            self.last = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.table(x).to(self.last.weight.dtype))

    torch.manual_seed(0)
    model = Words()
    model.last.bfloat16()
    theirs = DistributedDataParallel(copy.deepcopy(model))
    ours, _ = hooked(model, "none", ddp={"find_unused_parameters": False})
    for step in range(3):
        for each in (ours, theirs):
            each.zero_grad()
            each(torch.tensor([1, 2 + step, 5 + dist.get_rank()])).square().sum().backward()
        torch.testing.assert_close(
            model.table.weight.grad.to_dense(), theirs.module.table.weight.grad.to_dense(), rtol=0, atol=0
        )
        torch.testing.assert_close(model.last.weight.grad, theirs.module.last.weight.grad)


@case
def loss_scales_change_no_bit() -> None:
    def run(scaled: bool) -> nn.Module:
        torch.manual_seed(0)
        model = wide_net()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, enabled=scaled)
        wrapped, _ = hooked(model, "2bit", grad_scaler=scaler)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
        for step in range(8):
            bad = step in (0, 4)
            if bad and not scaled:
                continue
            optimizer.zero_grad()
            loss = wrapped(images(10 * step + dist.get_rank())).square().mean()
            if bad and dist.get_rank() == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            before = [p.detach().clone() for p in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)) == bad
        return model

    for a, b in zip(run(scaled=True).parameters(), run(scaled=False).parameters(), strict=True):
        assert torch.equal(a, b)


@case
def two_models_in_turns() -> None:
    """As in a GAN: each has a hook and residuals of its own, and a veto of one leaves the other's alone."""

    def run(both: bool) -> nn.Module:
        torch.manual_seed(0)
        first, second = wide_net(), wide_net()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        one, state = hooked(first, "2bit:threshold=0.001", grad_scaler=scaler)
        other, others = hooked(second, "2bit:threshold=0.001", grad_scaler=scaler)
        optimizer = torch.optim.SGD(first.parameters(), lr=0.002)
        for step in range(5):
            optimizer.zero_grad()
            scaler.scale(one(images(10 * step + dist.get_rank())).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            if both:
                bad = float("inf") if step % 2 else 1.0
                scaler.scale(other(images(step)).square().mean() * bad).backward()
        for each in (state, others):
            each.close()
        return first

    for a, b in zip(run(both=True).parameters(), run(both=False).parameters(), strict=True):
        assert torch.equal(a, b)


@case
def a_compiled_model_has_ddps_graphs_and_its_gradients() -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(600, 600), nn.ReLU())))

    def trained(wrapped: nn.Module) -> tuple[list[torch.Tensor], dict[str, int], dict[str, int]]:
        """Gradients of three steps; how many functions were compiled, and where graphs broke: DDP's own does."""
        torch.compiler.reset()
        counters.clear()
        compiled = torch.compile(wrapped, backend="aot_eager")
        gradients = []
        for step in range(3):
            x = torch.randn(4, 600, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            compiled.zero_grad()
            compiled(x).square().sum().backward()
            gradients += [p.grad.clone() for p in wrapped.parameters()]
        return gradients, dict(counters["frames"]), dict(counters["graph_break"])

    for optimize in ("ddp_optimizer", False):
        with torch._dynamo.config.patch(optimize_ddp=optimize):
            theirs = trained(DistributedDataParallel(make(), bucket_cap_mb=1.5))
            options = {"find_unused_parameters": False, "bucket_cap_mb": 1.5}
            ours = trained(hooked(make(), "none", ddp=options)[0])
        assert ours[2] == theirs[2], optimize
        assert ours[1]["ok"] == ours[1]["total"] > 0, ours[1]
        for a, b in zip(ours[0], theirs[0], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


@case
def a_nan_is_told() -> None:
    wrapped, _ = hooked(wide_net(), "2bit")
    poison = float("nan") if dist.get_rank() == 1 else 1.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (wrapped(images(0)).square().mean() * poison).backward()
    assert any("a worker's gradient held a NaN" in str(w.message) for w in caught)


@case_from("2.9")
def fully_sharded() -> None:
    """Uncompressed: torch's own reduce-scatter, bit for bit. Compressed: it learns, and every shard has one value."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
        for layer in (model[2], model[4]):
            fully_shard(layer)
        return fully_shard(model)

    def run(model: nn.Module, steps: int) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        generator = torch.Generator().manual_seed(dist.get_rank())
        x, target = torch.randn(30, 20, generator=generator), torch.randint(3, (30,), generator=generator)
        return fit(model, optimizer, x, target, steps)

    theirs, ours = make(), make()
    gw.torch.compress_reduce_scatter(ours, codec="none")
    assert run(ours, 4) == run(theirs, 4)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a.to_local(), b.to_local())
    for codec in ("int8", "2bit", "1bit", "topk:ratio=0.1"):
        model = make()
        gw.torch.compress_reduce_scatter(model, codec=codec)
        losses = run(model, 60)
        assert losses[-1] < 0.5 * losses[0], (codec, losses)


@case_from("2.9")
def a_nan_reaches_every_shard() -> None:
    """On one rank it makes all shards NaN, with a warning, and the steps after it are as if it had not been."""

    def run(codec: str, poison: float | None) -> nn.Module:
        torch.manual_seed(0)
        model = fully_shard(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)))
        gw.torch.compress_reduce_scatter(model, codec=codec)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(5):
            if step == 2 and poison is None:
                continue
            optimizer.zero_grad()
            x = torch.randn(30, 20, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            factor = poison if poison is not None and step == 2 and dist.get_rank() == 1 else 1.0
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                (model(x).square().mean() * factor).backward()
            told = any("a worker's gradient held a NaN" in str(w.message) for w in caught)
            assert told == (step == 2), (codec, poison, step)
            if step == 2:
                assert all(bool(p.grad.to_local().isnan().all()) for p in model.parameters()), (codec, poison)
            else:
                optimizer.step()
        return model

    for codec in ("fp16", "2bit", "1bit", "int8"):
        undisturbed = run(codec, None)
        for poison in (float("nan"), float("inf")):
            for a, b in zip(run(codec, poison).parameters(), undisturbed.parameters(), strict=True):
                assert torch.equal(a.to_local(), b.to_local()), (codec, poison)


class Layers(nn.Module):
    """Three groups of parameters; what a gradient meets on its way to the first can be multiplied there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(20, 64), nn.Linear(64, 64), nn.Linear(64, 3)
        for layer in (self.second, self.third):
            fully_shard(layer)
        fully_shard(self)

    def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        h = self.first(x)
        h.register_hook(lambda gradient: gradient * factor)
        return self.third(torch.relu(self.second(torch.relu(h))))


@case_from("2.9")
def a_step_with_a_nan_in_one_group_leaves_no_trace_in_the_others() -> None:
    """With a GradScaler and without: the bits of a run that has no such steps, and no scale."""

    def run(codec: str, scaled: bool, poison: float | None) -> nn.Module:
        torch.manual_seed(0)
        model = Layers()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, enabled=scaled)
        gw.torch.compress_reduce_scatter(model, codec, grad_scaler=scaler, on_nonfinite="skip_step")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(8):
            bad = step in (0, 4)
            if bad and poison is None:
                continue
            optimizer.zero_grad()
            x = torch.randn(30, 20, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            factor = poison if bad and poison is not None and dist.get_rank() == 1 else 1.0
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                scaler.scale(model(x, factor).square().mean()).backward()
            told = any("a worker's gradient held a NaN" in str(w.message) for w in caught)
            assert told == (bad and not scaled), (codec, scaled, poison, step)
            before = [p.detach().to_local().clone() for p in model.parameters()]
            if scaled or not bad:
                scaler.step(optimizer)
                scaler.update()
            now = [p.detach().to_local() for p in model.parameters()]
            assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True)) == bad
        return model

    for codec in ("2bit:threshold=0.001", "1bit", "int8"):
        undisturbed = run(codec, False, None)
        for scaled, poison in ((False, float("nan")), (True, float("inf"))):
            disturbed = run(codec, scaled, poison)
            for a, b in zip(disturbed.parameters(), undisturbed.parameters(), strict=True):
                assert torch.equal(a.to_local(), b.to_local()), (codec, scaled)


def descend_sharded(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        x = torch.randn(30, 20, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        model(x, 1.0).square().mean().backward()
        optimizer.step()


def through_a_file(state: Any) -> Any:
    written = io.BytesIO()
    torch.save(state, written)
    return torch.load(io.BytesIO(written.getvalue()), weights_only=True)


@case_from("2.9")
def a_sharded_checkpoint_goes_on_bit_for_bit() -> None:
    """With residuals, agreed scales and the steps that random choices go by; it does not without them."""

    def make(codec: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        torch.manual_seed(seed)
        model = Layers()
        compressed = gw.torch.compress_reduce_scatter(model, codec=codec)
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), compressed

    for codec in ("2bit", "2bit:threshold=0.001", "1bit", "int8", "randomk:ratio=0.1"):
        model, optimizer, compressed = make(codec, 0)
        descend_sharded(model, optimizer, range(3))
        saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        unsent = through_a_file(compressed.state_dict())
        descend_sharded(model, optimizer, range(3, 6))
        for is_whole in (True, False):
            later, optimizer, compressed = make(codec, 7)
            later.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            if is_whole:
                compressed.load_state_dict(unsent)
            descend_sharded(later, optimizer, range(3, 6))
            pairs = zip(later.parameters(), model.parameters(), strict=True)
            assert all(torch.equal(a.to_local(), b.to_local()) for a, b in pairs) == is_whole, codec


@case_from("2.9")
def a_sharded_checkpoint_of_others_is_told() -> None:
    model = Layers()
    compressed = gw.torch.compress_reduce_scatter(model, codec="2bit")
    assert compressed.state_dict() == {}  # before the first step
    descend_sharded(model, torch.optim.SGD(model.parameters(), lr=0.05), range(2))
    state = compressed.state_dict()
    with pytest.raises(ValueError, match="was saved on 3 ranks, and here are 2, whose shards are others"):
        compressed.load_state_dict(state | {"num_workers": 3})
    with pytest.raises(ValueError, match=r"has the FSDP module 'fourth', expected of .*'second', 'third'"):
        compressed.load_state_dict(state | {"modules": state["modules"] | {"fourth": {}}})
    for name, own in compressed.state_dict()["modules"].items():
        assert own["residuals"].any()
        assert torch.equal(own["residuals"], state["modules"][name]["residuals"]), name
    with pytest.warns(UserWarning, match=f"holds the residuals of rank 5, so rank {dist.get_rank()} begins"):
        compressed.load_state_dict(state | {"rank": 5})
    for name, own in compressed.state_dict()["modules"].items():
        assert not own["residuals"].any(), name
        assert own["step"] == 2
        for mine, theirs in zip(own["scales"], state["modules"][name]["scales"], strict=True):
            assert torch.equal(mine, theirs), name
    compressed.load_state_dict({})
    assert compressed.state_dict() == {}


@case_from("2.13")
def residuals_stay_with_their_parameters() -> None:
    """Of two branches used in turns, each has got in the end what it was due, of equal sizes or not. An older PyTorch
    leaves out what got no gradient.
    """

    class Branches(nn.Module):
        def __init__(self, wide: int) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(20, 64, bias=False), nn.Linear(20, wide, bias=False)

        def forward(self, x: torch.Tensor, branch: str) -> torch.Tensor:
            return self.get_submodule(branch)(x).square().sum()

    def gradients(wide: int, codec: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = fully_shard(Branches(wide))
        gw.torch.compress_reduce_scatter(model, codec=codec)
        x = torch.randn(30, 20, generator=torch.Generator().manual_seed(dist.get_rank()))
        for step in range(8):
            loss = model(x, "other" if step % 2 else "one")
            (loss if step == 0 else 1e-30 * loss).backward()
        return [p.grad.to_local() for p in model.parameters()]

    for wide in (64, 32):
        one, other = gradients(wide, "topk:ratio=0.25")
        torch.testing.assert_close(one, gradients(wide, "none")[0])
        assert float(other.abs().max()) < 1e-20, wide


@case_from("2.13")
def residuals_that_nobody_can_place_are_dropped_with_a_warning() -> None:
    """Where torch leaves out what got no gradient, as before set_reduce_scatter_unused_params(), nobody knows what."""

    class Ends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(20, 64), nn.Linear(64, 3)

        def forward(self, x: torch.Tensor, whole: bool) -> torch.Tensor:
            return self.last(self.first(x)) if whole else self.first(x)

    torch.manual_seed(0)
    model = fully_shard(Ends())
    gw.torch.compress_reduce_scatter(model, codec="topk")
    model.set_reduce_scatter_unused_params(False)
    told = []
    for whole in (True, True, False, False, True):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model(torch.ones(5, 20), whole).square().mean().backward()
        told.append(any("has not sent yet is dropped" in str(w.message) for w in caught))
    assert told == [False, False, True, False, True], told


@case
def a_nan_reaches_every_rank_of_the_store() -> None:
    """kv.create("torch"): the sum is NaN on all, and the next one is as if that had not been."""

    def run(codec: str, poison: float | None) -> list[torch.Tensor]:
        store = gw.kv.create("torch")
        store.set_gradient_compression(codec)
        generator = torch.Generator().manual_seed(dist.get_rank())
        sums = []
        for step in range(4):
            values, total = torch.randn(3000, generator=generator), torch.zeros(3000)
            if step == 2 and poison is None:
                continue
            if step == 2 and dist.get_rank() == 0:
                values[7] = poison
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                store.push_pull("a", values, total)
            assert any("a worker's gradient held a NaN" in str(w.message) for w in caught) == (step == 2)
            if step == 2:
                assert bool(total.isnan().all()), (codec, poison)
            else:
                sums.append(total)
        return sums

    for codec in ("fp16", "2bit:threshold=auto", "2bit:threshold=0.5,reply=2bit", "int8", "topk:ratio=0.1"):
        undisturbed = run(codec, None)
        for poison in (float("nan"), float("-inf")):
            for a, b in zip(run(codec, poison), undisturbed, strict=True):
                assert torch.equal(a, b), (codec, poison)


@case
def a_scalar_weight_is_learnt_through_2bit() -> None:
    """Its codec unit is one element, whose magnitude is always the mean's."""
    linear = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(linear.weight)
    wrapped, _ = hooked(linear, "2bit")
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.05)
    random = torch.Generator().manual_seed(1 + dist.get_rank())
    for _ in range(200):
        x = torch.randn(16, 1, generator=random)
        optimizer.zero_grad()
        (wrapped(x) - 3 * x).square().mean().backward()
        optimizer.step()
    assert abs(linear.weight.item() - 3) < 0.05, linear.weight
    require_one_model(linear)


class Scaled(nn.Module):
    """Whose gradient is what it is called with, in each element."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4))

    def forward(self, gradient: float) -> torch.Tensor:
        return (self.weight * gradient).sum()


@case
def without_a_codec_the_hook_sends_what_the_codec_before_has_left() -> None:
    first, state = hooked(Scaled(), "2bit:threshold=0.5")
    first(3.0).backward()
    assert torch.equal(first.module.weight.grad, torch.full((4, 4), 0.5))
    later, other = hooked(Scaled(), "none")
    other.load_state_dict(state.state_dict())
    for given, found in ((1.0, 3.5), (1.0, 1.0)):
        later.zero_grad()
        later(given).backward()
        assert torch.equal(later.module.weight.grad, torch.full((4, 4), found))


@case_from("2.9")
def without_a_codec_shards_get_what_the_codec_before_has_left() -> None:
    def sharded(codec: str) -> tuple[nn.Module, Any]:
        model = fully_shard(Scaled())
        return model, gw.torch.compress_reduce_scatter(model, codec=codec)

    first, compressed = sharded("2bit:threshold=0.5")
    first(3.0).backward()
    assert torch.equal(first.weight.grad.to_local(), torch.full((2, 4), 0.5))
    later, goes_on = sharded("none")
    goes_on.load_state_dict(through_a_file(compressed.state_dict()))
    for given, found in ((1.0, 3.5), (1.0, 1.0)):
        later.zero_grad()
        later(given).backward()
        assert torch.equal(later.weight.grad.to_local(), torch.full((2, 4), found))
    assert not any(own["residuals"].any() for own in goes_on.state_dict().get("modules", {}).values())


def leave_states() -> None:
    for state in STATES:
        state.close()
    STATES.clear()


if __name__ == "__main__":
    run_cases_in_a_group(leave_states)
