"""Whatever a user does to the memory of p.grad, gradients go on being exchanged, and the engine writes nowhere else."""

from __future__ import annotations

import copy
import multiprocessing.reduction
from collections.abc import Callable, Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.multiprocessing
from gradwire.torch.slots import runs_of
from python.two_ranks import OneProcess, batch, require_equal, run_two, seeded, warnings_of_two, wrapped
from torch import nn
from torch.optim.swa_utils import AveragedModel

SWAPPING = "swap_module_params_on_conversion"


def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return model(batch(rank, step, 2, 3, 5, 5).to(next(model.parameters()).dtype) + rank).square().mean()


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def half(model: nn.Module) -> None:
    model.half()
    model.float()


def swapped(model: nn.Module) -> None:
    model.bfloat16()
    model.float()


def channels_last(model: nn.Module) -> None:
    model.to(memory_format=torch.channels_last)


def share(model: nn.Module) -> None:
    model.share_memory()


def each(change: Callable[[torch.Tensor], None]) -> Callable[[nn.Module], None]:
    def change_all(model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                change(parameter.grad)

    return change_all


def give_data(gradient: torch.Tensor) -> None:
    gradient.data = gradient.clone()


def set_storage(gradient: torch.Tensor) -> None:
    values = gradient.clone()
    gradient.set_(values.untyped_storage(), 0, values.shape, values.stride())


def queue(gradient: torch.Tensor) -> None:
    """What a queue of torch.multiprocessing does to send a tensor to another process."""
    multiprocessing.reduction.ForkingPickler.dumps(gradient)


def share_gradient(gradient: torch.Tensor) -> None:
    gradient.share_memory_()


def deepcopy(model: nn.Module) -> None:
    copy.deepcopy(model)


def average(model: nn.Module) -> None:
    AveragedModel(model).update_parameters(model)


def shrink(gradient: torch.Tensor) -> None:
    gradient.resize_(0)


WAYS: dict[str, Callable[[nn.Module], None]] = {
    "half": half,
    "swapped": swapped,
    "channels_last": channels_last,
    "share": share,
    "share p.grad": each(share_gradient),
    "data": each(give_data),
    "set_": each(set_storage),
    "resize_": each(shrink),
    "queue": each(queue),
    "deepcopy": deepcopy,
    "EMA": average,
}


@pytest.fixture
def swapping() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def train(how: str, store: gw.kv.KVStore, *, set_to_none: bool, **options: Any) -> None:
    model = seeded(lambda: nn.Conv2d(3, 4, 3))
    make = momentum if options.get("momentum_correction") else None
    one = OneProcess(model, loss, *([make] if make else []))
    optimizer = wrapped(model, store, *([make] if make else []), **options)
    for step in range(6):
        optimizer.zero_grad(set_to_none)
        loss(model, store.rank, step).backward()
        optimizer.step()
        one.step(step)
        if step in (1, 2):  # p.grad is still there
            optimizer.synchronize()
            for each_model in (model, one.model):
                WAYS[how](each_model)
            if how == "resize_":
                optimizer.zero_grad()
    optimizer.synchronize()
    if options.get("momentum_correction"):  # equal in exact arithmetic
        for ours, theirs in zip(model.parameters(), one.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)
    else:
        require_equal(model, one.model)
    optimizer.close()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("how", list(WAYS))
def test_memory_that_moves_after_a_step(how: str, set_to_none: bool) -> None:
    run_two(lambda store: train(how, store, set_to_none=set_to_none))


@pytest.mark.parametrize("how", list(WAYS))
@pytest.mark.parametrize("options", [{"overlap_step": True}, {"momentum_correction": True}], ids=str)
def test_so_too_with(how: str, options: dict[str, Any]) -> None:
    run_two(lambda store: train(how, store, set_to_none=True, **options))


@pytest.mark.parametrize("how", ["swapped", "half", "channels_last"])
@pytest.mark.parametrize("options", [{}, {"overlap_step": True}], ids=str)
def test_conversions_that_swap_parameters(swapping: None, how: str, options: dict[str, Any]) -> None:
    """By which torch takes all hooks of a parameter away."""
    run_two(lambda store: train(how, store, set_to_none=True, **options))


@pytest.mark.parametrize("how", ["share p.grad", "queue", "data", "set_"])
def test_memory_that_moves_between_backward_and_step(how: str) -> None:
    """The means are here then, and are not exchanged again: rank 1 leaves its gradients alone."""

    def body(store: gw.kv.KVStore) -> None:
        model = seeded(lambda: nn.Conv2d(3, 4, 3))
        one = OneProcess(model, loss)
        optimizer = wrapped(model, store)
        for step in range(4):
            optimizer.zero_grad()
            loss(model, store.rank, step).backward()
            if store.rank == 0:
                WAYS[how](model)
            optimizer.step()
            one.step(step)
        require_equal(model, one.model)
        optimizer.close()

    run_two(body)


def test_memory_that_is_moved_while_a_sum_is_on_its_way() -> None:
    """The user still has the gradient of the step before, which was the slot's memory."""

    def body(store: gw.kv.KVStore) -> None:
        model = seeded(lambda: nn.Conv2d(3, 4, 3))
        one = OneProcess(model, loss)
        optimizer = wrapped(model, store, overlap_step=True)
        kept: list[torch.Tensor] = []
        for step in range(5):
            if step > 0:
                optimizer.synchronize()
                kept += [p.grad for p in model.parameters()]
            optimizer.zero_grad(set_to_none=False)
            loss(model, store.rank, step).backward()
            for gradient in kept:
                gradient.share_memory_()
                gradient.untyped_storage().resize_(0) if gradient.untyped_storage().resizable() else None
            optimizer.step()
            one.step(step)
        optimizer.synchronize()
        require_equal(model, one.model)
        optimizer.close()

    run_two(body)


def test_a_gradient_that_is_kept_outlives_optimizer_and_store() -> None:
    kept: list[torch.Tensor] = []

    def body(store: gw.kv.KVStore) -> None:
        model = nn.Linear(3, 2)
        optimizer = wrapped(model, store)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.close()
        kept.append(model.weight.grad)

    run_two(body)
    assert all(torch.equal(gradient, torch.ones(2, 3)) for gradient in kept)


def test_no_gradient_can_reach_the_engines_storage() -> None:
    """Two views of one memory: what is done to the storage of one leaves the other where it is."""

    def body(store: gw.kv.KVStore) -> None:
        model = nn.Linear(3, 2)
        optimizer = wrapped(model, store)
        model(torch.ones(1, 3)).sum().backward()
        before = model.weight.grad.data_ptr()
        with pytest.raises(RuntimeError, match="not resizable"):
            model.weight.grad.resize_(1000)  # which leaves it of that shape
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        model.weight.grad.share_memory_()
        assert model.weight.grad.data_ptr() != before
        optimizer.zero_grad(set_to_none=False)
        model(torch.ones(1, 3)).sum().backward()
        assert model.weight.grad.data_ptr() == before  # the slot has not moved
        optimizer.close()

    run_two(body)


@pytest.mark.parametrize("fused", [False, True])
def test_a_parameter_that_does_not_lie_in_order(fused: bool) -> None:
    """torch's fused optimizers go through parameter and gradient in the order of memory, so they must lie alike."""

    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 6).t())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ self.weight)

    def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
        return model(batch(rank, step, 5, 6)).square().sum()

    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.1, fused=fused)

    def body(store: gw.kv.KVStore) -> None:
        model = seeded(Transposed)
        assert not model.weight.is_contiguous()
        one = OneProcess(model, loss_of, adam)
        optimizer = wrapped(model, store, adam)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, store.rank, step).backward()
            optimizer.step()
            one.step(step)
        require_equal(model, one.model)
        optimizer.close()

    run_two(body)


