"""What four ranks do in torch_hsdp_test.py: HSDP's compressed all-reduce between two hosts of two ranks, beside torch's
own.

python -m torch.distributed.run --nproc-per-node 4 torch_hsdp_cases.py
"""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch_programs import case, case_from, run_cases_in_a_group, warnings_of_adam


@functools.cache
def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


class Net(nn.Module):
    """Has shards of uneven length, one of which is empty on a rank, and a scalar-like one."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(9, 33, dtype=dtype)
        self.norm = nn.LayerNorm(33, dtype=dtype)
        self.last = nn.Linear(33, 1, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def shard(model: nn.Module, **options: Any) -> nn.Module:
    for part in list(model.children()):
        fully_shard(part, mesh=mesh(), **options)
    return fully_shard(model, mesh=mesh(), **options)


def inputs(step: int, dtype: torch.dtype = torch.float32, rows: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(rows, 9, generator=generator).to(dtype)


def own_gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.to_local().clone() for p in model.parameters() if p.grad is not None]  # type: ignore[attr-defined]


def trained(
    codec: str | None, step: Callable[[nn.Module, int], None], steps: int = 3, **options: Any
) -> list[list[torch.Tensor]]:
    """Gradients of each step on this rank. codec: None: torch's own all-reduce."""
    dtype = options.pop("dtype", torch.float32)
    prepare = options.pop("prepare", lambda model: None)
    arguments = options.pop("arguments", {})
    model = shard(Net(dtype), **options)
    prepare(model)
    if codec is not None:
        gw.torch.compress_all_reduce(model, codec, **arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    found = []
    for number in range(steps):
        optimizer.zero_grad()
        step(model, number)
        found.append(own_gradients(model))
        optimizer.step()
    return found


def plain_step(dtype: torch.dtype = torch.float32) -> Callable[[nn.Module, int], None]:
    def step(model: nn.Module, number: int) -> None:
        model(inputs(number, dtype)).square().mean().backward()

    return step


def require_torchs(step: Callable[[nn.Module, int], None], **options: Any) -> None:
    """Uncompressed to the bit."""
    true = trained(None, step, **options)
    ours = trained("none", step, **options)
    for number, (mine, theirs) in enumerate(zip(ours, true, strict=True)):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, msg=f"step {number}")


@case
def without_a_codec_gradients_are_torchs_to_the_bit() -> None:
    require_torchs(plain_step())


@case
def mixed_precision_and_offloading_are_torchs() -> None:
    for policy in (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32),
    ):
        require_torchs(plain_step(), mp_policy=policy)
    require_torchs(plain_step(), offload_policy=CPUOffloadPolicy(pin_memory=False))


@case
def float64_is_summed_in_64_bits() -> None:
    require_torchs(plain_step(torch.float64), dtype=torch.float64)


@case
def half_precision_sums_are_nearly_torchs() -> None:
    # torch rounds the mean to the half-precision type, and here it is float32.
    for dtype in (torch.bfloat16, torch.float16):
        policy = MixedPrecisionPolicy(reduce_dtype=dtype)
        true = trained(None, plain_step(), steps=1, mp_policy=policy)[0]
        ours = trained("none", plain_step(), steps=1, mp_policy=policy)[0]
        for one, other in zip(ours, true, strict=True):
            torch.testing.assert_close(one, other, rtol=2.0**-7, atol=1e-6)


@case
def microbatches_are_summed_once_or_each_time() -> None:
    def once(model: nn.Module, number: int) -> None:
        for part in range(3):
            model.set_requires_all_reduce(part == 2)  # type: ignore[operator]
            model(inputs(10 * number + part)).square().mean().backward()

    def locally(model: nn.Module, number: int) -> None:
        for part in range(3):
            model.set_requires_gradient_sync(part == 2)  # type: ignore[operator]
            model(inputs(10 * number + part)).square().mean().backward()

    def each_time(model: nn.Module, number: int) -> None:
        for part in range(3):
            model(inputs(10 * number + part)).square().mean().backward()

    for step in (once, locally, each_time):
        require_torchs(step)


@case_from("2.13")
def factors_and_forced_sums_are_torchs() -> None:
    for force, factor in ((True, None), (False, 2.0), (True, 3.0)):  # Gloo refuses (False, 3.0)

        def prepare(model: nn.Module, force: bool = force, factor: float | None = factor) -> None:
            for module in model.modules():
                if hasattr(module, "set_force_sum_reduction_for_comms"):
                    module.set_force_sum_reduction_for_comms(force)
                    if factor is not None:
                        module.set_gradient_divide_factor(factor)

        require_torchs(plain_step(), prepare=prepare)


