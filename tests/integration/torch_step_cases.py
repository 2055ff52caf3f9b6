"""What two ranks do in torch_ranks_test.py where a step does not end as it should: backward() raises, an epoch ends
within a step, a NaN meets momentum. torch_cases.py runs these.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_programs import case

TWO_BIT = "2bit:threshold=0.001"


def layers(width: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))


def wrap(model: nn.Module, store: gw.kv.KVStore, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), store=store, **options)


def wrap_momentum(model: nn.Module, store: gw.kv.KVStore, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    return gw.torch.DistributedOptimizer(
        optimizer, model.named_parameters(), store=store, momentum_correction=True, **options
    )


def numbers(store: gw.kv.KVStore, seed: int, width: int = 6) -> torch.Tensor:
    return torch.randn(4, width, generator=torch.Generator().manual_seed(10 * seed + store.rank))


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def require_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def require_one(store: gw.kv.KVStore, tensors: list[torch.Tensor]) -> None:
    """All ranks hold the same bits, and all are numbers."""
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
    blob = b"".join(tensor.detach().double().contiguous().numpy().tobytes() for tensor in tensors)
    assert len(set(store.engine.all_gather("tensors", blob))) == 1


# ---- backward() raises -------------------------------------------------------------------------------------------


class Fuse(torch.autograd.Function):
    blown = False

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if Fuse.blown:
            raise RuntimeError("the fuse has blown")
        return gradient


def loss_of(model: nn.Module, store: gw.kv.KVStore, seed: int) -> torch.Tensor:
    weight = model[0].weight
    x = numbers(store, seed, weight.shape[1]).to(weight.dtype)
    return model[1](Fuse.apply(model[0](x))).square().mean()


def backward(model: nn.Module, store: gw.kv.KVStore, seed: int, *, fails: bool) -> None:
    """Half of the gradients are there when it fails."""
    Fuse.blown = fails
    try:
        loss_of(model, store, seed).backward()
    except RuntimeError as error:
        assert "the fuse" in str(error)  # noqa: PT017
        assert fails
    else:
        assert not fails
    finally:
        Fuse.blown = False


@case
def backward_that_raises(store: gw.kv.KVStore) -> None:
    """Half of a step was sent when rank 0, or every rank, failed: nobody hangs, nobody takes that step, and the next
    one is as if it had not been; whatever p.grad held.
    """

    def train(
        failing: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        *,
        set_to_none: bool = True,
        accumulates: bool = False,
    ) -> list[torch.Tensor]:
        model = layers(300).to(dtype)
        optimizer = wrap(model, store, compression=TWO_BIT, on_nonfinite="skip_step")
        for step in range(4):
            if step == 2 and not failing:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                optimizer.zero_grad(set_to_none=set_to_none)
                if accumulates:
                    with optimizer.no_sync():
                        backward(model, store, step + 10, fails=False)
                backward(model, store, step, fails=step == 2 and store.rank in failing)
                optimizer.step()
        require_one(store, weights_of(model))
        optimizer.close()
        return weights_of(model)

    for given in (
        {},
        {"dtype": torch.float64},
        {"dtype": torch.bfloat16, "set_to_none": False},
        {"set_to_none": False},
        {"accumulates": True},
    ):
        undisturbed = train((), **given)
        for failing in ((0,), (0, 1)):
            require_equal(train(failing, **given), undisturbed)
    store.set_gradient_compression("none")


@case
def backward_that_raises_where_a_parameter_thaws(store: gw.kv.KVStore) -> None:
    model = layers()
    model[0].bias.requires_grad_(False)
    optimizer = wrap(model, store, on_nonfinite="skip_step")
    for step in range(4):
        model[0].bias.requires_grad_(step >= 2)
        before = weights_of(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            optimizer.zero_grad()
            backward(model, store, step, fails=step == 2 and store.rank == 0)
            optimizer.step()
        stayed = all(torch.equal(a, b) for a, b in zip(before, weights_of(model), strict=True))
        assert stayed == (step == 2)
        require_one(store, weights_of(model))
    optimizer.close()


@case
def the_rank_whose_backward_raises_steps_as_the_others(store: gw.kv.KVStore) -> None:
    """Where no step is vetoed: a lossy codec makes nothing of NaNs, so the others have a mean and step on it."""
    for overlap_step in (False, True):
        model = layers()
        optimizer = wrap(model, store, compression=TWO_BIT, codecs={"*": TWO_BIT}, overlap_step=overlap_step)
        for step in range(4):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                optimizer.zero_grad()
                backward(model, store, step, fails=step == 2 and store.rank == 0)
                optimizer.step()
                optimizer.synchronize()
            require_one(store, weights_of(model))
        optimizer.close()
    store.set_gradient_compression("none")


@case
def backward_that_raises_in_an_early_pass(store: gw.kv.KVStore) -> None:
    """It counts as one, so that ranks go on sending after the same passes."""
    model = layers()
    optimizer = wrap(model, store, backward_passes_per_step=2)
    for number in range(6):
        backward(model, store, number, fails=number == 2 and store.rank == 0)
        if number % 2 == 1:
            require_one(store, [p.grad for p in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
    require_one(store, weights_of(model))
    optimizer.close()


# ---- an epoch ends within a step ---------------------------------------------------------------------------------


@case
def step_before_all_passes(store: gw.kv.KVStore) -> None:
    """It sends what there is, as DistributedDataParallel does where the last batches are not in no_sync()."""
    for overlap_step in (False, True):
        ours = layers()
        theirs = DistributedDataParallel(copy.deepcopy(ours))
        optimizer = wrap(ours, store, backward_passes_per_step=2, overlap_step=overlap_step)
        oracle = torch.optim.SGD(theirs.parameters(), lr=0.1)
        for epoch in range(2):
            for batch in range(5):
                x = numbers(store, 5 * epoch + batch)
                ends = batch in (1, 3, 4)
                with contextlib.nullcontext() if ends else theirs.no_sync():
                    theirs(x).square().mean().backward()
                ours(x).square().mean().backward()
                if ends:
                    for each in (optimizer, oracle):
                        each.step()
                        each.zero_grad()
        require_equal(weights_of(ours), weights_of(theirs))
        optimizer.close()


@case
def closures_of_too_few_passes(store: gw.kv.KVStore) -> None:
    model = layers()
    inner = torch.optim.LBFGS(model.parameters(), max_iter=3)
    optimizer = gw.torch.DistributedOptimizer(
        inner, model.named_parameters(), store=store, backward_passes_per_step=2
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(numbers(store, 0)).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
        require_one(store, weights_of(model))
    optimizer.close()


@case
def step_before_all_passes_of_scaled_losses_is_refused(store: gw.kv.KVStore) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    model = layers()
    optimizer = wrap(model, store, backward_passes_per_step=2, grad_scaler=scaler)
    before = weights_of(model)
    scaler.scale(model(numbers(store, 0)).square().mean()).backward()
    with pytest.raises(RuntimeError, match=r"step\(\) after 1 of 2 calls of backward\(\)"):
        scaler.step(optimizer)
    require_equal(weights_of(model), before)
    optimizer.close()


@case
def joining_within_a_step(store: gw.kv.KVStore) -> None:
    """The next epoch begins with a new step on all ranks."""
    model = layers()
    optimizer = wrap(model, store, backward_passes_per_step=2)
    for _ in range(3 if store.rank == 0 else 2):
        model(numbers(store, 0)).square().mean().backward()
    optimizer.join()
    optimizer.zero_grad()
    for number in range(2):
        model(numbers(store, number)).square().mean().backward()
    require_one(store, [p.grad for p in model.parameters()])
    optimizer.close()


# ---- a NaN meets momentum ----------------------------------------------------------------------------------------


@case
def momentum_of_a_vetoed_step(store: gw.kv.KVStore) -> None:
    """It is as before on all ranks; in the first step, too, which finds none."""

    def train(poisoned: bool, compression: str) -> list[torch.Tensor]:
        model = layers()
        optimizer = wrap_momentum(model, store, compression=compression, on_nonfinite="skip_step")
        for step in range(6):
            bad = step in (0, 3)
            if bad and not poisoned:
                continue
            x = numbers(store, step)
            if bad and store.rank == 1:
                x[0, 0] = float("nan")
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                model(x).square().mean().backward()
            optimizer.step()
        optimizer.close()
        return [*weights_of(model), *(optimizer.state[p]["momentum_buffer"] for p in model.parameters())]

    for compression in ("none", TWO_BIT):
        require_equal(train(True, compression), train(False, compression))
    store.set_gradient_compression("none")


@case
def momentum_takes_one_backward_a_step(store: gw.kv.KVStore) -> None:
    """A second one would be added to the mean of momentum, and advance it again; in no_sync() the sum is SGD's."""
    for overlap_step in (False, True):
        model, plain = layers(), layers()
        optimizer = wrap_momentum(model, store, overlap_step=overlap_step)
        oracle = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
        alike = torch.ones(2, 6)  # on all ranks, so that means are what one has
        for _ in range(3):
            for each, weights in ((optimizer, model), (oracle, plain)):
                each.zero_grad()
                with optimizer.no_sync():
                    weights(alike).square().mean().backward()
                weights(alike).sum().backward()
                each.step()
        torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))
        for starts_anew in (optimizer.step, optimizer.zero_grad):
            model(alike).sum().backward()
            with pytest.raises(RuntimeError, match=r"backward\(\) was called again.*no_sync\(\)"):
                model(alike).sum().backward()
            starts_anew()
        model(alike).sum().backward()
        optimizer.step()
        optimizer.synchronize()
        require_one(store, weights_of(model))
        optimizer.close()


@case
def a_nan_does_not_stay_in_momentum(store: gw.kv.KVStore) -> None:
    for overlap_step in (False, True):
        model = layers()
        optimizer = wrap_momentum(
            model, store, compression=TWO_BIT, codecs={"*": TWO_BIT}, overlap_step=overlap_step
        )
        for step in range(3):
            x = numbers(store, step)
            if step == 1 and store.rank == 1:
                x[0, 0] = float("nan")
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.synchronize()
            require_one(store, weights_of(model))
            buffers = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
            assert all(bool(torch.isfinite(buffer).all()) for buffer in buffers)
        optimizer.close()
    store.set_gradient_compression("none")
