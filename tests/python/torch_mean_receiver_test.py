"""MeanReceiver by itself: what it puts into p.grad, what it exchanges late, and which steps it vetoes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from gradwire.torch.gradient_memory import GradientMemory
from gradwire.torch.gradient_sender import GradientSender
from gradwire.torch.mean_receiver import MeanReceiver
from gradwire.torch.slots import Slot


class DoublingExchange:
    """In the place of an Exchange: the mean of a slot is twice what it held."""

    def __init__(self, memory: GradientMemory) -> None:
        self.memory = memory
        self.row_means: dict[int, Any] = {}
        self.sent: list[int] = []
        self.meets_nonfinite: Iterator[bool] = iter(())
        self.calls: list[str] = []
        self.needs_quiet = False

    def send(self, index: int) -> None:
        self.sent.append(index)

    send_apart = send

    def finish(self) -> bool:
        self.calls.append("finish")
        for index in self.sent:
            self.memory.slot(index).values.mul_(2)
        self.sent = []
        return next(self.meets_nonfinite, False)

    def sums(self) -> list[int]:
        sent, self.sent = self.sent, []
        return sent

    def wait(self) -> None:
        self.calls.append("wait")

    def advance(self) -> None:
        self.calls.append("advance")


class Parameters:
    """In the place of LiveParameters: "late" is declared by take_in_waiting()."""

    def __init__(self, memory: GradientMemory, late: torch.Tensor) -> None:
        self.memory, self.late = memory, late
        self.indices = [0, 1]
        self.is_waiting = True
        self.bound = 0
        self.given_rows: list[int] = []

    def waits_for(self, takes_part: Callable[[torch.Tensor], bool]) -> bool:
        return self.is_waiting and takes_part(self.late)

    def take_in_waiting(self, takes_part: Callable[[torch.Tensor], bool]) -> range:
        if not self.waits_for(takes_part):
            return range(0)
        self.is_waiting = False
        self.memory.add("late", self.late, Slot(torch.zeros(6), self.late))
        self.indices.append(2)
        return range(2, 3)

    def use_rows(self, indices: list[int]) -> None:
        self.given_rows += indices
        for index in indices:
            self.memory.use_rows(index)

    def bind(self) -> None:
        self.bound += 1


class Agreement:
    """In the place of a RowAgreement: ranks agree once that these are sparse."""

    def __init__(self, sparse: list[int]) -> None:
        self.sparse = sparse
        self.unseen: set[int] = set()
        self.is_made_again = False

    def is_dense(self, index: int) -> bool:
        return False

    def make_again(self) -> None:
        self.is_made_again = True

    def note(self, index: int, *, is_sparse: bool) -> None: ...

    def make(self) -> list[int]:
        chosen, self.sparse = self.sparse, []
        return chosen


class Options:
    """As much of ExchangeOptions as a receiver reads."""

    def __init__(self, on_nonfinite: str = "warn", grad_scaler: object = None) -> None:
        self.on_nonfinite, self.grad_scaler = on_nonfinite, grad_scaler
        self.vetoes = on_nonfinite == "skip_step" or grad_scaler is not None


class CountedSteps:
    """In the place of a WorkerMomentum."""

    def __init__(self) -> None:
        self.ended: list[bool] = []

    def advance(self, parameter: torch.Tensor, gradient: torch.Tensor | None, out: torch.Tensor) -> None:
        out.copy_(torch.zeros_like(out) if gradient is None else gradient)

    def end_step(self, *, nonfinite: bool) -> None:
        self.ended.append(nonfinite)


class Case:
    """Two parameters that take part, and a frozen one that waits."""

    def __init__(self, options: Options | None = None, momentum: Any = None, sparse: tuple[int, ...] = ()):
        self.memory = GradientMemory()
        for name in ("first", "second"):
            parameter = torch.nn.Parameter(torch.ones(2, 3))
            self.memory.add(name, parameter, Slot(torch.zeros(6), parameter))
        self.late = torch.nn.Parameter(torch.ones(2, 3), requires_grad=False)
        self.exchange = DoublingExchange(self.memory)
        self.live = Parameters(self.memory, self.late)
        self.rows = rows = Agreement(list(sparse))
        self.sender = GradientSender(
            cast(Any, self.exchange), self.memory, cast(Any, rows), momentum, warns_of_sparse=False
        )
        self.sender.begin()
        self.receiver = MeanReceiver(
            cast(Any, self.exchange),
            self.memory,
            cast(Any, self.live),
            cast(Any, rows),
            self.sender,
            options=cast(Any, options or Options()),
            momentum=momentum,
        )

    def send(self) -> None:
        for index in (0, 1):
            self.memory.parameters[index].grad = torch.full((2, 3), float(index + 1))
        self.sender.send_rest((0, 1))

    def gradient(self, index: int) -> torch.Tensor:
        gradient = self.memory.parameters[index].grad
        assert gradient is not None
        return gradient


def test_means_are_in_p_grad_and_a_new_step_has_begun() -> None:
    case = Case()
    case.send()
    case.receiver.receive()
    for index in (0, 1):
        assert torch.equal(case.gradient(index), torch.full((2, 3), 2.0 * (index + 1)))
        assert case.memory.is_delivered(index)
        assert not case.sender.is_sent(index)
    assert case.exchange.calls == ["finish", "advance"]
    assert not case.receiver.take_veto()


def test_momentum_hears_how_a_step_ended() -> None:
    momentum = CountedSteps()
    case = Case(Options("ignore"), momentum)
    for met in (False, True):
        case.exchange.meets_nonfinite = iter([met])
        case.send()
        case.receiver.receive()
    assert momentum.ended == [False, True]


def test_what_thawed_is_exchanged_by_itself_behind_the_step() -> None:
    case = Case()
    case.send()
    case.late.requires_grad_()
    case.late.grad = torch.ones(2, 3)
    case.receiver.receive()
    assert torch.equal(case.gradient(2), torch.full((2, 3), 2.0))
    assert torch.equal(case.gradient(0), torch.full((2, 3), 2.0))  # once
    assert case.exchange.calls == ["finish", "finish", "advance"]
    assert case.live.bound == 1


def test_a_frozen_parameter_with_a_gradient_is_caught_up_with_before_the_step() -> None:
    case = Case()
    case.send()
    case.receiver.receive()
    assert not case.receiver.is_behind
    case.late.grad = torch.ones(2, 3)
    assert case.receiver.is_behind
    case.receiver.catch_up()
    assert torch.equal(case.gradient(2), torch.full((2, 3), 2.0))
    assert not case.receiver.is_behind


def test_gradients_that_ranks_agree_are_sparse_are_given_back_as_sparse_ones() -> None:
    case = Case(sparse=(1,))
    case.send()
    case.receiver.receive()
    assert case.gradient(1).layout == torch.sparse_coo
    assert torch.equal(case.gradient(1).to_dense(), torch.full((2, 3), 4.0))
    assert case.memory.travels_as_rows(1)
    assert case.live.given_rows == [1]
    assert case.live.bound == 1


def test_a_mean_that_is_not_zero_has_ranks_agree_again_on_who_had_no_gradient() -> None:
    case = Case()
    case.rows.unseen = {1}
    case.memory.parameters[0].grad = torch.ones(2, 3)
    case.sender.send_rest((0, 1))
    case.receiver.receive()
    assert case.memory.parameters[1].grad is None
    assert not case.rows.is_made_again
    case.send()
    case.receiver.receive()
    assert case.rows.is_made_again


@pytest.mark.parametrize(
    ("options", "warns", "vetoes"),
    [
        (Options("ignore"), None, False),
        (Options("warn"), r"a worker's gradient held a NaN.*on_nonfinite=\"skip_step\"", False),
        (Options("skip_step"), "no rank takes this step$", True),
        (Options("warn", grad_scaler=object()), None, True),
    ],
)
def test_a_nan_is_warned_of_and_vetoes_as_options_say(
    options: Options, warns: str | None, vetoes: bool
) -> None:
    case = Case(options)
    case.exchange.meets_nonfinite = iter([True])
    case.send()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        case.receiver.receive()
    assert len(told) == (warns is not None)
    assert warns is None or re.search(warns, str(told[0].message))
    assert case.gradient(0).isnan().all() == vetoes  # so that a GradScaler finds it
    assert case.receiver.take_veto() == vetoes
    assert not case.receiver.take_veto()


def test_finish_neither_warns_nor_writes_a_nan_but_vetoes() -> None:
    case = Case(Options("skip_step"))
    case.exchange.meets_nonfinite = iter([True])
    case.send()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert case.receiver.finish()
    assert not case.gradient(0).isnan().any()
    assert case.receiver.vetoes_step


def test_a_nan_of_what_came_late_vetoes_once() -> None:
    case = Case(Options("skip_step"))
    case.send()
    case.receiver.receive()
    case.exchange.meets_nonfinite = iter([True])
    case.late.grad = torch.ones(2, 3)
    with pytest.warns(RuntimeWarning, match="no rank takes this step"):
        case.receiver.catch_up()
    assert case.receiver.take_veto()


class LeftSums:
    """In the place of OverlappedSums."""

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        self.waited = 0

    def begin(self, sums: list[int]) -> None:
        self.begun.append(sums)

    def synchronize(self) -> None:
        self.waited += 1


def test_sums_are_left_on_their_way() -> None:
    case, overlap = Case(), LeftSums()
    case.send()
    case.receiver.leave_to(cast(Any, overlap))
    assert overlap.begun == [[0, 1]]
    assert overlap.waited == 0
    assert torch.equal(case.gradient(1), torch.full((2, 3), 2.0))  # this worker's own
    assert case.exchange.calls == ["advance"]
    assert not case.sender.is_sent(0)


def test_sums_that_are_left_are_waited_for_where_codecs_are_measured_or_parameters_thaw() -> None:
    case, overlap = Case(), LeftSums()
    case.exchange.needs_quiet = True
    case.late.requires_grad_()
    case.send()
    case.receiver.leave_to(cast(Any, overlap))
    assert overlap.begun == [[0, 1, 2]]
    assert overlap.waited == 1
    assert case.exchange.calls == ["wait", "advance"]
    assert case.live.bound == 1


def test_a_rank_without_a_batch_takes_part_and_takes_nothing() -> None:
    case = Case()
    for index in (0, 1):
        case.sender.send_instead(index, 0.0)
    case.receiver.stand_in()
    assert case.exchange.calls == ["finish", "advance"]
    assert all(parameter.grad is None for parameter in case.memory.parameters)