@case
def a_module_that_is_used_twice_is_summed_twice() -> None:
    def step(model: nn.Module, number: int) -> None:
        x = inputs(number)
        (model(x).square().mean() + model(2 * x).square().mean()).backward()

    require_torchs(step)


@case
def an_optimizer_inside_backward_gets_means() -> None:
    seen: list[torch.Tensor] = []

    def prepare(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p: seen.append(p.grad.to_local().clone())  # type: ignore[attr-defined]
            )

    true = trained(None, plain_step(), prepare=prepare)
    theirs = list(seen)
    seen.clear()
    assert_same(trained("none", plain_step(), prepare=prepare), true)
    assert_same([seen], [theirs])


def assert_same(ours: list[list[torch.Tensor]], true: list[list[torch.Tensor]]) -> None:
    for mine, theirs in zip(ours, true, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@case
def frozen_and_thawed_parameters() -> None:
    def step(model: nn.Module, number: int) -> None:
        model.first.weight.requires_grad_(number != 1)  # type: ignore[union-attr]
        model(inputs(number)).square().mean().backward()

    # FSDP itself cannot change this between steps in place: the whole layer is frozen.
    def whole(model: nn.Module, number: int) -> None:
        for parameter in model.first.parameters():  # type: ignore[union-attr]
            parameter.requires_grad_(number != 1)
        model(inputs(number)).square().mean().backward()

    for each in (step, whole):
        require_torchs(each)


@case
def codecs_compress_what_travels_between_hosts_alone() -> None:
    sent = {}
    for codec in ("none", "int8"):
        model = shard(nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 64)))
        compressed = gw.torch.compress_all_reduce(model, codec)
        before = compressed.stats()["bytes_sent"]
        for number in range(4):
            model(torch.randn(4, 256, generator=torch.Generator().manual_seed(number))).mean().backward()
        dist.barrier()  # what the other replica needs is sent, too
        sent[codec] = compressed.stats()["bytes_sent"] - before
    shard_bytes = 4 * 4 * (256 * 512 + 512 + 512 * 64 + 64) / 2  # of four steps
    assert sent["none"] < 1.1 * shard_bytes, (sent, shard_bytes)  # of two workers: half there, half back
    assert 0.2 < sent["int8"] / sent["none"] < 0.3, sent


def pipeline_gradients(codec: str | None, steps: int = 3, **arguments: Any) -> list[list[torch.Tensor]]:
    """Gradients of each step on this rank, in a pipeline of two stages with two replicas each. codec: None: torch's own
    all-reduce.
    """
    ranks = torch.tensor([[[0], [2]], [[1], [3]]])  # replicas as those of mesh()
    whole = DeviceMesh("cpu", ranks, mesh_dim_names=("pipeline", "replicate", "shard"))
    number = whole.get_local_rank("pipeline")
    torch.manual_seed(number)
    part = nn.Sequential(nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 9), nn.Linear(9, 9))
    for linear in (part[0], part[2]):
        fully_shard(linear, mesh=whole["replicate", "shard"])
    fully_shard(part, mesh=whole["replicate", "shard"])
    if codec is not None:
        gw.torch.compress_all_reduce(part, codec, **arguments)
    stage = PipelineStage(part, number, 2, torch.device("cpu"), group=whole.get_group("pipeline"))
    schedule = Schedule1F1B(
        stage, n_microbatches=3, loss_fn=lambda out, wanted: (out - wanted).square().mean()
    )
    generator = torch.Generator().manual_seed(whole.get_local_rank("replicate"))
    optimizer = torch.optim.AdamW(part.parameters(), lr=0.01)
    found = []
    for _ in range(steps):
        x, wanted = torch.randn(2, 6, 9, generator=generator)
        optimizer.zero_grad()
        if number == 0:
            schedule.step(x)
        else:
            schedule.step(target=wanted)
        found.append(own_gradients(part))
        optimizer.step()
    return found


