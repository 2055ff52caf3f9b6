"""What ranks do in horovod_ranks_test.py that train; DistributedDataParallel, torch and gradwire.torch are the oracles.

python horovod_training_cases.py FOLDER    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gradwire.horovod.torch as hvd
import gradwire.torch
import horovod_sparse_cases  # noqa: F401 (its cases are in the table)
import numpy as np
import pytest
import torch
import torch.distributed as dist
from gradwire.horovod import session
from gradwire.horovod.errors import HostsUpdatedInterrupt
from gradwire.horovod.handle import Handle
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_programs import CASES, Net, case, images


def train(model: nn.Module, optimizer: Any, steps: int = 4, passes: int = 1) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            model(images(100 * step + 10 * part + hvd.rank())).square().sum().backward()
        optimizer.step()


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def require_one_model(model: nn.Module) -> None:
    assert all(torch.equal(each, weights(model)) for each in hvd.allgather_object(weights(model)))


def trained_by_ddp(passes: int = 1) -> torch.Tensor:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    # The sum of gradients over passes is that of the loss, if statistics of the batch norm do not change with it.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        for part in range(passes):
            model.require_backward_grad_sync = part == passes - 1
            model(images(100 * step + 10 * part + hvd.rank())).square().sum().backward()
        optimizer.step()
    return weights(model)


def trained_here(passes: int = 1, **options: Any) -> torch.Tensor:
    torch.manual_seed(0)
    model = Net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        model.named_parameters(),
        backward_passes_per_step=passes,
        **options,
    )
    assert type(optimizer).__name__ == "DistributedSGD"
    assert isinstance(optimizer, torch.optim.SGD)
    train(model, optimizer, passes=passes)
    require_one_model(model)
    optimizer.close()
    return weights(model)


@case
def an_optimizer_takes_the_steps_of_ddp() -> None:
    expected = trained_by_ddp()
    close = {"rtol": 0, "atol": 0} if hvd.size() == 2 else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(trained_here(), expected, **close)
    torch.testing.assert_close(trained_here(groups=2), expected, **close)
    torch.testing.assert_close(trained_here(passes=2), trained_by_ddp(passes=2), **close)


@case
def what_changes_rounding_changes_no_more() -> None:
    expected = trained_here()
    for options in (
        {"gradient_predivide_factor": 2.0},
        {"gradient_predivide_factor": 3.0, "groups": 2},
    ):
        torch.testing.assert_close(trained_here(**options), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(trained_here(compression=hvd.Compression.fp16), expected, rtol=0.02, atol=0.01)


@case
def the_environments_codec_takes_the_place_of_the_scripts() -> None:
    expected = trained_here(compression={"type": "int8"})
    with pytest.raises(TypeError, match="compression=None"):
        trained_here(compression=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADWIRE_COMPRESSION", "int8")
        assert torch.equal(trained_here(compression=hvd.Compression.fp16), expected)


@case
def an_optimizer_with_a_codec_is_gradwires_own() -> None:
    ours = trained_here(compression="int8")  # not the first model of these names
    store = session.current().store
    hvd.shutdown()
    torch.manual_seed(0)
    model = Net()
    optimizer = gradwire.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        model.named_parameters(),
        compression="int8",
        store=store,
    )
    hvd.init()
    train(model, optimizer)
    hvd.barrier()
    optimizer.close()
    # Of parameters without a codec the sum is divided here, and there multiplied by 1 / ranks.
    close = {"rtol": 0, "atol": 0} if hvd.size() == 2 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(ours, weights(model), **close)


@case
def clipping_between_synchronize_and_step() -> None:
    model = nn.Linear(3, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    before = weights(model)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
    )
    model(torch.full((2, 3), 10.0 * (1 + hvd.rank()))).sum().backward()
    with pytest.raises(AssertionError, match="prohibited"):
        optimizer.zero_grad()
    optimizer.synchronize()
    mean = 10.0 * (1 + (hvd.size() - 1) / 2) * 2
    torch.testing.assert_close(model.weight.grad, torch.full((1, 3), mean))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    with optimizer.skip_synchronize():
        optimizer.step()
    torch.testing.assert_close((weights(model) - before).norm(), torch.tensor(0.5))
    optimizer.close()


@case
def batch_norm_of_all_ranks_is_that_of_one_large_batch() -> None:
    batches = [images(rank)[: 4 + rank % 2, :, :4, :4] * (1 + rank) for rank in range(hvd.size())]
    whole, ours = nn.BatchNorm2d(3), hvd.SyncBatchNorm(3)
    expected_in = torch.cat(batches).requires_grad_()
    own = batches[hvd.rank()].clone().requires_grad_()
    expected = whole(expected_in)
    starts = np.cumsum([0, *map(len, batches)])
    mine = slice(starts[hvd.rank()], starts[hvd.rank() + 1])
    got = ours(own)
    torch.testing.assert_close(got, expected[mine], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.running_var, whole.running_var)
    torch.testing.assert_close(ours.running_mean, whole.running_mean)
    slope = torch.linspace(-1, 1, expected.numel()).view(expected.shape)
    (expected * slope).sum().backward()
    (got * slope[mine]).sum().backward()
    torch.testing.assert_close(own.grad, expected_in.grad[mine], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.eval()(own), whole.eval()(own))


@case
def one_ranks_weights_and_optimizer_for_all() -> None:
    torch.manual_seed(hvd.rank())
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + hvd.rank()))
    if hvd.rank() == 0:  # the others' is fresh
        model(images(0)).sum().backward()
        optimizer.step()
    # In another order on each rank.
    state = model.state_dict()
    hvd.broadcast_parameters(dict(sorted(state.items(), reverse=hvd.rank() % 2 == 0)), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    require_one_model(model)
    assert optimizer.param_groups[0]["lr"] == 0.1
    moments = [optimizer.state[p]["exp_avg"] for p in model.conv.parameters()]
    assert all(
        torch.equal(torch.cat([m.flatten() for m in moments]), each)
        for each in hvd.allgather_object(torch.cat([m.flatten() for m in moments]))
    )
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), root_rank=0)


@case
def elastic_training_goes_on_from_its_last_commit() -> None:
    model = nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    seen: list[int] = []
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(state.step)])

    @hvd.elastic.run
    def body(state: Any) -> str:
        while state.step < 4:
            seen.append(state.step)
            optimizer.zero_grad()
            model(torch.ones(3, 2) * (1 + hvd.rank())).sum().backward()
            optimizer.step()
            if state.step == 2 and not resets:
                hvd.allreduce(torch.ones(2 + hvd.rank()), name="fails")
            state.step += 1
            state.commit()
        return "done"

    assert body(state) == "done"
    assert (seen, resets) == ([0, 1, 2, 2, 3], [2])
    require_one_model(model)
    optimizer.close()


@case
def elastic_training_waits_for_no_sum_that_it_goes_back_behind() -> None:
    model = nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
    attempts: list[int] = []

    @hvd.elastic.run
    def body(state: Any) -> str:
        attempts.append(len(attempts))
        optimizer.zero_grad()
        if hvd.rank() == 0 or len(attempts) > 1:
            model(torch.ones(3, 2)).sum().backward()
        if len(attempts) == 1:
            hvd.allreduce(torch.ones(2 + hvd.rank()), name="fails")
        if len(attempts) == 2:
            raise HostsUpdatedInterrupt(skip_sync=False)
        optimizer.step()
        return "done"

    assert body(state) == "done"
    assert len(attempts) == 3
    assert torch.equal(model.weight.grad, torch.full((1, 2), 3.0))
    require_one_model(model)
    optimizer.close()


@case
def ranks_have_as_many_indices_where_fewer_are_left_than_ranks() -> None:
    sampler = hvd.elastic.ElasticSampler(range(hvd.size() + 1), shuffle=False)
    sampler.record_batch(0, 1)
    sampler.reset()
    assert sampler.indices == [hvd.size()]
    sampler.record_batch(1, 1)
    sampler.reset()
    assert not sampler.indices


def doors() -> list[Any]:
    """Each with a loss of its own, whose gradient is the rank's number, from 1, times the step's."""
    return [
        lambda optimizer, model: hvd.DistributedOptimizer(optimizer, model.named_parameters()),
        lambda optimizer, model: hvd.DistributedOptimizer(optimizer),
        lambda optimizer, model: hvd.DistributedOptimizer(optimizer, model.named_parameters(), groups=2),
        lambda optimizer, model: hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), hvd.Compression.codec("fp16:reply=fp32")
        ),
    ]


def step_of_ones(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    sum((p * (hvd.rank() + 1)).sum() for p in model.parameters()).backward()
    optimizer.step()


def mean_of_ranks() -> float:
    return (hvd.size() + 1) / 2


@case
def layers_that_are_thawed_are_summed() -> None:
    for door in doors():
        model = nn.ParameterList([nn.Parameter(torch.zeros(2, 2)) for _ in range(3)])
        model[1].requires_grad_(False)
        optimizer = door(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5), model)
        steps = 0.0
        for step in range(4):
            model[1].requires_grad_(step in (1, 2))
            before = model[1].detach().clone()
            step_of_ones(model, optimizer)
            steps += step in (1, 2)
            if step == 3:  # frozen again: it stays, in spite of its momentum
                assert torch.equal(before, model[1])
        expected = -mean_of_ranks() * (1 + 1.5)
        torch.testing.assert_close(model[1].detach(), torch.full((2, 2), expected))
        torch.testing.assert_close(
            model[0].detach(), torch.full((2, 2), -mean_of_ranks() * (1 + 1.5 + 1.75 + 1.875))
        )
        optimizer.close()


@case
def groups_that_are_added_are_summed() -> None:
    for by_front in (True, False):
        for door in doors():
            model = nn.ParameterList([nn.Parameter(torch.zeros(2, 2))])
            inner = torch.optim.SGD(model.parameters(), lr=1.0)
            optimizer = door(inner, model)
            step_of_ones(model, optimizer)
            head = nn.Parameter(torch.zeros(3, 2))
            (optimizer if by_front else inner).add_param_group({"params": [head], "lr": 2.0})
            model.append(head)
            for _ in range(3):
                step_of_ones(model, optimizer)
            torch.testing.assert_close(head.detach(), torch.full((3, 2), -6 * mean_of_ranks()))
            torch.testing.assert_close(model[0].detach(), torch.full((2, 2), -4 * mean_of_ranks()))
            optimizer.close()


def double(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(2)


@case
def gradients_by_hand_and_hooks_are_summed() -> None:
    for door in doors():
        model = nn.ParameterList([nn.Parameter(torch.zeros(2, 2)) for _ in range(2)])
        optimizer = door(torch.optim.SGD(model.parameters(), lr=1.0), model)
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.grad = torch.full((2, 2), float(hvd.rank() + 1))
        optimizer.step()
        optimizer.zero_grad()
        if hvd.rank() == 0:  # others have a batch without labels
            model[0].sum().backward()
        optimizer.step()
        model[1].register_post_accumulate_grad_hook(double)
        for _ in range(2):
            step_of_ones(model, optimizer)
        torch.testing.assert_close(
            model[0].detach(), torch.full((2, 2), -3 * mean_of_ranks() - 1 / hvd.size())
        )
        torch.testing.assert_close(model[1].detach(), torch.full((2, 2), -5 * mean_of_ranks()))
        optimizer.close()


@case
def memory_of_gradients_may_move_while_sums_are_under_way() -> None:
    """The engine writes on threads of its own; what it writes must not be freed meanwhile."""
    for door in doors():
        model = nn.ParameterList([nn.Parameter(torch.zeros(300, 300)) for _ in range(3)])
        optimizer = door(torch.optim.SGD(model.parameters(), lr=1.0), model)
        for step in range(6):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            sum((p * (hvd.rank() + 1)).sum() for p in model.parameters()).backward()
            for parameter in model.parameters():
                parameter.grad.share_memory_()
            model.share_memory()
            model.to(torch.float64).to(torch.float32)
            optimizer.step()
        torch.testing.assert_close(model[0].detach(), torch.full((300, 300), -6 * mean_of_ranks()))
        optimizer.close()


@case
def a_scheduler_made_before_the_wrapping_is_content() -> None:
    model = nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step_of_ones(model, optimizer)
        scheduler.step()
    optimizer.close()


class Handing(torch.optim.Optimizer):
    """As accelerate's AcceleratedOptimizer: hands its step on, and never runs Optimizer.__init__()."""

    def __init__(self, inside: torch.optim.Optimizer) -> None:
        self.inside = inside

    param_groups = property(lambda self: self.inside.param_groups)
    state = property(lambda self: self.inside.state)
    defaults = property(lambda self: self.inside.defaults)

    def step(self, closure: Any = None) -> Any:
        return self.inside.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inside.zero_grad(set_to_none)


