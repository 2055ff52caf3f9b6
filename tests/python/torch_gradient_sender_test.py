"""GradientSender by itself: what it puts into slots and rows, once a step, and what it refuses."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from gradwire.torch.gradient_memory import GradientMemory
from gradwire.torch.gradient_sender import GradientSender
from gradwire.torch.slots import Slot


class Recorded:
    """In the place of an Exchange and of a RowAgreement."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.rows: list[tuple[int, Any]] = []
        self.noted: dict[int, bool] = {}
        self.dense: set[int] = set()

    def send(self, index: int) -> None:
        self.sent.append(index)

    def send_rows(self, index: int, gradient: Any, parameter: torch.Tensor) -> None:
        self.rows.append((index, gradient))

    def note(self, index: int, *, is_sparse: bool) -> None:
        self.noted[index] = is_sparse

    def is_dense(self, index: int) -> bool:
        return index in self.dense


class DoubledMomentum:
    """Sends twice the gradient."""

    def advance(self, parameter: torch.Tensor, gradient: torch.Tensor | None, out: torch.Tensor) -> None:
        out.copy_(torch.zeros_like(out) if gradient is None else 2 * gradient)


def make(*, momentum: Any = None, warns: bool = True) -> tuple[GradientSender, GradientMemory, Recorded]:
    """Two parameters with slots, and a table whose gradients travel as rows."""
    memory, recorded = GradientMemory(), Recorded()
    for name in ("first", "second"):
        parameter = torch.nn.Parameter(torch.ones(2, 3))
        memory.add(name, parameter, Slot(torch.full((6,), 7.0), parameter))
    memory.add("table", torch.nn.Parameter(torch.ones(4, 2)), None)
    sender = GradientSender(recorded, memory, recorded, momentum, warns_of_sparse=warns)  # type: ignore[arg-type]
    sender.begin()
    return sender, memory, recorded


def test_a_gradient_is_in_its_slot_and_p_grad_is_the_slot() -> None:
    sender, memory, recorded = make()
    memory.parameters[0].grad = torch.arange(6.0).reshape(2, 3)
    sender.send(0)
    assert recorded.sent == [0]
    assert torch.equal(memory.slot(0).values, torch.arange(6.0).reshape(2, 3))
    assert memory.slot(0).holds(memory.parameters[0].grad)
    assert sender.is_sent(0)
    assert not sender.is_sent(1)


def test_a_slot_has_no_part_in_the_graph_of_create_graph() -> None:
    sender, memory, recorded = make()
    parameter = memory.parameters[0]
    parameter.register_post_accumulate_grad_hook(lambda _: sender.send(0))
    with pytest.warns(RuntimeWarning, match="p.grad of 'first' becomes the workers' mean"):
        (parameter**3).sum().backward(create_graph=True)
    assert recorded.sent == [0]
    assert torch.equal(memory.slot(0).values, torch.full((2, 3), 3.0))
    assert not memory.slot(0).values.requires_grad
    assert memory.slot(0).values.grad_fn is None


@pytest.mark.filterwarnings("ignore:Using backward")  # torch's own, of create_graph
def test_a_graph_that_is_lost_is_told_once() -> None:
    sender, memory, _ = make()
    for index, parameter in enumerate(memory.parameters[:2]):
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: sender.send(index))  # type: ignore[misc]
    with pytest.warns(
        RuntimeWarning, match=r"torch\.autograd\.grad.*or call this backward\(\) in .*no_sync"
    ) as told:
        sum((p**3).sum() for p in memory.parameters[:2]).backward(create_graph=True)  # type: ignore[union-attr]
    assert len([each for each in told if each.category is RuntimeWarning]) == 1
    sender.begin()
    for parameter in memory.parameters:
        parameter.grad = None
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        sum((p**3).sum() for p in memory.parameters[:2]).backward()  # type: ignore[union-attr]


def test_a_table_that_ranks_took_for_dense_is_told_once_with_its_name() -> None:
    sender, memory, recorded = make(warns=False)
    recorded.dense = {1}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            sender.begin()
            for index, parameter in enumerate(memory.parameters[:2]):
                parameter.grad = torch.ones(2, 3).to_sparse(1)
                sender.send(index)
    assert [str(each.message) for each in told] == [
        "gradwire.torch: the gradient of 'second' is sparse, and the table is sent whole in each step: in the first "
        "step no rank had a gradient of it, or one had a dense gradient; give sparse_parameters=['second'], which has "
        "its rows travel"
    ]


def test_the_rest_is_what_there_is_or_zeros() -> None:
    sender, memory, recorded = make()
    memory.parameters[0].grad = torch.ones(2, 3)
    memory.parameters[2].grad = torch.ones(4, 2).to_sparse(1)
    sender.send(0)
    sender.send_rest(range(3))
    assert recorded.sent == [0, 1]
    assert [index for index, _ in recorded.rows] == [2]
    assert not memory.slot(1).values.any()


def test_twice_in_a_step_is_an_error_and_a_new_step_is_not() -> None:
    sender, _, recorded = make()
    sender.send(1)
    with pytest.raises(RuntimeError, match="'second' got its gradient twice in one backward"):
        sender.send(1)
    sender.begin()
    sender.send(1)
    assert recorded.sent == [1, 1]


def test_a_value_goes_in_the_place_of_a_gradient() -> None:
    sender, memory, recorded = make()
    sender.send_instead(0, float("nan"))
    sender.send_instead(2, 0.0)
    assert memory.slot(0).values.isnan().all()
    ((index, row),) = recorded.rows
    assert (index, row.shape) == (2, (1, 2))
    assert sender.is_sent(0)
    assert sender.is_sent(2)


def test_momentum_goes_in_the_place_of_the_gradient() -> None:
    sender, memory, _ = make(momentum=DoubledMomentum())
    memory.parameters[0].grad = torch.ones(2, 3)
    sender.send(0)
    assert torch.equal(memory.slot(0).values, torch.full((2, 3), 2.0))


def test_a_sparse_gradient_with_a_slot_is_sent_dense_and_told_once() -> None:
    sender, memory, recorded = make()
    for index in (0, 1):
        memory.parameters[index].grad = torch.ones(2, 3).to_sparse(1)
    with pytest.warns(
        UserWarning, match=r"'first' is torch\.sparse_coo; it is summed as a dense one"
    ) as told:
        sender.send_rest((0, 1))
    assert len(told) == 1
    assert recorded.noted == {0: True, 1: True}
    assert torch.equal(memory.slot(1).values, torch.ones(2, 3))


def test_a_parameter_that_has_changed_its_shape_is_refused() -> None:
    sender, memory, recorded = make()
    parameter = memory.parameters[0]
    parameter.data = torch.ones(3, 3)
    parameter.grad = torch.ones(3, 3)
    with pytest.raises(ValueError, match=r"'first' is torch\.float32 of shape \(3, 3\).*of shape \(2, 3\)"):
        sender.send(0)
    assert recorded.sent == []
    assert not sender.is_sent(0)
