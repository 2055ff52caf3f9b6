"""GradientReducer: sends every gradient the moment autograd has it, and waits for the means when backward()
ends.

Each parameter has a slot: a run of one flat float32 buffer, which the engine reads and writes in place. It lies
where the parameters do, if that is one CUDA device, else on the CPU. For float32 parameters there `p.grad` is a
view of the slot; others are converted on the way in and out.

A sparse gradient, as of nn.Embedding(sparse=True), has no slot but travels as rows. Which parameters have one only
their first gradients tell, so in the first step they are summed as dense ones, and then all ranks agree.

Threading: hooks run on autograd's thread, one at a time.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradwire.torch.backward_pass import BackwardPass
from gradwire.torch.exchange import Exchange
from gradwire.torch.exchange_options import ExchangeOptions, warn_of_nonfinite
from gradwire.torch.slots import NO_SLOT, as_slot, home_of, is_slot, runs_of
from gradwire.torch.sparse_gradients import all_finite, gradient_of

if TYPE_CHECKING:
    from gradwire.kv import KVStore
    from gradwire.torch.momentum import WorkerMomentum

_NO_GRADIENT, _SPARSE, _STRIDED = range(3)  # what a parameter has got, as ranks tell each other


class GradientReducer:
    """Hooks the parameters of one model to one store's engine.

    Attributes:
        sync: False while gradients stay local.
        exchange: what carries them.
    """

    def __init__(
        self,
        store: KVStore,
        named: Sequence[tuple[str, torch.Tensor]],
        *,
        passes: int,
        options: ExchangeOptions,
        momentum: WorkerMomentum | None,
    ) -> None:
        """Declares the parameters (a collective) and installs the hooks.

        Args:
            store: whose engine sums; its slots are taken.
            named: parameters in order of the forward pass; the first is the most urgent. Frozen ones are not sent
                while they require no gradient, and keep what they have not sent yet.
            passes: calls of backward() that are accumulated before gradients are sent.
            options: codecs, and what to do in a step in which any rank met a NaN or an infinity.
            momentum: what to send in place of the gradient, or None.

        Raises:
            ValueError: a rank declares other names, shapes or another order; every rank gets the same text.
        """
        self.sync = True
        self.exchange = Exchange(store, options, "optimizer")
        self._options = options
        self._veto = False
        self._passes = passes
        self._passes_done = 0
        self._momentum = momentum
        self._parameters: list[torch.Tensor] = []
        self._names: list[str] = []
        self._slots: list[torch.Tensor] = []
        self._in_place: list[bool] = []
        self._live: list[int] = []  # indices of those that take part in steps
        self._ready = bytearray()
        self._handles: list[Any] = []
        self._backward = BackwardPass(self)
        self._failed = False
        self._densified = options.sparse_gradients != "warn"  # and has been told
        self._sends_rows = options.sparse_gradients == "rows"
        self._rows: set[int] = set()  # indices of those whose gradients travel as rows
        self._layouts = bytearray()  # of this step's gradients, until ranks have agreed which travel so
        self._agreed = True
        self._agreed_since_join = self._stood_in = False
        self._frozen: list[tuple[str, torch.Tensor]] = []  # since the beginning: not declared yet
        self._places: dict[torch.Tensor, int] = {}  # in the order of the forward pass
        self._device = home_of([parameter for _, parameter in named])
        self.add(named)

    def add(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Takes more parameters in, behind the others. A collective, between steps."""
        for _, parameter in named:
            self._places[parameter] = len(self._places)
        self._frozen += [(name, p) for name, p in named if not p.requires_grad]
        self._add_live([(name, p) for name, p in named if p.requires_grad and p.numel() > 0])
        self._bind()

    def _bind(self) -> None:
        self.exchange.bind(self._live)

    def _add_live(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        if not named:
            return
        first = len(self._parameters)
        known = [self._sends_rows and name in self._options.sparse_parameters for name, _ in named]
        slots = iter(
            runs_of([p for (_, p), rows in zip(named, known, strict=True) if not rows], self._device)
        )
        runs = [None if rows else next(slots) for rows in known]
        self.exchange.add(named, runs, [self._places[p] for _, p in named])
        for (name, p), run in zip(named, runs, strict=True):
            self._names.append(name)
            self._parameters.append(p)
            self._slots.append(NO_SLOT if run is None else as_slot(run, p))
            self._in_place.append(p.dtype == torch.float32 and p.device == self._device)
            self._hook(len(self._parameters) - 1)
        self._live += range(first, len(self._parameters))
        self._use_rows([first + i for i, rows in enumerate(known) if rows])
        self._agreed = not self._sends_rows
        self._ready = bytearray(len(self._parameters))
        self._layouts += bytearray(len(named))  # in the middle of a step, where parameters thaw

    def _use_rows(self, indices: Sequence[int]) -> None:
        if not indices:
            return
        self.exchange.use_rows(indices)
        self._rows |= set(indices)
        for index in indices:
            self._slots[index], self._in_place[index] = NO_SLOT, False

    def _hook(self, index: int) -> None:
        # Hooks live as long as the model; they must not keep the engine, or it would outlive the interpreter.
        hook = functools.partial(_on_gradient, weakref.ref(self), index)
        self._handles.append(
            self._parameters[index].register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        )

    def close(self) -> None:
        """Takes the hooks off; gradients then stay local."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.exchange.close()

    # -- during backward() -----------------------------------------------------------------------------

    def on_gradient(self, index: int) -> None:
        """Takes what autograd has just accumulated in a parameter's grad."""
        if not self.sync:
            return
        self._backward.enter()
        if self._passes_done + 1 == self._passes:
            self._submit(index)

    def on_backward_begin(self) -> None:
        """Runs before the first gradient of a backward() is taken.

        Raises:
            RuntimeError: workers send momentum, and have for the step that is not taken yet; on all ranks.
        """
        self.settle()
        if self._momentum is not None:
            self._momentum.require_level()
        self._choose_live()

    def _choose_live(self) -> None:
        """Leaves out of steps what was frozen before this one, and takes in again what no longer is. A collective where
        there is any: every rank runs the same program.
        """
        begun = self._live if self._passes_done > 0 else ()
        live = [i for i, parameter in enumerate(self._parameters) if parameter.requires_grad or i in begun]
        if live != self._live:
            self._live = live
            self._bind()

    @torch.no_grad()
    def _submit(self, index: int) -> None:
        if self._ready[index]:
            raise RuntimeError(
                f"gradwire.torch: {self._names[index]!r} got its gradient twice in one backward(); a layer that is "
                "used twice cannot be in a re-entrant checkpoint: use torch.utils.checkpoint with use_reentrant=False"
            )
        if index in self._rows:
            self._ready[index] = True
            self._send_rows(index)
            return
        self._fill(index)
        self._ready[index] = True
        self._send(index)

    def _send(self, index: int) -> None:
        self.exchange.send(index)

    def _send_rows(self, index: int) -> None:
        self.exchange.send_rows(index, self._parameters[index].grad, self._parameters[index])

    def _fill(self, index: int) -> None:
        """Has the slot hold what is to be sent, and p.grad be the slot where it can."""
        parameter, slot = self._parameters[index], self._slots[index]
        gradient = self._dense_gradient(index)
        if self._momentum is not None:
            self._momentum.advance(parameter, gradient, out=slot)
        elif gradient is None:
            slot.zero_()
        elif gradient.data_ptr() != slot.data_ptr() or gradient.stride() != slot.stride():
            slot.copy_(gradient)
        if self._in_place[index]:
            parameter.grad = slot  # zero_grad(set_to_none=True), the default, took it away

    def _dense_gradient(self, index: int) -> torch.Tensor | None:
        parameter = self._parameters[index]
        if parameter.grad is None:
            return None
        if parameter.grad.layout == torch.strided:
            self._layouts[index] = _STRIDED
            return parameter.grad
        self._layouts[index] = _SPARSE
        if not self._densified:
            self._densified = True
            warnings.warn(
                f"gradwire.torch: the gradient of {self._names[index]!r} is {parameter.grad.layout}; it is summed as "
                "a dense one, so a table of many rows is sent whole; sparse_as_dense=True says that this is meant",
                stacklevel=2,
            )
        parameter.grad = parameter.grad.to_dense()
        return parameter.grad

    # -- after it --------------------------------------------------------------------------------------

    def on_backward_end(self) -> None:
        """Runs when a backward() has computed all its gradients."""
        self._passes_done += 1
        if self._passes_done == self._passes:
            self._send_rest()

    def flush(self) -> None:
        """Sends what fewer calls of backward() have left than were to be added up. A collective.

        Raises:
            RuntimeError: a GradScaler has looked at those gradients, and each rank's has found something of its own.
        """
        if self._passes_done == 0:
            return
        if self._options.grad_scaler is not None:
            raise RuntimeError(
                f"gradwire.torch: step() after {self._passes_done} of {self._passes} calls of backward() "
                "(backward_passes_per_step), with grad_scaler: the scaler has looked at this rank's own gradients "
                "already, so that ranks may differ in whether to step; leave out the batches that do not fill a step, "
                "or leave backward_passes_per_step out and call all but a step's last backward() in optimizer.no_sync()"
            )
        self._send_rest()

    def _send_rest(self) -> None:
        """Ends a step's last pass."""
        self._passes_done = 0
        # Unused in this pass: what earlier passes left, or zeros, so that the sum is complete.
        for index in self._live:
            if not self._ready[index]:
                self._submit(index)
        self._end_step()

    def _end_step(self) -> None:
        """Waits for the means of all that was sent."""
        if self._finish_step():
            self._handle_nonfinite()

    def _finish_step(self) -> bool:
        """Waits for the means of all that was sent; returns whether any rank met a NaN or an infinity."""
        nonfinite = self._await_sums()
        self._ready = bytearray(len(self._parameters))
        self._copy_back()
        nonfinite |= self._thaw()
        self._agree_on_rows()
        self.exchange.advance()
        if self._momentum is not None:
            self._momentum.end_step(nonfinite=nonfinite)
        # Not that of an earlier step, which GradScaler may have skipped without asking.
        self._veto = nonfinite and self._options.vetoes
        return nonfinite

    def _await_sums(self) -> bool:
        """Ends what was sent; returns whether any rank met a NaN or an infinity."""
        return self.exchange.finish()

    @torch.no_grad()
    def _copy_back(self) -> None:
        for index, rows in self.exchange.row_means.items():
            self._parameters[index].grad = gradient_of(self._parameters[index], rows)
        for index in self._live:
            if self._in_place[index] or index in self._rows:
                continue
            parameter = self._parameters[index]
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(self._slots[index])

    @torch.no_grad()
    def _agree_on_rows(self) -> None:
        """Has parameters travel as rows from the next step on that had a sparse gradient on some rank and no other kind
        on any. A collective, once for every parameter.
        """
        if self._agreed:
            return
        self._agreed = self._agreed_since_join = True
        layouts = self.exchange.gather("layouts of gradients", bytes(self._layouts))
        chosen = [
            index
            for index, kinds in enumerate(zip(*layouts, strict=True))
            if _SPARSE in kinds and _STRIDED not in kinds and index not in self._rows
        ]
        for index in chosen:
            parameter = self._parameters[index]
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to_sparse(1)
        self._use_rows(chosen)
        if chosen:
            self._bind()

    @property
    def row_names(self) -> list[str] | None:
        """Of parameters whose gradients travel as rows; None where ranks have not agreed on them yet."""
        known = self._sends_rows and self._agreed
        return [self._names[index] for index in sorted(self._rows)] if known else None

    def take_over_rows(self, names: Sequence[str]) -> None:
        """Has gradients travel as rows that did in a job that was saved, in the place of what the first step would
        tell. A collective, before that.

        Raises:
            ValueError: they cannot here; or others do. The same on all ranks.
        """
        here = {self._names[index] for index in self._rows}
        if different := sorted(here.difference(names).union(() if self._sends_rows else names)):
            raise ValueError(
                f"gradwire.torch: gradients of {different[0]!r} travel as rows either here or in the job that was "
                "saved; give sparse_parameters, sparse_as_dense and what else has them summed as dense ones as there"
            )
        chosen = [index for index, name in enumerate(self._names) if name in names and name not in here]
        self._use_rows(chosen)
        if chosen:
            self._bind()
        self._agreed = True

    def _thaw(self) -> bool:
        """Sends what this backward() left in parameters that were frozen until now."""
        thawed = self._take_in_thawed()
        if not thawed:
            return False
        for index in thawed:
            if index in self._rows:
                self._send_rows(index)
            else:
                self.exchange.send_apart(index)
        nonfinite = self.exchange.finish()
        self._bind()
        self._copy_back()
        return nonfinite

    @torch.no_grad()
    def _take_in_thawed(self) -> range:
        """Takes in parameters that were frozen until now; returns which they are. Every rank runs the same program, so
        all thaw the same at once.
        """
        first = len(self._parameters)
        thawed = [(name, p) for name, p in self._frozen if p.requires_grad]
        if thawed:
            self._frozen = [(name, p) for name, p in self._frozen if not p.requires_grad]
            self._add_live([(name, p) for name, p in thawed if p.numel() > 0])
        added = range(first, len(self._parameters))
        for index in added:
            if index not in self._rows:
                self._fill(index)
        return added

    def _handle_nonfinite(self) -> None:
        if not self._options.vetoes:
            if self._options.on_nonfinite == "warn":
                warn_of_nonfinite("warn")
            return
        if self._options.grad_scaler is None:  # to a GradScaler it is its daily work
            warn_of_nonfinite("skip_step")
        # GradScaler looks for one, to skip the step and lower its scale on every rank.
        gradients = [self._parameters[index].grad for index in self._live]
        values = [g._values() if g.is_sparse else g for g in gradients if g is not None]
        first = next((each for each in values if each.numel() > 0), None)
        if first is not None:
            with torch.no_grad():
                first.fill_(float("nan"))

    # -- when it fails ---------------------------------------------------------------------------------

    def on_backward_failed(self) -> None:
        """Notes that a backward() raised an error before its end."""
        self._failed = True

    def settle(self) -> None:
        """Ends a backward() that failed, which counts as one of those that are added up. Where it was the last of them
        the other ranks wait for what it has not sent: they get NaNs, so that they hear of it. p.grad is then what it is
        there, but None if that is no number, and step() does here what it does there.
        """
        if not self._failed:
            return
        self._failed = False
        self._passes_done += 1
        if self._passes_done < self._passes:
            return
        self._passes_done = 0
        for index in self._live:
            if not self._ready[index]:
                self._send_instead(index, float("nan"))
            self._parameters[index].grad = self._slots[index] if self._in_place[index] else None
        self._finish_step()
        live = [self._parameters[index] for index in self._live]
        if self._veto or not all_finite(parameter.grad for parameter in live):
            for parameter in live:
                parameter.grad = None

    def _send_instead(self, index: int, value: float) -> None:
        """Sends one value in the place of a gradient."""
        if index in self._rows:
            parameter = self._parameters[index]
            self.exchange.send_rows(index, torch.full_like(parameter[:1], value), parameter)
            return
        self._slots[index].fill_(value)
        self._send(index)

    # -- who has no batch left -------------------------------------------------------------------------

    @torch.no_grad()
    def stand_in(self) -> None:
        """Takes part in what needs all ranks, also those that join before their next batch. A collective where there is
        any: leaving out what was frozen since the last one; and, with zeros, the step in which ranks agree what travels
        as rows, if that is still to come.
        """
        self._passes_done = 0  # what was not sent is this rank's alone
        self._choose_live()
        if self._agreed:
            return
        self._stood_in = True
        for index in self._live:
            parameter = self._parameters[index]
            if self._in_place[index] and is_slot(parameter.grad, self._slots[index]):
                parameter.grad = None
            self._send_instead(index, 0.0)
        self._await_sums()
        self._thaw()
        self._agree_on_rows()
        self.exchange.advance()

    def last_to_step(self, last: int) -> int:
        """Returns who has taken all steps, of which `last` has been in all: that may be one that stood in. A collective
        where ranks have agreed since the last time.
        """
        if not self._agreed_since_join:
            return last
        stood_in = self.exchange.gather("ranks without a step", bytes([self._stood_in]))
        self._agreed_since_join = self._stood_in = False
        # If it stood in, nobody has been in more steps than that one, in which all were.
        ranks = [last, *range(len(stood_in))]
        return next((rank for rank in ranks if not stood_in[rank][0]), last)

    # -- the step --------------------------------------------------------------------------------------

    def take_veto(self) -> bool:
        """Says whether this step is to be skipped, and forgets it."""
        veto, self._veto = self._veto, False
        return veto


def _on_gradient(reducer: weakref.ref[GradientReducer], index: int, parameter: torch.Tensor) -> None:
    alive = reducer()
    if alive is not None:
        alive.on_gradient(index)
