"""MeanReceiver: ends an exchange, and puts the means that it received into p.grad.

With the end of an exchange come those parameters that waited for it: frozen until now, or added later. Their gradients
are exchanged then, by themselves. It also says whether a step is to be skipped, because a rank met a NaN or an
infinity.

Threading: one thread at a time. Every rank runs the same program, so what is a collective here is called by all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from gradwire.torch.exchange_options import ExchangeOptions, warn_of_nonfinite
from gradwire.torch.live_parameters import LiveParameters, TakesPart
from gradwire.torch.sparse_gradients import gradient_of

if TYPE_CHECKING:
    from gradwire.torch.exchange import Exchange
    from gradwire.torch.gradient_memory import GradientMemory
    from gradwire.torch.gradient_sender import GradientSender
    from gradwire.torch.momentum import WorkerMomentum
    from gradwire.torch.overlapping.overlap import OverlappedSums
    from gradwire.torch.row_agreement import RowAgreement


class MeanReceiver:
    """
    Attributes:
        vetoes_step: the step on these means is to be skipped, until take_veto().
    """

    def __init__(
        self,
        exchange: Exchange,
        memory: GradientMemory,
        live: LiveParameters,
        rows: RowAgreement,
        sender: GradientSender,
        *,
        options: ExchangeOptions,
        momentum: WorkerMomentum | None,
    ) -> None:
        """
        Args:
            exchange: what carries the slots and rows.
            memory: parameters and their slots.
            live: which parameters take part, and which wait.
            rows: which gradients travel as rows; ranks agree at the end of the first step, and of some later ones.
            sender: begins a new step once this one's means are there, and sends what waited.
            options: what to do in a step in which any rank met a NaN or an infinity.
            momentum: what was sent in place of the gradient, or None.
        """
        self._exchange = exchange
        self._memory = memory
        self._live = live
        self._rows = rows
        self._sender = sender
        self._options = options
        self._momentum = momentum
        self.vetoes_step = False

    def receive(self) -> None:
        """Waits for the means of all that was sent. Warns of a NaN or an infinity, and makes a GradScaler see it."""
        if self.finish():
            self._handle_nonfinite()

    def finish(self) -> bool:
        """As receive(), but says nothing of a NaN or an infinity. Returns whether any rank met one."""
        nonfinite = self._exchange.finish()
        self._sender.begin()
        self._copy_back(self._live.indices)
        nonfinite |= self._exchange_waiting(requires_gradient)
        self._look_at_unseen()
        self._agree_on_rows()
        self._exchange.advance()
        if self._momentum is not None:
            self._momentum.end_step(nonfinite=nonfinite)
        # Not that of an earlier step, which GradScaler may have skipped without asking.
        self.vetoes_step = nonfinite and self._options.vetoes
        return nonfinite

    def leave_to(self, overlap: OverlappedSums) -> None:
        """Leaves the sums on their way: overlap receives them."""
        self._sender.begin()
        thawed = self._take_in_waiting(requires_gradient)
        for index in thawed:
            self._exchange.send_apart(index)
        sums = self._exchange.sums()
        if thawed:  # a collective, which needs a place of its own in the program, and no step in progress
            self._exchange.wait()
            self._live.bind()
        overlap.begin(sums)
        if self._exchange.needs_quiet:
            overlap.synchronize()
        self._exchange.advance()

    @property
    def is_behind(self) -> bool:
        """True where a parameter that waits has got a gradient since the last exchange, also one that is frozen."""
        return self._live.waits_for(has_gradient)

    def catch_up(self) -> None:
        """Exchanges, between a backward() and its step, the gradients of parameters that waited."""
        if self._exchange_waiting(has_gradient) and not self.vetoes_step:
            self.vetoes_step = self._options.vetoes
            self._handle_nonfinite()

    def stand_in(self) -> None:
        """Takes part in the end of the first step on a rank that has no batch. What it receives is dropped."""
        self._sender.begin()
        self._exchange.finish()
        self._exchange_waiting(requires_gradient)
        self._agree_on_rows()
        self._exchange.advance()

    def take_veto(self) -> bool:
        """Says whether this step is to be skipped, and forgets it."""
        veto, self.vetoes_step = self.vetoes_step, False
        return veto

    @torch.no_grad()
    def _copy_back(self, indices: Iterable[int]) -> None:
        """Has p.grad of these be their means."""
        for index, rows in self._exchange.row_means.items():
            parameter = self._memory.parameters[index]
            parameter.grad = gradient_of(parameter, rows)
        for index in indices:
            self._memory.take_mean(index)

    def _look_at_unseen(self) -> None:
        """Has ranks agree once more where a parameter got its first gradient in this step, on whichever rank."""
        unseen = set(self._live.indices).intersection(self._rows.unseen)
        if any(bool(self._memory.slot(index).values.any()) for index in unseen):
            self._rows.make_again()

    @torch.no_grad()
    def _agree_on_rows(self) -> None:
        chosen = self._rows.make()
        for index in chosen:
            parameter = self._memory.parameters[index]
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to_sparse(1)
        self._live.use_rows(chosen)
        for index in chosen:
            self._memory.take_mean(index)
        if chosen:
            self._live.bind()
        for index in set(self._live.indices).intersection(self._rows.unseen):
            self._memory.withhold_mean(index)  # optimizers of tables, such as SparseAdam, take no dense one

    def _exchange_waiting(self, takes_part: TakesPart) -> bool:
        """Exchanges what this step left in parameters that waited. Returns whether any rank met a NaN or an infinity
        there.
        """
        thawed = self._take_in_waiting(takes_part)
        if not thawed:
            return False
        for index in thawed:
            if self._memory.travels_as_rows(index):
                self._sender.send_rows(index)
            else:
                self._exchange.send_apart(index)
        nonfinite = self._exchange.finish()
        self._live.bind()
        self._copy_back(thawed)
        return nonfinite

    @torch.no_grad()
    def _take_in_waiting(self, takes_part: TakesPart) -> range:
        """Takes in parameters that have waited, with what they have to send; returns which they are."""
        added = self._live.take_in_waiting(takes_part)
        if added:
            self._sender.begin()
        for index in added:
            if not self._memory.travels_as_rows(index):
                self._sender.fill(index)
        return added

    def _handle_nonfinite(self) -> None:
        if not self._options.vetoes:
            if self._options.on_nonfinite == "warn":
                warn_of_nonfinite("warn")
            return
        if self._options.grad_scaler is None:  # to a GradScaler it is its daily work
            warn_of_nonfinite("skip_step")
        # GradScaler looks for one, to skip the step and lower its scale on every rank.
        gradients = [self._memory.parameters[index].grad for index in self._live.indices]
        values = [g._values() if g.is_sparse else g for g in gradients if g is not None]
        first = next((each for each in values if each.numel() > 0), None)
        if first is not None:
            with torch.no_grad():
                first.fill_(float("nan"))


def requires_gradient(parameter: torch.Tensor) -> bool:
    return parameter.requires_grad


def has_gradient(parameter: torch.Tensor) -> bool:
    """Also of one that is frozen, and was given it by hand."""
    return parameter.requires_grad or parameter.grad is not None
