"""Gradients that no backward() of ours brings: by hand, of torch.func, of wrappers; and batches that reach nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.two_ranks import OneProcess, batch, require_equal, run_two, seeded, sgd, warnings_of_two, wrapped
from torch import nn

OVERLAP = [{}, {"overlap_step": True}]


def net() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))


def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return model(batch(rank, step, 5, 4)).square().sum()


def own_gradients(model: nn.Module, rank: int, step: int) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss(model, rank, step), list(model.parameters())))


def by_hand(model: nn.Module, optimizer: Any, rank: int, step: int) -> None:
    for parameter, gradient in zip(model.parameters(), own_gradients(model, rank, step), strict=True):
        parameter.grad = gradient


def in_place(model: nn.Module, optimizer: Any, rank: int, step: int) -> None:
    """Into zeros that zero_grad() has left."""
    for parameter, gradient in zip(model.parameters(), own_gradients(model, rank, step), strict=True):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.copy_(gradient)


def functional(model: nn.Module, optimizer: Any, rank: int, step: int) -> None:
    values = {name: p.detach() for name, p in model.named_parameters()}
    x = batch(rank, step, 5, 4)
    found = torch.func.grad(lambda v: torch.func.functional_call(model, v, (x,)).square().sum())(values)
    for name, parameter in model.named_parameters():
        parameter.grad = found[name]


def noisy_wrapper(model: nn.Module, optimizer: Any, rank: int, step: int) -> None:
    """As Opacus: backward() runs, and what it has left is replaced by this worker's own."""
    (3 * loss(model, rank, step)).backward()
    optimizer.synchronize()
    for parameter, gradient in zip(model.parameters(), own_gradients(model, rank, step), strict=True):
        parameter.grad = gradient


def meta(model: nn.Module, optimizer: Any, rank: int, step: int) -> None:
    """As MAML: an inner step on copies, and the outer gradient through it, in no_sync()."""
    with optimizer.no_sync():
        loss(model, rank, step).backward()


WAYS: dict[str, Callable[[nn.Module, Any, int, int], None]] = {
    "by hand": by_hand,
    "in place": in_place,
    "torch.func": functional,
    "wrapper": noisy_wrapper,
    "no_sync": meta,
}


@pytest.mark.filterwarnings("ignore:gradwire.torch. p.grad of:RuntimeWarning")
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("options", OVERLAP, ids=str)
@pytest.mark.parametrize("how", list(WAYS))
def test_step_exchanges_gradients_that_backward_has_not(
    how: str, options: dict[str, Any], set_to_none: bool
) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = net()
        one = OneProcess(model, loss)
        optimizer = wrapped(model, store, **options)
        for step in range(4):
            optimizer.zero_grad(set_to_none)
            WAYS[how](model, optimizer, store.rank, step)
            optimizer.step()
            one.step(step)
        optimizer.synchronize()
        require_equal(model, one.model)
        optimizer.close()

    run_two(body)


@pytest.mark.parametrize("options", OVERLAP, ids=str)
@pytest.mark.parametrize("reached", [(0,), (1,), ()], ids=str)
def test_a_batch_that_reaches_no_parameter_counts_as_zeros(
    reached: tuple[int, ...], options: dict[str, Any]
) -> None:
    """A batch without labels. The others' steps must not shift against this rank's."""

    def body(store: gw.kv.KVStore) -> None:
        model = net()
        one = OneProcess(model, loss)
        optimizer = wrapped(model, store, **options)
        for step in range(6):
            ranks = reached if step in (0, 3) else (0, 1)
            optimizer.zero_grad()
            if store.rank in ranks:
                loss(model, store.rank, step).backward()
            else:
                torch.zeros(1, requires_grad=True).sum().backward()
            optimizer.step()
            one.step(step, ranks)
        optimizer.synchronize()
        require_equal(model, one.model)
        optimizer.close()

    run_two(body)


def test_a_loss_of_zero_times_a_parameter() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = net()
        one = OneProcess(model, loss)
        optimizer = wrapped(model, store)
        for step in range(3):
            optimizer.zero_grad()
            own = loss(model, store.rank, step)
            (own * 0 if store.rank == 1 else own).backward()
            optimizer.step()
            one.step(step, (0,))
        require_equal(model, one.model)
        optimizer.close()

    run_two(body)