@case_from("2.13")
def a_pipeline_reduces_after_its_backward_passes() -> None:
    true = pipeline_gradients(None)
    assert len(true[0]) == 6
    assert_same(pipeline_gradients("none"), true)
    ours = pipeline_gradients("int8:block=32")
    for near, exact in zip(ours[0], true[0], strict=True):
        torch.testing.assert_close(near, exact, rtol=0, atol=0.02 * float(exact.abs().max()))
    # The first backward() of a job's last stage reduces gradients inside it: there the first step counts twice.
    warm = pipeline_gradients("2bit:threshold=9", steps=5, warm_up=[("none", 4)])
    assert_same(warm[:3], true)
    weights = [gradient for gradient in warm[4] if gradient.dim() == 2]
    assert len(weights) == 3
    assert not any(weight.any() for weight in weights)  # all is left for later


def reduce_afterwards(model: nn.Module) -> None:
    """As a pipeline's stage does when its backward passes are over."""
    model.set_requires_gradient_sync(True)  # type: ignore[operator]
    root = fully_shard.state(model)  # type: ignore[attr-defined]
    for state in root._state_ctx.all_states:
        for group in state._fsdp_param_groups:
            group.post_backward()
    root._root_post_backward_final_callback()


@case_from("2.13")
def a_nan_in_a_pipeline_spoils_the_step_before_it_is_taken() -> None:
    """One shard has a NaN, and the ranks with the other hear of it."""
    with_unused = Net()
    with_unused.unused = nn.Linear(3, 3)
    nets = (Net(), "first"), (Net(), "last"), (nn.Linear(9, 8), ""), (with_unused, "first")
    for net, poisoned in nets:
        model = shard(net)
        compressed = gw.torch.compress_all_reduce(model, "2bit:threshold=0.01", on_nonfinite="skip_step")
        (group,) = fully_shard.state(model.get_submodule(poisoned))._fsdp_param_groups  # type: ignore[attr-defined]

        def step(number: int, factor: float, model: nn.Module = model, group: Any = group) -> None:
            model.zero_grad()
            model.set_requires_gradient_sync(False)  # type: ignore[operator]
            model(inputs(number)).square().mean().backward()
            group.fsdp_params[0].unsharded_param.grad[0].mul_(factor)
            reduce_afterwards(model)

        step(0, 1.0)
        before = copy.deepcopy(compressed.state_dict()["residuals"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            step(1, float("nan") if dist.get_rank() == 3 else 1.0)
        assert any(gradient.isnan().any() for gradient in own_gradients(model)), poisoned
        for name, residual in compressed.state_dict()["residuals"].items():
            assert torch.equal(residual, before[name]), name
        step(2, 1.0)
        assert not any(gradient.isnan().any() for gradient in own_gradients(model)), poisoned


@case
def lossy_training_follows_torchs_and_replicas_stay_alike() -> None:
    true = trained(None, plain_step(), steps=8)
    for codec in ("int8:block=32", "fp16", "nf2", "2bit"):
        scaled = {"row_column_scales": codec == "int8:block=32"}
        ours = trained(codec, plain_step(), steps=8, arguments=scaled)
        near = torch.cat([g.flatten() for g in ours[0]]) - torch.cat([g.flatten() for g in true[0]])
        norm = torch.cat([g.flatten() for g in true[0]]).norm()
        if codec in ("int8:block=32", "fp16"):
            assert near.norm() < 0.02 * norm, codec
        for gradient in ours[-1]:
            pair = [torch.empty_like(gradient) for _ in range(2)]
            dist.all_gather(pair, gradient, group=mesh().get_group("replicate"))
            assert torch.equal(*pair), codec


@case
def what_is_not_sent_is_sent_later() -> None:
    """The sum of all means and what is left is the sum of all gradients."""
    model = shard(Net())
    compressed = gw.torch.compress_all_reduce(model, "2bit:threshold=0.05")
    own = shard(Net())
    sums = [torch.zeros_like(p.to_local()) for p in model.parameters()]  # type: ignore[attr-defined]
    true = [torch.zeros_like(each) for each in sums]
    for number in range(5):
        for net, total in ((model, sums), (own, true)):
            net.zero_grad()
            plain_step()(net, number)
            for each, gradient in zip(total, own_gradients(net), strict=True):
                each += gradient
    residuals = compressed.state_dict()["residuals"]
    for name, each, other in zip(dict(model.named_parameters()), sums, true, strict=True):
        if name not in residuals:  # a shard without elements, or too small to be encoded
            torch.testing.assert_close(each, other, rtol=1e-5, atol=1e-6)
            continue
        left = residuals[name].view(each.shape).clone()
        dist.all_reduce(left, group=mesh().get_group("replicate"))
        torch.testing.assert_close(each + left / 2, other, rtol=1e-5, atol=1e-6)


@case
def adam_with_few_levels_warns_in_its_first_step() -> None:
    (text,) = warnings_of_adam(lambda: trained("2bit", plain_step()))
    assert "AdamW loses accuracy with the codec 2bit" in text
    for arguments in ({"codecs": {"*": "int8"}}, {"row_column_scales": True}):
        assert warnings_of_adam(lambda: trained("2bit", plain_step(), arguments=arguments)) == []  # noqa: B023


@case
def a_codec_by_name_and_a_warm_up() -> None:
    model = shard(Net())
    compressed = gw.torch.compress_all_reduce(
        model, "2bit:threshold=9", codecs={"*norm*": "none", "*.bias": "none"}, warm_up=[("none", 2)]
    )
    names = list(dict(model.named_parameters()))
    for number in range(3):
        model.zero_grad()
        plain_step()(model, number)
        zero = {n: not g.any() for n, g in zip(names, own_gradients(model), strict=True) if g.numel()}
        assert zero == {n: number == 2 and "norm" not in n and "bias" not in n for n in zero}, (number, zero)
    assert all(
        name.endswith("weight") and "norm" not in name for name in compressed.state_dict()["residuals"]
    )


@case
def a_nan_on_one_rank_spoils_the_step_on_all_and_residuals_are_as_before() -> None:
    model = shard(Net())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    compressed = gw.torch.compress_all_reduce(model, "2bit:threshold=0.01", grad_scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int, factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale(model(inputs(number)).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    step(0, 1.0)
    before = copy.deepcopy(compressed.state_dict()["residuals"])
    weights = [p.to_local().clone() for p in model.parameters()]  # type: ignore[attr-defined]
    step(1, float("nan") if dist.get_rank() == 3 else 1.0)
    assert scaler.get_scale() == 2.0
    for name, residual in compressed.state_dict()["residuals"].items():
        assert torch.equal(residual, before[name]), name
    assert_same([[p.to_local() for p in model.parameters()]], [weights])  # type: ignore[attr-defined]
    step(2, 1.0)
    assert not all(torch.equal(r, before[n]) for n, r in compressed.state_dict()["residuals"].items())


@case
def a_nan_spoils_the_step_of_ranks_with_another_part_of_a_tensor() -> None:
    """Tensor parallelism inside each replica: rank 1 alone meets the NaN."""
    whole = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("replicate", "shard", "tensor"))
    model = nn.Sequential(nn.Linear(9, 8, bias=False))
    parallelize_module(model, whole["tensor"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=whole["replicate", "shard"])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    compressed = gw.torch.compress_all_reduce(model, "2bit:threshold=0.01", grad_scaler=scaler)
    for factor in (1.0, float("nan")):
        before = copy.deepcopy(compressed.state_dict().get("residuals"))
        poison = factor if dist.get_rank() == 1 else 1.0
        (scaler.scale(model(inputs(0))) * poison).sum().backward()
    for name, residual in compressed.state_dict()["residuals"].items():
        assert torch.equal(residual, before[name]), name


@case
def an_infinity_is_told_where_no_scaler_is() -> None:
    model = shard(Net())
    gw.torch.compress_all_reduce(model, "int8")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (model(inputs(0)).square().mean() * float("inf")).backward()
    assert any("held a NaN or an infinity" in str(w.message) for w in caught)


def fail(gradient: torch.Tensor) -> None:
    raise ArithmeticError("on purpose")


@case_from("2.13")
def a_backward_that_fails_on_all_ranks_is_over() -> None:
    for options in ({}, {"on_nonfinite": "skip_step"}, {"warm_up": [("fp16", 1)]}):
        model = shard(Net())
        gw.torch.compress_all_reduce(model, "none", **options)
        handle = model.norm.register_forward_hook(lambda module, given, out: out.register_hook(fail) and None)  # type: ignore[union-attr]
        with pytest.raises(ArithmeticError):
            plain_step()(model, 0)
        handle.remove()
        model.reset_iter_state()  # type: ignore[operator]
        true = shard(Net())
        for net in (model, true):
            net.zero_grad()
            plain_step()(net, 1)
        # A codec keeps what it has rounded off in the backward() that failed.
        allowed = 1e-3 if "warm_up" in options else 0
        torch.testing.assert_close(own_gradients(model), own_gradients(true), rtol=allowed, atol=allowed)


@case
def a_hook_of_the_script_sees_the_mean_and_may_change_it() -> None:
    def prepare(model: nn.Module) -> None:
        for module in model.modules():
            if hasattr(module, "set_all_reduce_hook"):
                module.set_all_reduce_hook(lambda total: total.mul_(0.5))

    require_torchs(plain_step(), prepare=prepare)


@case
def complex_parameters() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Parameter(torch.ones(5, 3, dtype=torch.cfloat))

        def forward(self, factor: torch.Tensor) -> torch.Tensor:
            return (self.own * factor).real.sum()

    found = []
    for codec in (None, "none", "int8:block=32"):
        model = fully_shard(Product(), mesh=mesh())
        if codec is not None:
            gw.torch.compress_all_reduce(model, codec)
        for _ in range(2):  # added up the second time
            model(torch.tensor(1 + 1j * (1 + dist.get_rank()))).backward()
        found.append(own_gradients(model)[0])
    assert torch.equal(found[1], found[0])
    torch.testing.assert_close(found[2], found[0], rtol=0.02, atol=0.02)


@case
def tied_and_wrapped_models() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.embedding = nn.Linear(9, 7, bias=False)
            self.out = nn.Linear(9, 7, bias=False)
            self.out.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.embedding(x) * self.out(2 * x)

    found = []
    for codec in (None, "none"):
        tied = Tied()
        fully_shard([tied.out, tied.embedding], mesh=mesh())
        wrapped = checkpoint_wrapper(nn.Sequential(fully_shard(tied, mesh=mesh())))
        if codec is not None:
            gw.torch.compress_all_reduce(wrapped, codec)
        wrapped(inputs(0)).sum().backward()
        found.append(own_gradients(wrapped))
    assert_same([found[0]], [found[1]])


@case
def ranks_must_agree_whichever_shard_they_have() -> None:
    model = shard(Net())
    rank = dist.get_rank()
    for options, told in (
        ({"codec": "int8" if rank else "fp16"}, "codec is"),
        ({"codec": "int8", "on_nonfinite": "warn" if rank % 2 else "ignore"}, "on_nonfinite is"),
        ({"codec": "int9" if rank == 3 else "int8"}, "unknown codec"),
        ({"codec": "int8", "codecs": {"fist.*": "none"}}, "no parameter's name matches"),
    ):
        with pytest.raises(ValueError, match=told):
            gw.torch.compress_all_reduce(model, **options)
    # Of one row, which is on the first shard's ranks alone.
    gw.torch.compress_all_reduce(model, "int8", codecs={"last.weight": "none"})
    plain_step()(model, 0)


@case
def what_cannot_be_placed_is_told_in_our_words() -> None:
    model = fully_shard(nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9)), mesh=mesh())
    gw.torch.compress_all_reduce(model, "none")
    model.set_requires_gradient_sync(False)
    model(inputs(0)).sum().backward()
    model[0].requires_grad_(False)
    model.set_requires_gradient_sync(True)
    with pytest.raises(RuntimeError, match="freeze parameters before the first microbatch of a step"):
        model(inputs(0)).sum().backward()


@case
def a_run_goes_on_to_the_bit_from_its_state() -> None:
    def steps(model: nn.Module, numbers: Iterator[int] | range) -> None:
        for number in numbers:
            model.zero_grad()
            plain_step()(model, number)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad

    codec = {"type": "nf2", "reply": "fp32"}
    whole = shard(Net())
    gw.torch.compress_all_reduce(whole, codec)
    steps(whole, range(6))
    first = shard(Net())
    compressed = gw.torch.compress_all_reduce(first, codec)
    steps(first, range(3))
    saved, weights = compressed.state_dict(), {n: p.to_local().clone() for n, p in first.named_parameters()}  # type: ignore[attr-defined]
    second = shard(Net())
    compressed = gw.torch.compress_all_reduce(second, codec)
    with torch.no_grad():
        for name, parameter in second.named_parameters():
            parameter.to_local().copy_(weights[name])  # type: ignore[attr-defined]
    compressed.load_state_dict(pickle.loads(pickle.dumps(saved)))
    steps(second, range(3, 6))
    for one, other in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(one.to_local(), other.to_local())  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"was saved by rank 7 of 8, and this is rank \d of 4"):
        compressed.load_state_dict({**saved, "place": [7, 8]})


@case_from("2.13")
def replicated_modules_are_summed() -> None:
    """torch's replicate(), which is FSDP2 without shards."""

    def gradients(codec: str | None) -> list[torch.Tensor]:
        model = Net()
        for part in (*model.children(), model):
            replicate(part, mesh=mesh()["replicate"])
        if codec is not None:
            gw.torch.compress_all_reduce(model, codec)
        plain_step()(model, 0)
        return own_gradients(model)

    true = gradients(None)
    assert_same([gradients("none")], [true])
    for one, other in zip(gradients("int8:block=32"), true, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0.02 * float(other.abs().max()))


@case
def replicas_without_shards() -> None:
    """A mesh of four replicas of one shard each."""
    line = init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))

    def gradients(codec: str | None) -> list[torch.Tensor]:
        model = Net()
        fully_shard(model, mesh=line)
        if codec is not None:
            gw.torch.compress_all_reduce(model, codec)
        plain_step()(model, 0)
        return own_gradients(model)

    # Another job than that of the other cases: this process is in one of two workers.
    with pytest.raises(ValueError, match=r"gradwire's job and rank \d of 4 in the process group"):
        gradients("none")
    assert gradients(None)