def test_a_parameter_of_another_shape_is_named() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = nn.Linear(3, 2)
        optimizer = wrapped(model, store)
        model.bias.data = torch.zeros(1)
        assert isinstance(optimizer, torch.optim.SGD)
        with pytest.raises(
            ValueError,
            match=r"'bias' is torch.float32 of shape \(1,\), and the parameter held real numbers of shape \(2,\)",
        ):
            model(torch.ones(1, 3)).sum().backward()

    run_two(body)


@pytest.mark.parametrize("options", [{}, {"overlap_step": True}], ids=str)
@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float32", "bfloat16"), ("float32", "float64")])
def test_gradients_of_another_dtype_than_their_parameter(
    dtypes: tuple[str, str], options: dict[str, Any]
) -> None:
    own, of_gradient = (getattr(torch, name) for name in dtypes)
    if not hasattr(torch.Tensor, "grad_dtype"):
        pytest.skip("this PyTorch has no grad_dtype")

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 3, dtype=own))
            self.weight.grad_dtype = of_gradient

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.t().to(x.dtype)

    def body(store: gw.kv.KVStore) -> None:
        model = Linear()
        optimizer = wrapped(model, store, **options)
        for set_to_none in (True, False):
            optimizer.zero_grad(set_to_none)
            model(torch.full((1, 3), float(store.rank + 1), dtype=own)).sum().backward()
            optimizer.synchronize()
            assert model.weight.grad.dtype == of_gradient
            assert torch.equal(model.weight.grad, torch.full((2, 3), 1.5, dtype=of_gradient))
        optimizer.close()

    run_two(body)