@case
def an_optimizer_that_hands_its_step_on() -> None:
    for door in doors():
        model = nn.ParameterList([nn.Parameter(torch.zeros(2, 2)) for _ in range(2)])
        optimizer = door(Handing(torch.optim.SGD(model.parameters(), lr=1.0)), model)
        for _ in range(3):
            step_of_ones(model, optimizer)
        torch.testing.assert_close(model[0].detach(), torch.full((2, 2), -3 * mean_of_ranks()))
        optimizer.close()


@case
def default_devices_and_dtypes_are_the_users() -> None:
    with torch.device("meta"):
        ones = torch.ones(4, device="cpu")
        assert hvd.allreduce(ones, op=hvd.Sum).tolist() == [float(hvd.size())] * 4
        rows, counts = hvd.alltoall(torch.arange(hvd.size(), device="cpu"), [1] * hvd.size())
        assert rows.tolist() == [hvd.rank()] * hvd.size()
        assert counts.tolist() == [1] * hvd.size()
        table = nn.Embedding(5, 2, sparse=True, device="cpu", dtype=torch.float32)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters()
        )
        optimizer.zero_grad()
        table(torch.tensor([1, 1 + hvd.rank()], device="cpu")).sum().backward()
        optimizer.step()
        assert table.weight.device.type == "cpu"
        optimizer.close()