@case
def a_group_of_as_many_other_ranks_is_refused() -> None:
    """Rank 0 is the first of two in both of its groups."""
    model = fully_shard(nn.Linear(8, 8), mesh=mesh()["shard"])
    with pytest.raises(ValueError, match=r"in gradwire's job and rank|a process has one job"):
        gw.torch.compress_reduce_scatter(model, "int8", mesh().get_group("shard"))


@case
def what_is_not_replicated_is_refused() -> None:
    with pytest.raises(ValueError, match="no module of the model is sharded and has replicas"):
        gw.torch.compress_all_reduce(nn.Linear(2, 2), "int8")
    with pytest.raises(ValueError, match="no module of the model is sharded and has replicas"):
        gw.torch.compress_all_reduce(fully_shard(nn.Linear(8, 8)), "int8")
    model = shard(Net())
    with pytest.raises(ValueError, match="unknown codec"):
        gw.torch.compress_all_reduce(model, "int9")
    with pytest.raises(TypeError, match=r"model is a str, expected a torch\.nn\.Module"):
        gw.torch.compress_all_reduce("model", "int8")  # type: ignore[arg-type]
    compressed = gw.torch.compress_all_reduce(model, "int8")
    with pytest.raises(ValueError, match="is compressed already"):
        gw.torch.compress_all_reduce(model, "int8")
    for take in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"compress_all_reduce\(\) returned cannot be pickled"):
            take(compressed)