def test_frozen_parameters_may_be_given_gradients() -> None:
    """As evolution strategies do, which need no graph."""

    def body(store: gw.kv.KVStore) -> None:
        model = net()
        one = OneProcess(model, loss)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        optimizer = wrapped(model, store)
        for step in range(4):
            optimizer.zero_grad()
            values = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
            out = torch.func.functional_call(model, values, (batch(store.rank, step, 5, 4),)).square().sum()
            found = torch.autograd.grad(out, list(values.values()))
            for parameter, gradient in zip(model.parameters(), found, strict=True):
                parameter.grad = gradient
            optimizer.step()
            one.step(step)
        require_equal(model, one.model)
        optimizer.close()

    run_two(body)


def test_lbfgs_whose_closure_sets_gradients() -> None:
    def lbfgs(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=4)

    def body(store: gw.kv.KVStore) -> None:
        model = net()
        theirs = OneProcess(model, loss, lbfgs)
        optimizer = wrapped(model, store, lbfgs)

        def closure() -> torch.Tensor:
            by_hand(model, optimizer, store.rank, 0)
            return loss(model, store.rank, 0).detach()

        def joint() -> torch.Tensor:
            theirs.model.zero_grad()
            for rank in (0, 1):
                loss(theirs.model, rank, 0).backward()
            for parameter in theirs.model.parameters():
                parameter.grad *= 0.5
            return (loss(theirs.model, 0, 0) + loss(theirs.model, 1, 0)).detach() * 0.5

        for _ in range(3):
            optimizer.step(closure)
            theirs.optimizer.step(joint)
        for ours, expected in zip(model.parameters(), theirs.model.parameters(), strict=True):
            torch.testing.assert_close(ours, expected)
        optimizer.close()

    run_two(body)


