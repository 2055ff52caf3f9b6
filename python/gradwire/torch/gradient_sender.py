"""GradientSender: puts the gradients of one step into their slots, or into rows, and sends them.

Each parameter is sent once a step; is_sent() tells. A gradient that cannot go into its slot is an error that says what
to do. Where workers send momentum, that goes into the slot.

Threading: calls come one at a time, those of a backward() from autograd's thread.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import torch

if TYPE_CHECKING:
    from gradwire.torch.exchange import Exchange
    from gradwire.torch.gradient_memory import GradientMemory
    from gradwire.torch.momentum import WorkerMomentum
    from gradwire.torch.row_agreement import RowAgreement


class GradientSender:
    """Sends by index, as the memory counts parameters."""

    def __init__(
        self,
        exchange: Exchange,
        memory: GradientMemory,
        rows: RowAgreement,
        momentum: WorkerMomentum | None,
        *,
        warns_of_sparse: bool,
    ) -> None:
        """
        Args:
            exchange: what carries the slots and rows.
            memory: parameters and their slots.
            rows: is told which gradients are sparse.
            momentum: what to send in place of the gradient, or None.
            warns_of_sparse: warn, once, of a sparse gradient that is sent as a dense one.
        """
        self._exchange = exchange
        self._memory = memory
        self._rows = rows
        self._momentum = momentum
        self._warns_of_sparse = warns_of_sparse
        self._told_of_rounding = False
        self._told_of_graph = False
        self._told_of_late_table = False
        self._sent = bytearray()

    def begin(self) -> None:
        """Begins a step, of as many parameters as the memory has now."""
        self._sent = bytearray(len(self._memory))

    def is_sent(self, index: int) -> bool:
        return bool(self._sent[index])

    def send(self, index: int) -> None:
        """Sends a gradient.

        Raises:
            RuntimeError: it was sent in this step.
            ValueError: the parameter has changed its shape since it was declared, or from real to complex.
        """
        if torch.is_grad_enabled():  # backward(create_graph=True); a decorator would cost each gradient 2 us
            self._tell_of_graph(index)
            with torch.no_grad():
                self.send(index)
            return
        if self._sent[index]:
            raise RuntimeError(
                f"gradwire.torch: {self._memory.names[index]!r} got its gradient twice in one backward(); a layer that "
                "is used twice cannot be in a re-entrant checkpoint: use torch.utils.checkpoint with "
                "use_reentrant=False"
            )
        if self._memory.travels_as_rows(index):
            self._sent[index] = True
            self.send_rows(index)
            return
        self.fill(index)
        self._sent[index] = True
        self._exchange.send(index)

    def send_rest(self, indices: Iterable[int]) -> None:
        """Sends those that were not: what earlier passes left, or zeros, so that the sum is complete."""
        for index in indices:
            if not self._sent[index]:
                self.send(index)

    def send_rows(self, index: int) -> None:
        """Sends a sparse gradient; also where it was sent in this step."""
        parameter = self._memory.parameters[index]
        self._exchange.send_rows(index, parameter.grad, parameter)

    def send_instead(self, index: int, value: float) -> None:
        """Sends one value in the place of all elements, or of one row; also where it was sent in this step."""
        if self._memory.travels_as_rows(index):
            parameter = self._memory.parameters[index]
            self._exchange.send_rows(index, torch.full_like(parameter[:1], value), parameter)
        else:
            self._memory.spare_kept(index)
            self._memory.slot(index).values.fill_(value)
            self._exchange.send(index)
        self._sent[index] = True

    def fill(self, index: int) -> None:
        """Has the slot hold what is to be sent, and p.grad be the slot's memory where it can."""
        slot = self._memory.slot(index)
        gradient = self._dense_gradient(index)
        is_held = slot.holds(gradient)
        if is_held and self._momentum is None:
            return
        self._memory.spare_kept(index)
        if self._momentum is not None:
            self._momentum.advance(self._memory.parameters[index], gradient, out=slot.values)
        elif gradient is None:
            slot.values.zero_()
        else:
            self._tell_of_rounding(index, gradient)
            slot.values.copy_(gradient)
        if not is_held:
            self._memory.share(index)

    def _dense_gradient(self, index: int) -> torch.Tensor | None:
        parameter = self._memory.parameters[index]
        gradient = parameter.grad
        if gradient is None:
            return None
        values = self._memory.slot(index).values
        if gradient.numel() != values.numel() or gradient.is_complex() != values.is_complex():
            self._refuse(index, gradient)
        is_sparse = gradient.layout != torch.strided
        self._rows.note(index, is_sparse=is_sparse)
        if is_sparse:
            self._tell_of_dense(index, gradient.layout)
            self._tell_of_late_table(index)
            parameter.grad = gradient.to_dense()
        return parameter.grad

    def _refuse(self, index: int, gradient: torch.Tensor) -> NoReturn:
        """Raises ValueError for a parameter that a user has made another since the optimizer was made."""
        values = self._memory.slot(index).values
        then = "complex numbers" if values.is_complex() else "real numbers"
        raise ValueError(
            f"gradwire.torch: the gradient of {self._memory.names[index]!r} is {gradient.dtype} of shape "
            f"{tuple(gradient.shape)}, and the parameter held {then} of shape {tuple(values.shape)} when its optimizer "
            "was made; make the optimizer anew on all ranks after a parameter has changed its shape, or from real to "
            "complex"
        )

    def _tell_of_graph(self, index: int) -> None:
        """Warns of a gradient that autograd could differentiate: the mean that comes in its place has no graph."""
        gradient = self._memory.parameters[index].grad
        if gradient is not None and gradient.requires_grad and not self._told_of_graph:
            self._told_of_graph = True
            warnings.warn(
                f"gradwire.torch: backward(create_graph=True): p.grad of {self._memory.names[index]!r} becomes the "
                "workers' mean, through which autograd does not differentiate, so a loss that has p.grad in it has no "
                "gradient of that term; take what goes into a loss from torch.autograd.grad(..., create_graph=True), "
                "or call this backward() in optimizer.no_sync()",
                RuntimeWarning,
                stacklevel=3,
            )

    def _tell_of_rounding(self, index: int, gradient: torch.Tensor) -> None:
        """Warns of a model that was given another dtype since its slots were made, of 16 bits."""
        values = self._memory.slot(index).values
        if values.dtype.itemsize < 4 and gradient.dtype != values.dtype and not self._told_of_rounding:
            self._told_of_rounding = True
            warnings.warn(
                f"gradwire.torch: the gradient of {self._memory.names[index]!r} is {gradient.dtype}, and was "
                f"{values.dtype} when its optimizer was made: it is rounded to that, which may lose all of it; make "
                "the optimizer anew on all ranks after a model is given another dtype",
                stacklevel=2,
            )

    def _tell_of_dense(self, index: int, layout: torch.layout) -> None:
        if self._warns_of_sparse:
            self._warns_of_sparse = False
            warnings.warn(
                f"gradwire.torch: the gradient of {self._memory.names[index]!r} is {layout}; it is summed as a dense "
                "one, so a table of many rows is sent whole; sparse_as_dense=True says that this is meant",
                stacklevel=2,
            )

    def _tell_of_late_table(self, index: int) -> None:
        """Warns of a table that ranks took for a dense parameter."""
        if self._rows.is_dense(index) and not self._told_of_late_table:
            self._told_of_late_table = True
            name = self._memory.names[index]
            warnings.warn(
                f"gradwire.torch: the gradient of {name!r} is sparse, and the table is sent whole in each step: in the "
                "first step no rank had a gradient of it, or one had a dense gradient; give "
                f"sparse_parameters=[{name!r}], which has its rows travel",
                RuntimeWarning,
                stacklevel=2,
            )