@case
def a_policy_of_the_replicas_group_compresses_their_sums() -> None:
    replicas, shards = mesh().get_group("replicate"), mesh().get_group("shard")
    true = trained("int8", plain_step())
    model = shard(Net())
    policy = gw.torch.compress_group(replicas, codec="int8", model=model)
    plain_step()(model, 0)
    assert_same([own_gradients(model)], true[:1])
    assert policy.state_of(model).state_dict()["residuals"]
    there = weakref.ref(model)
    del model
    for _ in range(3):  # autograd's nodes may go with the first
        gc.collect()
    assert there() is None
    assert_same(trained(None, plain_step()), true)  # from its first forward pass on
    gw.torch.compress_group(shards, codec="2bit")  # the replicas' group comes before it
    assert_same(trained(None, plain_step()), true)
    gw.torch.compress_group(replicas, codec="none")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exact = trained(None, plain_step())
    assert any("stay uncompressed: a process joins one gradwire job" in str(w.message) for w in caught)
    gw.torch.compress_group(shards, codec="none")
    assert_same(exact, trained(None, plain_step()))


@case
def an_error_of_one_rank_in_a_checkpoint_is_raised_on_all() -> None:
    """On those with another shard, too, which are in another job."""
    model = shard(Net())
    compressed = gw.torch.compress_all_reduce(model, "int8")
    made = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made)
    folder = Path(str(made[0]))
    odd = {"it": object()} if dist.get_rank() == 3 else None
    with pytest.raises(TypeError, match=r"rank 3: .*extra\['it'\]"):
        gw.torch.save_checkpoint(folder, model, compressed, odd)
    if dist.get_rank() == 0:
        (folder / "shard-1-of-2").write_bytes(b"no folder")
    dist.barrier()
    with pytest.raises(RuntimeError, match="shard-1-of-2"):
        gw.torch.save_checkpoint(folder, model, compressed)
    model(inputs(0)).square().mean().backward()  # and all are at the same place


if __name__ == "__main__":
    run_cases_in_a_group(backend="gradwire")  # its collectives are Gloo's
