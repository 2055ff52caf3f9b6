"""What two ranks do in torch_fsdp_test.py: FSDP2's compressed reduce-scatter beside torch's own, of any gradients.

python -m torch.distributed.run --nproc-per-node 2 torch_fsdp_cases.py
"""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import gradwire as gw
import gradwire.torch
import numpy as np
import pytest
import torch
import torch.distributed as dist
from gradwire.torch.sharded.scatter import _rounded
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from torch_programs import case, case_from, run_cases_in_a_group, warnings_of_adam


class Product(nn.Module):
    """Multiplies its input by each of its parameters."""

    def __init__(self, *parameters: torch.Tensor) -> None:
        super().__init__()
        self.own = nn.ParameterList(nn.Parameter(p) for p in parameters)

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [(p * factor).real.sum() if p.is_complex() else (p * factor).sum() for p in self.own]
        ).sum()


def gradients(
    make: Callable[[], nn.Module], codec: str | None, run: Callable[[nn.Module], torch.Tensor]
) -> list[torch.Tensor]:
    model = make()
    fully_shard(model)
    if codec is not None:
        gw.torch.compress_reduce_scatter(model, codec=codec)
    for _ in range(2):
        model.zero_grad()
        run(model).backward()
    return [p.grad.full_tensor() for p in model.parameters()]