# ------------------------------------------------------------------------------------- gradients of 16 bits


def bfloat16_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 300)).bfloat16()


def bfloat16_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return model(batch(rank, step, 2, 4).bfloat16()).float().square().mean()


def addresses(model: nn.Module) -> list[int]:
    return [parameter.grad.data_ptr() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("options", [{}, {"overlap_step": True}], ids=str)
def test_gradients_of_bfloat16_are_their_slots(options: dict[str, Any]) -> None:
    """There is no float32 copy: what p.grad is stays where it is from step to step."""

    def body(store: gw.kv.KVStore) -> None:
        model = seeded(bfloat16_model)
        optimizer = wrapped(model, store, **options)
        known = []
        for step in range(3):
            optimizer.zero_grad()
            bfloat16_loss(model, store.rank, step).backward()
            optimizer.synchronize()
            known.append(addresses(model))
            optimizer.step()
        assert known[0] == known[1] == known[2]
        optimizer.close()

    run_two(body)


def backward_to(model: nn.Module, gradients: list[torch.Tensor]) -> None:
    """Runs a backward() that brings these."""
    products = [
        (parameter * gradient.to(parameter.dtype)).sum()
        for parameter, gradient in zip(model.parameters(), gradients, strict=True)
    ]
    torch.stack(products).sum().backward()


@pytest.mark.parametrize("codec", ["none", "int8", "2bit"])
def test_means_of_bfloat16_are_those_of_float32_rounded(codec: str) -> None:
    def body(store: gw.kv.KVStore) -> None:
        own, wide = seeded(bfloat16_model), seeded(bfloat16_model).float()
        optimizers = [wrapped(model, store, compression=codec) for model in (own, wide)]
        for step in range(4):
            given = [
                batch(store.rank, 10 * step + index, *parameter.shape).bfloat16()
                for index, parameter in enumerate(own.parameters())
            ]
            for model, optimizer in zip((own, wide), optimizers, strict=True):
                optimizer.zero_grad()
                backward_to(model, given)
                optimizer.synchronize()
            for narrow, exact, mine in zip(own.parameters(), wide.parameters(), given, strict=True):
                assert torch.equal(narrow.grad, exact.grad.bfloat16())
                assert not torch.equal(narrow.grad, mine)
        for optimizer in optimizers:
            optimizer.close()

    run_two(body)


def test_slots_are_of_float32_where_more_than_a_codec_computes_with_them() -> None:
    def body(store: gw.kv.KVStore) -> None:
        for options in (
            {"momentum_correction": True},
            {"row_column_scales": True},
            {"grad_scaler": torch.amp.GradScaler("cpu")},
        ):
            model = seeded(bfloat16_model)
            optimizer = wrapped(model, store, momentum, **options)
            bfloat16_loss(model, store.rank, 0).backward()
            before = addresses(model)
            optimizer.synchronize()
            assert addresses(model) == before  # no slot has taken the place of any
            optimizer.close()

    run_two(body)


def test_a_parameter_whose_gradients_may_be_of_any_dtype_has_a_slot_of_float32() -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    if not hasattr(parameter, "grad_dtype"):
        pytest.skip("this PyTorch has no grad_dtype")
    for any_dtype, expected in ((False, torch.bfloat16), (True, torch.float32)):
        if any_dtype:
            parameter.grad_dtype = None
        (run,) = runs_of([parameter], torch.device("cpu"), keeps_halves=True)
        assert run.dtype == expected


@pytest.mark.parametrize("later", [torch.float32, torch.float16], ids=str)
def test_a_model_that_is_given_another_dtype_later_is_told_that_it_is_rounded(later: torch.dtype) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = seeded(bfloat16_model)
        optimizer = wrapped(model, store)
        model.to(later)
        backward_to(model, [torch.full_like(parameter, 1 / 3) for parameter in model.parameters()])
        optimizer.synchronize()
        assert torch.equal(model[0].bias.grad, torch.full((300,), 1 / 3).bfloat16().to(later))
        optimizer.close()

    told = warnings_of_two(body)
    assert len(told) == 2
    assert all(f"is {later}, and was torch.bfloat16 when its optimizer was made" in text for text in told)