class Twice(torch.optim.Optimizer):
    """Calls its closure itself, twice a step, as SAM does: steps from where the first gradient has led."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for _ in range(2):
            loss = torch.enable_grad()(closure)()
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad, alpha=group["lr"] / (1.0 + float(loss)))
        return loss


CLOSURE_OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: torch.optim.LBFGS(parameters, lr=0.5, max_iter=5, line_search_fn="strong_wolfe"),
    Twice,
]


def closure_of(model: nn.Module, optimizer: Any, ranks: list[int], count: int) -> Callable[[], torch.Tensor]:
    """Its loss is a mean over so many ranks, of which some are computed here."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = sum((model(batch_of(rank)) - 1).square().sum() / count for rank in ranks)
        loss.backward()
        return loss

    return closure


def batch_of(rank: int) -> torch.Tensor:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(rank), dtype=torch.float64) * (1 + rank)


def small_net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


@case
def closures_take_the_steps_of_one_process_with_all_batches() -> None:
    everyone = list(range(hvd.size()))
    for make in CLOSURE_OPTIMIZERS:
        for op in (hvd.Average, hvd.Sum):
            ours, plain = small_net(), small_net()
            optimizer = hvd.DistributedOptimizer(make(ours.parameters()), ours.named_parameters(), op=op)
            oracle = make(plain.parameters())
            count = 2 if op == hvd.Sum else 2 * hvd.size()
            for _ in range(3):
                own: list[torch.Tensor] = []
                closure = closure_of(ours, optimizer, [hvd.rank()], 2)
                loss = optimizer.step(lambda c=closure, seen=own: seen.append(c()) or seen[-1])
                expected = oracle.step(closure_of(plain, oracle, everyone, count))
                if isinstance(optimizer, torch.optim.SGD):
                    assert loss is own[0]
                    loss = hvd.allreduce(loss.detach(), op=op)
                torch.testing.assert_close(torch.as_tensor(loss), torch.as_tensor(expected))
            torch.testing.assert_close(weights(ours), weights(plain))
            require_one_model(ours)
            optimizer.close()