def require_torchs(make: Callable[[], nn.Module], run: Callable[[nn.Module], torch.Tensor]) -> None:
    """Uncompressed to the bit; with a codec nearly."""
    true = gradients(make, None, run)
    for ours, theirs in zip(gradients(make, "none", run), true, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    for ours, theirs in zip(gradients(make, "int8:block=32", run), true, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02 * float(theirs.abs().max()))


COUNTED = ("bytes_raw", "bytes_encoded", "codec_seconds", "exposed_seconds")


def counted(compressed: Any, run: Callable[[], object]) -> dict[str, float]:
    """How much run() adds to these."""
    before = compressed.stats(residuals=False)
    run()
    after = compressed.stats(residuals=False)
    return {name: after[name] - before[name] for name in COUNTED}


@case
def what_sums_do_is_counted() -> None:
    """The first case, so residuals are of this model alone. Shards are of 32 elements: one block each."""
    model = Product(torch.linspace(0, 1, 64))
    fully_shard(model)
    compressed = gw.torch.compress_reduce_scatter(model, codec="int8:block=32")
    assert compressed.stats()["ratio"] is None
    x = torch.linspace(0.1, 0.7, 64) * (1 + dist.get_rank())
    codec = gw.compress.make("int8:block=32")
    payload_bytes = len(codec.encode(np.ones(32, np.float32)))
    for step in range(2):
        done = counted(compressed, lambda: model(x).backward())
        assert (done["bytes_raw"], done["bytes_encoded"]) == (4 * 64, 2 * payload_bytes), step
        assert done["codec_seconds"] > 0
        assert done["exposed_seconds"] > 0
    stats, left = compressed.stats(), compressed.state_dict()["modules"][""]["residuals"]
    assert stats["ratio"] == stats["bytes_raw"] / stats["bytes_encoded"] == 128 / payload_bytes
    np.testing.assert_allclose(stats["residual_norm"], left.double().norm().item(), rtol=1e-12)
    assert stats["residual_norm"] > 0
    assert compressed.stats(residuals=False)["residual_norm"] is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        model(x * float("nan")).backward()
    assert compressed.stats()["residual_norm"] == stats["residual_norm"]  # as before


@case
def outside_a_backward_residuals_are_read_at_once() -> None:
    """As after the last stage of a pipeline, before the next step begins."""
    model = Product(torch.ones(64))
    fully_shard(model)
    compressed = gw.torch.compress_reduce_scatter(model, codec="int8:block=32")
    (scatter,) = compressed._scatters.values()
    given = torch.linspace(0.1, 0.7, 64) * (1 + dist.get_rank())
    scatter(torch.zeros(32), given, dist.group.WORLD, dist.ReduceOp.SUM)
    squares = scatter.residual_squares()
    left = compressed.state_dict()["modules"][""]["residuals"]
    np.testing.assert_allclose(squares, left.double().square().sum().item(), rtol=1e-12)
    assert squares > 0
    assert scatter.residual_squares() == squares


@case
def without_a_codec_bytes_are_those_of_the_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        model = Product(torch.ones(64, dtype=dtype))
        fully_shard(model)
        compressed = gw.torch.compress_reduce_scatter(model, codec="none")
        done = counted(compressed, model(torch.ones(64, dtype=dtype)).backward)
        assert done["bytes_raw"] == done["bytes_encoded"] == 64 * dtype.itemsize
        assert done["codec_seconds"] == 0


@case
def complex_gradients_keep_their_imaginary_parts() -> None:
    factor = 1 + 1j * (1 + dist.get_rank())
    for dtype in (torch.cfloat, torch.cdouble):
        require_torchs(
            lambda dtype=dtype: Product(torch.ones(4, dtype=dtype), torch.ones(5, 3, dtype=dtype)),  # type: ignore[misc]
            lambda model: model(torch.tensor(factor)),
        )


@case
def float64_is_summed_in_64_bits() -> None:
    x = torch.tensor([1 + 2.0**-40, 1 / 3, 1e-60, 5.0], dtype=torch.float64) * (1 + dist.get_rank())
    require_torchs(lambda: Product(torch.ones(4, dtype=torch.float64)), lambda model: model(x))
    large = torch.tensor([1e60, 1.0], dtype=torch.float64)
    make = lambda: Product(torch.ones(2, dtype=torch.float64))  # noqa: E731
    run = lambda model: model(large)  # noqa: E731
    assert torch.equal(gradients(make, "none", run)[0], gradients(make, None, run)[0])


@case
def what_float32_cannot_hold_is_told() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (gradient,) = gradients(
            lambda: Product(torch.ones(2, dtype=torch.float64)),
            "int8",
            lambda model: model(torch.tensor([1e60, 1.0], dtype=torch.float64)),
        )
    assert bool(gradient.isnan().all())
    assert any("beyond the largest float32, 3.4e38, in which codec int8" in str(w.message) for w in caught)


@case
def half_precision_is_torchs() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.tensor([1.0, 3.0, 0.125, 200.0], dtype=dtype) * (1 + dist.get_rank())
        require_torchs(lambda dtype=dtype: Product(torch.ones(4, dtype=dtype)), lambda model, x=x: model(x))  # type: ignore[misc]


@case
def reduced_in_another_dtype() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def run(codec: str | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        fully_shard(model, mp_policy=policy)
        if codec is not None:
            gw.torch.compress_reduce_scatter(model, codec=codec)
        model(torch.full((2, 6), 0.3 + dist.get_rank())).square().sum().backward()
        return [p.grad.full_tensor() for p in model.parameters()]

    for ours, theirs in zip(run("none"), run(None), strict=True):
        assert torch.equal(ours, theirs)


@case
def huge_means_are_none() -> None:
    run = lambda model: model(torch.full((4,), 3e38))  # noqa: E731
    (gradient,) = gradients(lambda: Product(torch.ones(4)), "none", run)
    assert torch.equal(gradient, torch.full((4,), 3e38))


@case
def divide_factors() -> None:
    """torch's own reduce-scatter multiplies first on NCCL alone; the right value is the sum by the factor."""
    for codec in ("none", "int8:block=32"):
        for forced in (False, True):
            for factor in (3.0, 2.0, 1.0):
                torch.manual_seed(0)
                model = nn.Linear(4, 4)
                fully_shard(model)
                model.set_gradient_divide_factor(factor)
                if forced:
                    model.set_force_sum_reduction_for_comms(True)
                gw.torch.compress_reduce_scatter(model, codec=codec)
                model(torch.full((1, 4), 1.0 + dist.get_rank())).sum().backward()
                near = {"rtol": 1e-6 if codec == "none" else 0.02, "atol": 0.0}
                torch.testing.assert_close(
                    model.bias.grad.full_tensor(), torch.full((4,), 2 / factor), **near
                )
                torch.testing.assert_close(
                    model.weight.grad.full_tensor(), torch.full((4, 4), 3 / factor), **near
                )


class Layers(nn.Module):
    """Three layers, each sharded by itself, used in some order."""

    def __init__(self, order: tuple[int, ...], **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.order = order
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        for layer in self.layers:
            fully_shard(layer, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in self.order:
            x = self.layers[number](x).tanh()
        return x.square().sum()


def microbatches(
    codec: str | None, count: int, order: tuple[int, ...], policy: MixedPrecisionPolicy
) -> list[torch.Tensor]:
    model = Layers(order, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    if codec is not None:
        gw.torch.compress_reduce_scatter(model, codec=codec)
    for number in range(count):
        model(torch.full((2, 6), 0.1 * (1 + number) + dist.get_rank())).backward()
    return [p.grad.full_tensor() for p in model.parameters()]


@case
def means_that_come_late_are_added_to_gradients() -> None:
    """Of a layer that is used twice, of a second microbatch, and where p.grad has another dtype."""
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for order, policy in (((0, 1, 1, 2), MixedPrecisionPolicy()), ((0, 1, 2), mixed)):
        for count in (1, 2):
            given = count, order, policy
            for ours, theirs in zip(microbatches("none", *given), microbatches(None, *given), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@case
def backward_goes_on_while_sums_are_on_their_way() -> None:
    """Rank 1 begins its backward() only when rank 0's has come to the layer before the last."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    for layer in model:
        fully_shard(layer, reshard_after_forward=False)  # or torch's own collectives wait
    fully_shard(model, reshard_after_forward=False)
    gw.torch.compress_reduce_scatter(model, codec="2bit")
    signals = dist.new_group()
    between = []

    def note(gradient: torch.Tensor) -> None:
        between.append(gradient)
        dist.barrier(signals)

    x = torch.full((2, 4), 1.0 + dist.get_rank(), requires_grad=True)
    middle = model[1](model[0](x))
    if dist.get_rank() == 0:
        middle.register_hook(note)
    loss = model[2](middle).sum()
    if dist.get_rank() == 1:
        dist.barrier(signals)
    loss.backward()
    assert len(between) == 1 - dist.get_rank()
    for parameter in model.parameters():
        assert bool(parameter.grad.full_tensor().any())


@case
def hooks_of_gradients_see_the_mean() -> None:
    model = nn.Linear(4, 4, bias=False)
    fully_shard(model)
    gw.torch.compress_reduce_scatter(model, codec="none")
    seen = []
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad._local_tensor.clone()))
    model(torch.full((1, 4), 1.0 + dist.get_rank())).sum().backward()
    (shard,) = seen
    assert torch.equal(shard, torch.full_like(shard, 1.5))


def rounded(weight: torch.Tensor, spec: str) -> torch.Tensor:
    """What int8 or int4 makes of the ranks' shards of a matrix."""
    codec, ranks = gw.compress.make(spec), dist.get_world_size()
    rows = -(-len(weight) // ranks)
    padded = torch.cat([weight, weight.new_zeros(rows * ranks - len(weight), *weight.shape[1:])])
    shards = [shard.reshape(-1).contiguous().numpy() for shard in padded.split(rows)]
    values = np.concatenate([codec.decode(codec.encode(shard), shard.size) for shard in shards])
    return torch.from_numpy(values).view(padded.shape)[: len(weight)]


class Seen(nn.Module):
    """Keeps what its forward passes compute with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(7, 40))
        self.scale = nn.Parameter(torch.randn(7))
        self.table = nn.Parameter(torch.randn(3, 5, 4), requires_grad=False)
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = [p.detach().clone() for p in (self.weight, self.scale, self.table)]
        return (x @ self.weight.T * self.scale).square().sum() * self.table.sum()


@case
def weights_travel_as_codes() -> None:
    """All ranks compute with the codes, vectors are exact, and so are the shards that the optimizer steps on."""
    for spec in ("int8", "int8:block=32", "int4"):
        model, plain = Seen(), Seen()
        fully_shard(model)
        gw.torch.compress_all_gather(model, codec=spec)
        with torch.no_grad():
            for name in ("weight", "table"):
                own = getattr(plain, name)
                own.copy_(rounded(own, spec))
        x = torch.full((2, 40), 0.1 * (1 + dist.get_rank()))
        model(x).backward()
        for ours, theirs in zip(model.seen, (plain.weight, plain.scale, plain.table), strict=True):
            assert torch.equal(ours, theirs), spec
        (plain(torch.full((2, 40), 0.1)) + plain(torch.full((2, 40), 0.2))).backward()
        for name in ("weight", "scale"):  # backward() gathered them again
            mean = getattr(plain, name).grad / 2
            torch.testing.assert_close(getattr(model, name).grad.full_tensor(), mean)
        assert torch.equal(model.weight.full_tensor(), Seen().weight)


@case
def weights_of_any_sharded_model_travel_as_codes() -> None:
    """bfloat16, a layer that is gathered ahead, modules without matrices, shards of columns, a mesh after forward()."""
    from torch.distributed.tensor import Shard

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList([nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 6)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x.float().square().sum()

    of_columns = {"shard_placement_fn": lambda p: Shard(1) if p.dim() == 2 and p.shape[1] % 2 == 0 else None}
    mixed = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    whole = {"reshard_after_forward": False}
    for options in ({}, mixed, whole, of_columns):
        losses = []
        for is_compressed in (False, True):
            model = Model()
            for layer in model.layers:
                fully_shard(layer, **options)
            fully_shard(model, **options)
            model.layers[0].set_modules_to_forward_prefetch([model.layers[2]])
            if is_compressed:
                gw.torch.compress_all_gather(model)
                gw.torch.compress_reduce_scatter(model, codec="none")
            for step in range(3):
                loss = model(torch.full((4, 8), 0.5 + dist.get_rank() + step))
                loss.backward()
            losses.append(loss.item())
            gradients = [p.grad.full_tensor() for p in model.parameters()]
            together = [torch.zeros_like(each) for each in gradients]
            for mine, whole_group in zip(gradients, together, strict=True):
                whole_group.copy_(mine)
                dist.broadcast(whole_group, 0)
                assert torch.equal(mine, whole_group)
        assert losses[0] != losses[1]
        assert abs(losses[0] - losses[1]) < 0.05 * losses[0], (losses, options)


@case
def a_nan_in_a_weight_is_seen() -> None:
    model = nn.Linear(4, 4)
    fully_shard(model)
    gw.torch.compress_all_gather(model)
    with torch.no_grad():
        model.weight.to_local().fill_(float("nan"))
    assert bool(model(torch.ones(1, 4)).isnan().any())


@case
def what_cannot_encode_weights_is_named() -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(ValueError, match=r"no module of the model is an FSDPModule"):
        gw.torch.compress_all_gather(model)
    fully_shard(model)
    for spec in ("2bit", "fp16", "none", "topk:ratio=0.1"):
        with pytest.raises(ValueError, match=r"codec is '.*', expected 'int8' or 'int4'"):
            gw.torch.compress_all_gather(model, codec=spec)
    rank = dist.get_rank()
    for compress in (gw.torch.compress_all_gather, gw.torch.compress_reduce_scatter):
        with pytest.raises(ValueError, match="codec is 'int8' on rank 0 and 'int4' on rank 1; give the same"):
            compress(model, codec=("int8", "int4")[rank])
        with pytest.raises(ValueError, match="did you mean int8"):
            compress(model, codec=("int8", "int9")[rank])


@case
def another_op_is_named() -> None:
    model = nn.Linear(4, 4)
    fully_shard(model)
    compressed = gw.torch.compress_reduce_scatter(model, codec="none")
    (scatter,) = compressed._scatters.values()
    for op in (dist.ReduceOp.MAX, dist.ReduceOp(dist.ReduceOp.PRODUCT)):
        with pytest.raises(
            ValueError, match=r"op is (MAX|PRODUCT), expected SUM, AVG or PREMUL_SUM.*set_force_sum"
        ):
            scatter(torch.zeros(2), torch.zeros(4), dist.group.WORLD, op)


@case
def what_is_frozen_keeps_what_it_has_not_sent() -> None:
    """Given is delivered or left to send, whichever layers are frozen meanwhile; also of shapes that are padded."""

    def run(codec: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 33, bias=False), nn.Linear(33, 3), nn.Linear(3, 5, bias=False))
        fully_shard(model)
        gw.torch.compress_reduce_scatter(model, codec=codec)
        delivered = [torch.zeros(p.shape) for p in model.parameters()]
        for step in range(14):
            model[0].requires_grad_(not 3 <= step < 6)
            model[2].requires_grad_(not 5 <= step < 8)
            model.zero_grad()
            x = torch.randn(30, 20, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
            loss = model(x).square().sum() / 30
            (loss if step < 8 else 1e-30 * loss).backward()
            for place, parameter in enumerate(model.parameters()):
                if parameter.grad is not None:
                    delivered[place] += parameter.grad.full_tensor()
        return delivered

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        compressed, plain = run("topk:ratio=0.25"), run("none")
    for ours, true in zip(compressed, plain, strict=True):  # all is sent in the end
        torch.testing.assert_close(ours, true, rtol=1e-4, atol=1e-4)


class Poisoned(nn.Module):
    """Three layers, of which the middle one may lie in a re-entrant checkpoint, and a parameter by itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
        self.alone = Product(torch.ones(6))

    def forward(self, x: torch.Tensor, factor: float, *, is_checkpointed: bool) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            inside = is_checkpointed and number == 1
            x = checkpoint(layer, x, use_reentrant=True) if inside else layer(x)
        factors = torch.full((6,), factor, requires_grad=True)  # or FSDP reduces at the end of backward()
        return x.square().sum() + self.alone(factors)  # whose backward() comes first


def poisoned(codec: str | None) -> tuple[Poisoned, dict[str, Any]]:
    model = Poisoned()
    for module in (*model.layers, model.alone):
        fully_shard(module)
    fully_shard(model)
    if codec is None:
        return model, {}
    return model, gw.torch.compress_reduce_scatter(model, codec=codec, on_nonfinite="skip_step")._scatters


def data(step: int) -> torch.Tensor:
    return torch.randn(5, 12, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


@case_from("2.13")
def a_veto_ends_with_a_backward_that_raises() -> None:
    """All that later steps give is delivered in the end, though the step before met a NaN, and then raised an error."""

    def run(codec: str) -> list[torch.Tensor]:
        model, scatters = poisoned(codec)
        delivered = [torch.zeros(p.shape) for p in model.parameters()]
        for step in range(16):
            model.zero_grad()
            if step == 3:

                def fail(gradient: torch.Tensor) -> None:
                    raise RuntimeError("a bomb")

                x = data(step).requires_grad_()
                x.register_hook(fail)
                before = {name: scatter.state() for name, scatter in scatters.items()}
                loss = model(x, float("nan"), is_checkpointed=False)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    with pytest.raises(RuntimeError, match="a bomb"):
                        loss.backward()
                model.reset_iter_state()
                for name, scatter in scatters.items():
                    assert same_residuals(scatter.state(), before[name]), name
                continue
            loss = model(data(step), 2.0, is_checkpointed=False)
            (loss if step < 6 else 1e-30 * loss).backward()
            for place, parameter in enumerate(model.parameters()):
                delivered[place] += parameter.grad.full_tensor()
        return delivered

    for ours, true in zip(run("topk:ratio=0.25"), run("none"), strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-4, atol=1e-4)


@case
def a_veto_holds_for_the_outermost_backward() -> None:
    """A re-entrant checkpoint runs a backward() inside one that has met a NaN, and ends before that."""
    model, scatters = poisoned("topk:ratio=0.25")
    for step, factor in enumerate((2.0, float("nan"), 2.0)):
        model.zero_grad()
        before = {name: scatter.state() for name, scatter in scatters.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            model(data(step).requires_grad_(), factor, is_checkpointed=True).backward()
        for name in ("layers.0", "layers.1", "layers.2", "alone"):  # the root has no parameters of its own
            taken_back = same_residuals(scatters[name].state(), before[name])
            assert taken_back == (step == 1), (step, name)


@case
def leftovers_that_meet_a_nan_are_sent_again() -> None:
    """After a change to codec "none": in whichever module, and on whichever rank, the NaN is."""

    def run(*, is_bad: bool) -> list[torch.Tensor]:
        model, scatters = poisoned("topk:ratio=0.25")
        model(data(0), 2.0, is_checkpointed=False).backward()
        saved = {name: scatter.state() for name, scatter in scatters.items()}
        model, scatters = poisoned("none")
        for name, scatter in scatters.items():
            scatter.load(saved[name], is_own=True)
        if is_bad:
            model(data(1), float("nan") if dist.get_rank() == 1 else 2.0, is_checkpointed=False).backward()
            model.zero_grad()
        model(data(2), 2.0, is_checkpointed=False).backward()
        assert not any(scatter.residual_squares() for scatter in scatters.values())
        return [p.grad.full_tensor() for p in model.parameters()]

    for after, without in zip(run(is_bad=True), run(is_bad=False), strict=True):
        assert torch.equal(after, without)


@case
def where_nothing_is_taken_back_a_module_without_a_nan_goes_on() -> None:
    for choice in ("warn", "ignore"):
        model = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12))
        for layer in model:
            fully_shard(layer)
        compressed = gw.torch.compress_reduce_scatter(model, codec="topk:ratio=0.25", on_nonfinite=choice)
        model(data(0)).square().sum().backward()
        before = compressed.state_dict()["modules"]
        model[1].register_full_backward_hook(lambda *_: (torch.full((5, 12), float("nan")),))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model(data(1)).square().sum().backward()
        assert any("held a NaN" in str(w.message) for w in caught) == (choice == "warn")
        after = compressed.state_dict()["modules"]
        assert torch.equal(after["0"]["residuals"], before["0"]["residuals"])
        assert not torch.equal(after["1"]["residuals"], before["1"]["residuals"])
        assert all(scatter._kept is scatter._state for scatter in compressed._scatters.values())


@case
def residuals_in_bfloat16_take_half_and_lose_little() -> None:
    made = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = nn.Linear(12, 12)
        fully_shard(model)
        made[dtype] = model, gw.torch.compress_reduce_scatter(model, "topk:ratio=0.25", residual_dtype=dtype)
    states = {}
    for dtype, (model, compressed) in made.items():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.1)
        for step in range(3):
            model(data(step)).square().sum().backward()
        (scatter,) = compressed._scatters.values()
        assert {residual.dtype for residual in scatter._state.residuals} == {dtype}
        states[dtype] = compressed.state_dict()
        compressed.load_state_dict(states[dtype])
        assert torch.equal(
            compressed.state_dict()["modules"][""]["residuals"], states[dtype]["modules"][""]["residuals"]
        )
    whole, half = (states[dtype]["modules"][""]["residuals"] for dtype in made)
    assert half.dtype == torch.float32
    assert torch.equal(half.bfloat16().float(), half)
    assert not torch.equal(half, whole)
    beyond = torch.tensor(torch.finfo(torch.float32).max)
    assert float(_rounded(beyond, torch.bfloat16)) == torch.finfo(torch.bfloat16).max
    torch.testing.assert_close(half, whole, rtol=0.02, atol=0.02 * float(whole.abs().max()))


@case
def without_residuals_a_step_is_as_the_first() -> None:
    for codec in ("topk:ratio=0.25", "int8"):  # codecs without scales that follow the gradients
        model = nn.Linear(12, 12)
        fully_shard(model)
        compressed = gw.torch.compress_reduce_scatter(
            model, codec, residual_dtype="none", on_nonfinite="skip_step"
        )
        gradients = []
        for _ in range(4):
            model.zero_grad()
            model(data(0)).square().sum().backward()
            gradients.append([parameter.grad.to_local() for parameter in model.parameters()])
        assert all(map(torch.equal, gradients[0], gradients[3]))
        assert compressed._scatters[""].residual_squares() == 0
        state = compressed.state_dict()
        assert state["modules"][""]["residuals"].numel() == 0
        compressed.load_state_dict(state)
        model.zero_grad()
        model(data(0)).square().sum().backward()
        assert all(
            torch.equal(g, p.grad.to_local()) for g, p in zip(gradients[3], model.parameters(), strict=True)
        )


@case
def residuals_may_come_and_go_with_a_checkpoint() -> None:
    states = {}
    for dtype in (torch.float32, "none"):
        model = nn.Linear(12, 12)
        fully_shard(model)
        compressed = gw.torch.compress_reduce_scatter(model, "int8", residual_dtype=dtype)
        for other in states.values():  # of another dtype
            compressed.load_state_dict(other)
        model(data(0)).square().sum().backward()
        states[dtype] = compressed.state_dict()
        assert (compressed._scatters[""].residual_squares() > 0) == (dtype != "none")
    model = nn.Linear(12, 12)
    fully_shard(model)
    compressed = gw.torch.compress_reduce_scatter(model, "int8", residual_dtype=torch.float32)
    compressed.load_state_dict(states["none"])
    model(data(0)).square().sum().backward()
    assert compressed._scatters[""].residual_squares() > 0


@case
def the_environment_has_the_dtype_of_residuals() -> None:
    for named, dtypes in (("bfloat16", {torch.bfloat16}), ("none", set())):
        model = nn.Linear(12, 12)
        fully_shard(model)
        with mock.patch.dict(os.environ, GRADWIRE_RESIDUAL_DTYPE=named):
            compressed = gw.torch.compress_reduce_scatter(model, "int8")
        model(data(0)).square().sum().backward()
        (scatter,) = compressed._scatters.values()
        assert {residual.dtype for residual in scatter._state.residuals} == dtypes


def same_residuals(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one["residuals"], other["residuals"])


class Words(nn.Module):
    """An embedding and two layers; the gradient of what the embedding gives may become NaN."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.first, self.last = nn.Embedding(9, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, step: int, extra: torch.Tensor, *, is_bad: bool = False) -> torch.Tensor:
        random = torch.Generator().manual_seed(100 * step + dist.get_rank())
        given = self.table(torch.randint(0, 9, (6,), generator=random))
        if is_bad:
            given.register_hook(lambda gradient: gradient * float("nan"))
        loss = self.last(self.first(given + extra)).square().mean()
        return loss if step < 6 else 1e-30 * loss


Step = Callable[[Words, int], bool]
"""Runs a step's backward(); returns whether the step is taken."""


def require_delivered(run: Step, *, has_root: bool = True) -> None:
    """What 16 steps give in all, of which the last ten have next to no gradient of their own, is what "none" gives."""

    def sums(codec: str) -> list[torch.Tensor]:
        model = Words()
        for layer in (model.first, model.last, model if has_root else model.table):
            fully_shard(layer)
        gw.torch.compress_reduce_scatter(model, codec=codec, on_nonfinite="skip_step")
        found = [torch.zeros(p.shape) for p in model.parameters()]
        for step in range(16):
            model.zero_grad()
            if run(model, step):
                for total, parameter in zip(found, model.parameters(), strict=True):
                    total += parameter.grad.full_tensor()
        return found

    for ours, true in zip(sums("topk:ratio=0.25"), sums("none"), strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-4, atol=1e-5)


@case
def gradients_of_an_input_take_no_residual_away() -> None:
    """autograd.grad() of something else than parameters, whose p.grad the script throws away."""

    def run(model: Words, step: int) -> bool:
        extra = torch.zeros(12, requires_grad=True)
        torch.autograd.grad(model(step, extra), extra)
        model.zero_grad()
        model(step, torch.zeros(12)).backward()
        return True

    require_delivered(run)


@case
def a_nan_in_one_of_several_roots_restores_all() -> None:
    """FSDP reduces the embedding, whose input has no gradient, in a callback at the end of backward()."""

    def run(model: Words, step: int) -> bool:
        is_bad = step in (1, 3)
        model(step, torch.zeros(12), is_bad=is_bad).backward()
        return not is_bad

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for has_root in (True, False):
            require_delivered(run, has_root=has_root)


@case_from("2.13")
def a_pipeline_reduces_after_its_backward_passes() -> None:
    """As torch.distributed.pipelining's stages do, which divide p.grad right afterwards."""

    def run(model: Words, step: int) -> bool:
        switches = (
            model.set_is_last_backward,
            model.set_reshard_after_backward,
            model.set_requires_gradient_sync,
        )
        for switch in switches:
            switch(False)
        for _ in range(2):
            model(step, torch.zeros(12)).backward()
        for switch in switches:
            switch(True)
        root = fully_shard.state(model)
        for state in root._state_ctx.all_states:
            for group in state._fsdp_param_groups:
                group.post_backward()
        root._root_post_backward_final_callback()
        for parameter in model.parameters():
            parameter.grad.div_(2)
        return True

    require_delivered(run)


@case
def a_checkpoint_that_saves_operations_does_not_save_ours() -> None:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(256, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.linear(x).abs() * x).round().where(x > 0, x)

    def save(*_: Any, **__: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE

    def run(context: dict[str, Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Block()
        fully_shard(model)
        gw.torch.compress_all_gather(model)
        x = torch.randn(
            256, 256, generator=torch.Generator().manual_seed(dist.get_rank()), requires_grad=True
        )
        checkpoint(model, x, use_reentrant=False, **context).square().sum().backward()
        return [x.grad, *(p.grad.full_tensor() for p in model.parameters())]

    saved = {"context_fn": lambda: create_selective_checkpoint_contexts(save)}
    for ours, plain in zip(run(saved), run({}), strict=True):
        assert torch.equal(ours, plain)


@case
def adam_with_few_levels_warns_in_its_first_step() -> None:
    def steps(
        codec: str, kind: type[torch.optim.Optimizer] = torch.optim.AdamW, *, from_meta: bool = False
    ) -> None:
        with torch.device("meta" if from_meta else "cpu"):
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        gw.torch.compress_reduce_scatter(model, codec=codec)
        if from_meta:  # FSDP has other parameters then
            model.to_empty(device="cpu")
            for parameter in model.parameters():
                nn.init.ones_(parameter)
        optimizer = kind(model.parameters(), lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    (text,) = warnings_of_adam(lambda: steps("2bit"))
    assert "AdamW loses accuracy with the codec 2bit" in text
    assert len(warnings_of_adam(lambda: steps("1bit", from_meta=True))) == 1
    assert warnings_of_adam(lambda: steps("2bit", torch.optim.SGD)) == []
    assert warnings_of_adam(lambda: steps("int8")) == []


@case
def what_is_wrong_with_a_call_is_said() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(model[0])
    gw.torch.compress_reduce_scatter(model, codec="int8")
    with pytest.raises(ValueError, match="is compressed already; call it once for a model"):
        gw.torch.compress_reduce_scatter(model, codec="int8")
    fully_shard(model)
    with pytest.warns(UserWarning, match="was called on the model itself after compress_reduce_scatter"):
        model(torch.ones(1, 4)).sum().backward()
    for compress in (gw.torch.compress_reduce_scatter, gw.torch.compress_all_gather):
        for wrong in (None, [model]):
            with pytest.raises(TypeError, match=r"model is a (NoneType|list), expected a torch.nn.Module"):
                compress(wrong, codec="int8")
    with pytest.raises(ValueError, match="on_nonfinite='never': expected warn, skip_step or ignore"):
        gw.torch.compress_reduce_scatter(fully_shard(nn.Linear(4, 4)), "int8", on_nonfinite="never")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"residual_dtype=torch\.float16: expected torch\.float32, torch\.bfloat16 or 'none'"
    ):
        gw.torch.compress_reduce_scatter(fully_shard(nn.Linear(4, 4)), "int8", residual_dtype=torch.float16)
    own = torch.bfloat16 if dist.get_rank() else torch.float32
    with pytest.raises(ValueError, match="residual_dtype is"):
        gw.torch.compress_reduce_scatter(fully_shard(nn.Linear(4, 4)), "int8", residual_dtype=own)
    with pytest.raises(TypeError, match="process_group is a int, expected"):
        gw.torch.compress_reduce_scatter(fully_shard(nn.Linear(4, 4)), "int8", 3)


@case
def optimizers_refuse_parameters_of_which_ranks_have_parts() -> None:
    def flat(*, use_orig_params: bool) -> nn.Module:
        return FullyShardedDataParallel(
            nn.Linear(4, 4), use_orig_params=use_orig_params, device_id=torch.device("cpu")
        )

    sharded = fully_shard(nn.Linear(4, 4))
    for model, what in (
        (sharded, r"'weight' is a DTensor, as of fully_shard\(\)"),
        (flat(use_orig_params=False), r"'_fsdp_wrapped_module._flat_param' is a part of a flat parameter"),
        (flat(use_orig_params=True), r"'_fsdp_wrapped_module.weight' is a part of a flat parameter"),
    ):
        text = what + r".* of which each rank has the whole; .*compress_reduce_scatter\(\)"
        with pytest.raises(ValueError, match=text):
            gw.torch.DistributedOptimizer(torch.optim.SGD(model.parameters()), model.named_parameters())
        with pytest.raises(ValueError, match=text):
            gw.torch.LocalStepOptimizer(
                torch.optim.SGD(model.parameters()), model.named_parameters(), sync_every=2
            )
    optimizer = gw.torch.DistributedOptimizer(torch.optim.SGD(nn.Linear(4, 4).parameters()))
    with pytest.raises(ValueError, match="is a DTensor"):
        optimizer.add_param_group({"params": list(sharded.parameters())})
    optimizer.close()


@case
def pickling_is_refused_by_name() -> None:
    model = nn.Linear(4, 4)
    fully_shard(model)
    compressed = gw.torch.compress_reduce_scatter(model, codec="int8")
    for take in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"compress_reduce_scatter\(\) returned cannot be pickled"):
            take(compressed)


if __name__ == "__main__":
    run_cases_in_a_group()