def test_momentum_correction_takes_gradients_by_hand() -> None:
    def momentum(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def body(store: gw.kv.KVStore) -> None:
        model = net()
        one = OneProcess(model, loss, momentum)
        optimizer = wrapped(model, store, momentum, momentum_correction=True)
        for step in range(4):
            optimizer.zero_grad()
            if step % 2 == 0:
                by_hand(model, optimizer, store.rank, step)
            elif store.rank == 0:
                loss(model, store.rank, step).backward()
            optimizer.step()
            one.step(step, (0, 1) if step % 2 == 0 else (0,))
        for ours, expected in zip(model.parameters(), one.model.parameters(), strict=True):
            torch.testing.assert_close(ours, expected)
        with pytest.raises(RuntimeError, match=r"mean momentum in p\.grad, which is no gradient"):
            optimizer.step()
        optimizer.close()

    run_two(body)


def test_skip_step_looks_at_gradients_by_hand() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = net()
        optimizer = wrapped(model, store, on_nonfinite="skip_step")
        before = [p.detach().clone() for p in model.parameters()]
        by_hand(model, optimizer, store.rank, 0)
        if store.rank == 1:
            model[0].weight.grad[0, 0] = float("nan")
        optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        optimizer.close()

    assert sum("no rank takes this step" in text for text in warnings_of_two(body)) == 2


def test_max_grad_norm_clips_the_means_of_gradients_by_hand() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = net()
        one = OneProcess(model, loss)
        optimizer = wrapped(model, store, max_grad_norm=0.5)
        by_hand(model, optimizer, store.rank, 0)
        optimizer.step()
        for rank in (0, 1):
            loss(one.model, rank, 0).backward()
        for parameter in one.model.parameters():
            parameter.grad *= 0.5
        torch.nn.utils.clip_grad_norm_(one.model.parameters(), 0.5)
        one.optimizer.step()
        require_equal(model, one.model)
        optimizer.close()

    run_two(body)


def test_a_grad_scaler_that_has_looked_at_gradients_by_hand_is_refused() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = net()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer = wrapped(model, store, grad_scaler=scaler)
        by_hand(model, optimizer, store.rank, 0)
        with pytest.raises(RuntimeError, match=r"with gradients that backward\(\) has not exchanged"):
            optimizer.step()
        optimizer.close()

    run_two(body)


def test_changes_in_place_are_changes_to_the_mean() -> None:
    """Clipping by value, scaling, noise of one seed: nothing is exchanged again."""

    def body(store: gw.kv.KVStore) -> None:
        model = net()
        optimizer = wrapped(model, store)
        loss(model, store.rank, 0).backward()
        sent = store.stats()["bytes_raw"]
        for parameter in model.parameters():
            parameter.grad.clamp_(-0.1, 0.1)
        optimizer.step()
        assert store.stats()["bytes_raw"] == sent
        optimizer.close()

    run_two(body)


def test_what_is_set_anew_is_exchanged_again_and_that_is_said() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = net()
        optimizer = wrapped(model, store)
        loss(model, store.rank, 0).backward()
        model[0].weight.grad = torch.full_like(model[0].weight, float(store.rank))
        optimizer.step()
        assert torch.equal(model[0].weight.grad, torch.full_like(model[0].weight, 0.5))
        optimizer.close()

    assert any("p.grad of '0.weight' was set anew after backward()" in text for text in warnings_of_two(body))


def test_a_step_in_no_sync_is_the_ranks_own() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = net()
        own = net()
        optimizer, plain = wrapped(model, store), sgd(own.parameters())
        with optimizer.no_sync():
            loss(model, store.rank, 0).backward()
            optimizer.step()
        loss(own, store.rank, 0).backward()
        plain.step()
        require_equal(model, own)
        optimizer.close()

    run_two(body)


def test_a_step_taken_twice_takes_the_means_twice() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = net()
        one = OneProcess(model, loss)
        optimizer = wrapped(model, store)
        loss(model, store.rank, 0).backward()
        optimizer.step()
        optimizer.step()
        one.step(0)
        one.optimizer.step()
        require_equal(model, one.model)
        optimizer.close()

    run_two(body)


@pytest.mark.parametrize("options", OVERLAP, ids=str)
def test_steps_that_shift_are_an_error_on_all_ranks(options: dict[str, Any]) -> None:
    """Rank 0 calls backward() twice in its second step, and so exchanges twice, rank 1 once."""

    def body(store: gw.kv.KVStore) -> None:
        model = net()
        optimizer = wrapped(model, store, **options)

        def train() -> None:
            for step in range(4):
                optimizer.zero_grad()
                for _ in range(2 if (step, store.rank) == (1, 0) else 1):
                    loss(model, store.rank, step).backward()
                optimizer.step()
                optimizer.synchronize()

        with pytest.raises(gw.TransportError, match=r"worker \d is at step \d of its program and worker"):
            train()
        with contextlib.suppress(gw.TransportError):
            optimizer.close()

    run_two(body)


def test_a_step_that_one_rank_leaves_out_is_an_error_on_all_ranks() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = net()
        optimizer = wrapped(model, store)

        def train() -> None:
            for step in range(3):
                optimizer.zero_grad()
                loss(model, store.rank, step).backward()
                if (step, store.rank) != (0, 1):
                    optimizer.step()

        with pytest.raises(gw.TransportError, match=r"at step 1\b"):
            train()

    run_two(body)


def test_after_join_all_are_at_one_step_again() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = net()
        optimizer = wrapped(model, store)
        for _ in range(2):
            for step in range(3 if store.rank == 0 else 5):
                optimizer.zero_grad()
                loss(model, store.rank, step).backward()
                optimizer.step()
            last = optimizer.join()
            assert last == 1
            gw.torch.broadcast_parameters(model.state_dict(), root_rank=last, store=store)
        optimizer.close()

    run_two(body)


@pytest.mark.filterwarnings("ignore:gradwire.torch. p.grad of:RuntimeWarning")
@pytest.mark.parametrize("options", OVERLAP, ids=str)
def test_gradients_that_a_hook_on_the_step_sets(options: dict[str, Any]) -> None:
    """As wrappers do that hook themselves into step()."""

    def body(store: gw.kv.KVStore) -> None:
        model = net()
        one = OneProcess(model, loss)
        optimizer = wrapped(model, store, **options)
        numbers = iter(range(4))

        def set_gradients(*_: Any) -> None:
            optimizer.synchronize()
            by_hand(model, optimizer, store.rank, next(numbers))

        optimizer.register_step_pre_hook(set_gradients)
        for step in range(4):
            optimizer.zero_grad()
            (3 * loss(model, store.rank, step)).backward()
            optimizer.step()
            one.step(step)
        optimizer.synchronize()
        require_equal(model, one.model)
        optimizer.close()

    run_two(body)


def test_a_closure_costs_one_exchange_a_call() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = net()
        optimizer = wrapped(model, store, lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3))
        calls = 0

        def closure() -> torch.Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            own = loss(model, store.rank, 0)
            own.backward()
            return own

        for _ in range(2):
            optimizer.step(closure)
        assert store.stats()["bytes_raw"] == calls * 4 * sum(p.numel() for p in model.parameters())
        optimizer.close()

    run_two(body)