@case
def a_closure_may_synchronize_and_clip() -> None:
    ours, plain = small_net(), small_net()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1), ours.named_parameters())
    oracle = torch.optim.SGD(plain.parameters(), lr=0.1)

    def clipped() -> torch.Tensor:
        loss = closure_of(ours, optimizer, [hvd.rank()], 1)()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(ours.parameters(), 0.5)
        return loss

    for _ in range(2):
        with optimizer.skip_synchronize():
            optimizer.step(clipped)
        closure_of(plain, oracle, list(range(hvd.size())), hvd.size())()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        oracle.step()
    torch.testing.assert_close(weights(ours), weights(plain))
    optimizer.close()


@case
def a_step_on_gradients_whose_sums_are_under_way_is_an_error() -> None:
    class Ignores(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step()

    model = small_net()
    optimizer = hvd.DistributedOptimizer(Ignores(model.parameters(), lr=0.1), model.named_parameters())
    model(batch_of(hvd.rank())).sum().backward()
    with (
        optimizer.skip_synchronize(),
        pytest.raises(RuntimeError, match=r"optimizer.synchronize\(\) between"),
    ):
        optimizer.step()
    with pytest.raises(RuntimeError, match=r"step\(closure\) of Ignores has not called its closure"):
        optimizer.step(lambda: None)
    optimizer.synchronize()
    optimizer.close()


@contextlib.contextmanager
def warned(*words: str) -> Iterator[None]:
    """Expects one warning with these words, or none where there are no words."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    told = [str(warning.message) for warning in caught]
    assert len(told) == bool(words), told
    assert all(word in told[0] for word in words), told


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def triple(model: nn.Module) -> None:
    model[1].grad.mul_(3)


def triple_data(model: nn.Module) -> None:
    model[1].grad.data.mul_(3)


def set_anew(model: nn.Module) -> None:
    model[1].grad = torch.ones_like(model[1])


def clear(model: nn.Module) -> None:
    model.zero_grad()


def unscale(model: nn.Module) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    scaler.unscale_(torch.optim.SGD(model.parameters(), lr=1.0))


def move(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.share_memory_()
    model.to(torch.float64).to(torch.float32)


def look(model: nn.Module) -> None:
    assert all(parameter.grad.norm() > 0 for parameter in model.parameters())


@case
def what_is_done_to_a_gradient_that_has_been_sent_is_not_lost_in_silence() -> None:
    words = (
        "gradient of",
        "was changed after backward()",
        "optimizer.synchronize() first",
        "skip_synchronize()",
    )
    for door in doors()[2:]:
        for change in (clip, triple, triple_data, set_anew, clear, unscale, look, move):
            model = nn.ParameterList([nn.Parameter(torch.zeros(2, 2)) for _ in range(2)])
            optimizer = door(torch.optim.SGD(model.parameters(), lr=1.0), model)
            sum((p * (hvd.rank() + 1)).sum() for p in model.parameters()).backward()
            change(model)
            with warned(*(() if change in (look, move) else words)):
                optimizer.step()
            torch.testing.assert_close(model[0].detach(), torch.full((2, 2), -mean_of_ranks()))
            optimizer.zero_grad()
            optimizer.close()


@case
def zero_grad_is_the_wrapped_classs() -> None:
    """Some outside torch take no argument, or have another default."""

    class Bare(torch.optim.SGD):
        def zero_grad(self) -> None:  # type: ignore[override]
            for p in self.param_groups[0]["params"]:
                p.grad = torch.zeros_like(p)

    class ByWord(torch.optim.SGD):
        def zero_grad(self, *, set_to_none: bool = False) -> None:
            super().zero_grad(set_to_none=set_to_none)

    for kind in (Bare, ByWord):
        model = small_net()
        optimizer = hvd.DistributedOptimizer(kind(model.parameters(), lr=0.1), model.named_parameters())
        model(batch_of(hvd.rank())).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert not any(p.grad.any() for p in model.parameters())
        optimizer.close()


@case
def step_takes_the_wrapped_classs_arguments() -> None:
    """As fused optimizers outside torch have them; GradScaler hands itself to those."""

    class Fused(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure: Any = None, grad_scaler: Any = None, *, times: int = 1) -> None:  # type: ignore[override]
            for p in self.param_groups[0]["params"]:
                scale = times / (1.0 if grad_scaler is None else grad_scaler.get_scale())
                p.data.sub_(p.grad, alpha=scale)

    def trained(step: Callable[[Any, torch.Tensor], None]) -> torch.Tensor:
        model = small_net()
        optimizer = hvd.DistributedOptimizer(Fused(model.parameters(), lr=1.0), model.named_parameters())
        step(optimizer, model(batch_of(hvd.rank())).sum())
        optimizer.close()
        return weights(model)

    def by_hand(optimizer: Any, loss: torch.Tensor) -> None:
        loss.backward()
        optimizer.step(times=1)

    def by_scaler(optimizer: Any, loss: torch.Tensor) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(loss).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch is to stop passing itself
            scaler.step(optimizer)

    torch.testing.assert_close(trained(by_scaler), trained(by_hand))


@case
def it_is_named_and_told_once() -> None:
    model = small_net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    for step in range(2):
        optimizer.zero_grad()
        model(batch_of(hvd.rank())).sum().backward()
        model[2].weight.grad.mul_(2)
        with warned(*(() if step else ("gradient of '2.weight' was",))):
            optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.close()


@case
def ordinary_steps_warn_of_no_change() -> None:
    with warned():
        trained_here(passes=2)
        trained_here(gradient_predivide_factor=2.0, groups=2)
        trained_here(compression=hvd.Compression.fp16)
        for as_dense in (False, True):
            table = nn.Embedding(10, 2, sparse=True)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(table.parameters(), lr=1.0), sparse_as_dense=as_dense
            )
            table.weight.register_post_accumulate_grad_hook(double)
            for clears in (True, False):
                optimizer.zero_grad(set_to_none=clears)
                table(torch.tensor([hvd.rank(), 5])).sum().backward()
                optimizer.synchronize()
                table.weight.grad.mul_(0.5)
                with optimizer.skip_synchronize():
                    optimizer.step()
            optimizer.close()


@contextlib.contextmanager
def interrupted_in_wait(number: int) -> Iterator[None]:
    """Has the nth wait for an operation be one in which the user presses Ctrl-C."""
    wait, calls = Handle.wait, itertools.count(1)

    def interrupted(handle: Handle, store: Any) -> Any:
        if next(calls) == number:
            raise KeyboardInterrupt
        return wait(handle, store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handle, "wait", interrupted)
        yield


@case
def a_step_that_was_interrupted_is_taken_by_the_next_call() -> None:
    for number in (1, 2):  # rows, and what is dense
        torch.manual_seed(number)
        ours = nn.Sequential(nn.Embedding(10, 3, sparse=True), nn.Linear(3, 1))
        plain = copy.deepcopy(ours)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(ours.parameters(), lr=0.1), ours.named_parameters(), groups=1
        )
        oracle = torch.optim.SGD(plain.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            ours(torch.tensor([hvd.rank(), 5])).sum().backward()
            if step == 0 and hvd.rank() == 0:
                with interrupted_in_wait(number), pytest.raises(KeyboardInterrupt):
                    optimizer.step()
                with pytest.raises(AssertionError, match=r"call step\(\) or synchronize\(\) first"):
                    optimizer.zero_grad()
            optimizer.step()
            oracle.zero_grad()
            for rank in range(hvd.size()):
                (plain(torch.tensor([rank, 5])).sum() / hvd.size()).backward()
            oracle.step()
        torch.testing.assert_close(weights(ours), weights(plain))
        require_one_model(ours)
        optimizer.close()


def main(folder: str) -> None:
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=hvd.rank(), world_size=hvd.size()
    )
    for name, run in CASES.items():
        run()
        print(name, "passed", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
