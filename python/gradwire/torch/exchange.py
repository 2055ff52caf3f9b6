"""Exchange: gradients go to the workers' sum and come back as means, whoever hands them over.

DistributedOptimizer hands over gradients as autograd's hooks bring them, DDP's hook as DDP's buckets do; both go
through here, so codecs, warm-up, vetoes, loss scales and residuals are the same.

Threading: send() and send_from() never block; finish() waits without the GIL. One thread at a time.
"""

from __future__ import annotations

import functools
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gradwire.stores.devices import stream_of
from gradwire.torch import session
from gradwire.torch.codecs.auto_codecs import AutoCodecs
from gradwire.torch.codecs.row_column_scales import RowColumnScales, memory_rows
from gradwire.torch.elements import exchanged_dtype, real_elements, real_shape
from gradwire.torch.exchange_options import ExchangeOptions
from gradwire.torch.sparse_gradients import RowExchange, Rows, rows_of, rows_of_flat, saved_flat, saved_rows

if TYPE_CHECKING:
    from gradwire import _core
    from gradwire.compress import Compression
    from gradwire.kv import KVStore

STATE_KEY = "gradwire"  # of an exchange's state in an optimizer's state_dict()

# A store's keys are declared once, so every exchange's have a number, equal on all ranks; also where ranks are threads
# of one process.
_calls: weakref.WeakKeyDictionary[KVStore, Iterator[int]] = weakref.WeakKeyDictionary()
# Numbers of a store's sets of slots that exchanges have. Ranks must agree in them, so it is not left to the garbage
# collector.
_sets_of: weakref.WeakKeyDictionary[KVStore, set[int]] = weakref.WeakKeyDictionary()


@dataclass
class _Parameter:
    name: str
    key: int
    place: int  # in the order of the forward pass: the lower, the more urgent
    run: torch.Tensor | None  # real elements in the order of memory; None: given every time
    own: Compression | None
    shape: tuple[int, ...]
    rows: int | None  # of a matrix whose rows and columns are scaled; None: it is not


class Exchange:
    """The parameters of one model at one store's engine. A parameter is known by its index, in order of add()."""

    def __init__(self, store: KVStore, options: ExchangeOptions, *, has_slots: bool = True) -> None:
        """
        Args:
            store: whose engine sums. An exchange that is there alone, and has slots, borrows its compression until
                close(); others set codecs key by key. The store's own keys, and exchanges that are given no codec,
                travel by what was set on the store.
            has_slots: takes a set of slots, in which small parameters travel together. False: sends each parameter
                apart, by submit().
        """
        taken = _sets_of.setdefault(store, set())
        self._set = next(number for number in itertools.count() if number not in taken)
        self._borrows = has_slots and not taken  # else it would be the others', who may follow the store's
        # Where codecs are chosen, small parameters of a bucket follow the store's compression.
        self._fuses = has_slots and (self._borrows or options.controller is None)
        self._store = store
        self._engine: _core.Engine = store.engine
        self._options = options
        self._parameters: list[_Parameter] = []
        self._slots: list[int] = []  # by index of parameter; -1 where it has none
        self._apart: list[
            tuple[_core.Ticket, int]
        ] = []  # what was sent without a slot, and of which parameter
        self._dense: list[torch.Tensor] = []  # of this step: what no codec looks at
        self._sent: set[int] = set()  # in the step in progress
        self._rows = RowExchange(store)
        self.row_means: dict[int, Rows] = {}  # of the last step, by index
        self.program_step = 0  # what the next step is called, for ranks to compare; 0: they do not
        self._prefix = f"gradient.{next(_calls.setdefault(store, itertools.count()))}."
        self._scales = RowColumnScales()
        self._scaled: dict[int, torch.Tensor] = {}  # of this step: what scales are learned from, by index
        self._divided: set[int] = set()  # those of them that were divided
        self._scale = 1.0  # of the loss, in the step in progress
        self._begun = self._marked = self._met_nonfinite = False
        self._default: Compression | None = None  # set key by key
        self._loan = object()
        store.reclaim()
        if options.default is not None:
            self._use(options.default)
        elif store.compression != store.own_compression:
            self._use(store.own_compression)  # and not by what another has borrowed
        self._auto: AutoCodecs | None = None
        if options.controller is not None:
            self._auto = AutoCodecs(store, options.controller, self._loan if self._borrows else None)
        if options.warm_up is not None:
            self._use(options.warm_up.compression())
        if options.vetoes:
            self._engine.keep_rollback(True)
        if self._fuses:  # nothing has failed
            taken.add(self._set)

    def close(self) -> None:
        """Leaves the slots to another, and the store the compression that it had. Discards what was not sent. On all
        ranks at the same place.
        """
        self._engine.discard_residuals([parameter.key for parameter in self._parameters])
        self._store.give_back(self._loan)
        if self._fuses:
            self._fuses = self._borrows = False
            _sets_of[self._store].discard(self._set)

    def add(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        runs: Sequence[torch.Tensor | None],
        places: Sequence[int],
    ) -> None:
        """Declares parameters; those with memory of their own take part in steps from a bind() with them on. A
        collective, between steps.

        Args:
            named: names and parameters.
            places: where they are in the forward pass: the lowest is the most urgent.
            runs: for each its memory, kept as long as this: (elements,) of float16, bfloat16 or float32, all on the
                CPU or all on one device; of float64, on the CPU; of a complex parameter twice as many elements. Or
                None: it will be given to send_from().

        Raises:
            ValueError: ranks differ in names, shapes or order; every rank gets the same text.
        """
        keys = self._engine.declare(
            [
                (self._prefix + _wire_name(name, p), real_shape(p), _dtype_name(p, run))
                for (name, p), run in zip(named, runs, strict=True)
            ]
        )
        added = [
            _Parameter(name, key, place, run, own, tuple(p.shape), self._rows_of(p, own))
            for (name, p), key, run, place, own in zip(
                named, keys, runs, places, (self._options.codecs.of(*each) for each in named), strict=True
            )
        ]
        apart: dict[Compression, list[int]] = {}
        for parameter in added:
            if (compression := parameter.own or self._default) is not None:
                apart.setdefault(compression, []).append(parameter.key)
        for compression, own_keys in apart.items():
            self._engine.set_key_compression(own_keys, compression.spec, compression.reply)
        if self._auto is not None:
            self._auto.add(added, [real_elements(p) for _, p in named])
        self._parameters += added

    def _rows_of(self, parameter: torch.Tensor, own: Compression | None) -> int | None:
        is_dense = own is not None and own.spec == "none"
        return None if is_dense or not self._options.row_column_scales else memory_rows(parameter)

    def use_rows(self, indices: Sequence[int]) -> None:
        """Has the gradients of these parameters travel as rows, with what they have not sent yet; their memory is no
        longer used. A collective, between steps; then bind().
        """
        chosen = [self._parameters[index] for index in indices]
        self._rows.add(
            indices,
            [(self._prefix + parameter.name, parameter.shape) for parameter in chosen],
            [parameter.own or self._default for parameter in chosen],
        )
        for index, parameter in zip(indices, chosen, strict=True):
            parameter.run = parameter.rows = None
            if (unsent := self._engine.residual(parameter.key)).size:
                self._rows.set_residual(index, rows_of_flat(unsent, parameter.shape))
                self._engine.set_residual(parameter.key, np.zeros_like(unsent))
        if self._options.vetoes:
            self._rows.keep_rollback()

    @property
    def has_tables(self) -> bool:
        """Whether gradients of any parameter travel as rows."""
        return len(self._rows) > 0

    def _use(self, compression: Compression) -> None:
        """Has parameters without a codec of their own travel by this from the next step on. A collective."""
        if self._borrows:
            self._store.lend(compression, self._loan)
            return
        self._default = compression
        following = [index for index, parameter in enumerate(self._parameters) if parameter.own is None]
        # Also where there are no keys yet: ranks that differ are told at once.
        self._engine.set_key_compression(
            [self._parameters[index].key for index in following], compression.spec, compression.reply
        )
        self._rows.use(compression, following)

    @property
    def _compression(self) -> Compression:
        """What parameters without a codec of their own travel by."""
        return self._default or self._store.compression

    def gather(self, name: str, blob: bytes) -> list[bytes]:
        """Every rank's blob, in rank order. A collective."""
        return self._engine.all_gather(name, blob)

    def bind(self, taking_part: Iterable[int]) -> None:
        """Has small parameters travel together, with what they have not sent yet. A collective, between steps.

        Args:
            taking_part: indices of all that are sent in the steps that follow; others keep what they have not sent.
        """
        indices = [index for index in taking_part if self._has_slot(index)]
        indices.sort(key=lambda index: self._parameters[index].place)  # neighbours travel together
        self._slots = [-1] * len(self._parameters)
        for slot, index in enumerate(indices):
            self._slots[index] = slot
        bound = [self._parameters[index] for index in indices]
        if bound and self._fuses:
            arrays: list[Any] = [p.run for p in bound]  # any that speak DLPack, which the stub does not say
            follows = [int(p.own is None) for p in bound]  # the default, whenever that changes
            self._engine.bind_slots(
                [p.key for p in bound], arrays, [-p.place for p in bound], self._set, follows
            )

    def _has_slot(self, index: int) -> bool:
        """What is of float64 travels by itself."""
        run = self._parameters[index].run
        return run is not None and run.dtype != torch.float64

    # -- a step ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        session.require_sums(self._store)  # set_optimizer() may have been called since
        self._begun = True
        scaler = self._options.grad_scaler
        self._scale = float(scaler.get_scale()) if scaler is not None else 1.0
        self._engine.set_slot_scale(self._mean, self._set)
        self._engine.set_program_step(self.program_step, self._set)

    @property
    def _mean(self) -> float:
        """What a sum is multiplied by: a mean, in the loss's scale again."""
        return self._scale / self._store.num_workers

    def send(self, index: int) -> None:
        """Says that a parameter's own run holds its gradient, of the scaled loss if there is a scale."""
        if not self._fuses or not self._has_slot(index):
            self.send_apart(index)
            return
        run = self._parameters[index].run
        assert run is not None
        self._prepare(index, run)
        self._marked = True
        self._engine.mark_ready(self._slots[index], stream_of(run).get("stream", 0), self._set)

    def send_apart(self, index: int) -> None:
        """As send(), in a step in which others that have memory of their own are not sent."""
        run = self._parameters[index].run
        assert run is not None
        self.send_from(index, run)

    def send_from(self, index: int, run: torch.Tensor) -> None:
        """Sends the gradient that run holds: real (elements,), contiguous, as add() takes it. The mean will be
        there.
        """
        self._apart.append((self._submit(index, run), index))

    def send_rows(self, index: int, gradient: torch.Tensor | None, parameter: torch.Tensor) -> None:
        """Sends a gradient's rows, of the scaled loss if there is a scale; the mean will be in row_means."""
        if not self._begun:
            self._begin()
        self._sent.add(index)
        ids, rows = rows_of(gradient, parameter)
        if self._scale != 1.0:
            rows = rows * np.float32(1.0 / self._scale)  # a copy: these are the gradient's own
        self._rows.send(index, (ids, rows), -self._parameters[index].place, self.program_step)

    def submit(self, index: int, run: torch.Tensor | None = None) -> _core.Ticket:
        """Sends a gradient apart from all others. The mean will be there when the ticket is done, which the caller
        waits for before finish().

        Args:
            run: what holds the gradient, as send_from() takes it. Default: the parameter's own.
        """
        if run is None:
            run = self._parameters[index].run
            assert run is not None
        return self._submit(index, run)

    def take_in(self, tickets: Mapping[int, _core.Ticket]) -> None:
        """Waits for what submit() sent of these parameters: their runs hold means then, which finish() hears of.

        Raises: as wait().
        """
        for ticket in tickets.values():
            self._store.wait_until(ticket.wait)
            self._met_nonfinite |= ticket.nonfinite
        self._scale_back(tickets)

    def _submit(self, index: int, run: torch.Tensor) -> _core.Ticket:
        self._prepare(index, run)
        parameter = self._parameters[index]
        memory: Any = run  # speaks DLPack, which the stub does not say
        return self._engine.push_pull(
            parameter.key, memory, memory, -parameter.place, self._mean, self.program_step, **stream_of(run)
        )

    def sums(self) -> list[tuple[_core.Ticket, list[int]]]:
        """Returns what the step waits for, once all is sent: tickets, each with the parameters whose means are there
        when it is done. Small ones that travel together share one. finish() still ends the step.
        """
        found = [(ticket, [index]) for ticket, index in self._apart]
        if self._marked:
            index_of = {slot: index for index, slot in enumerate(self._slots) if slot >= 0}
            found += [
                (ticket, [index_of[slot] for slot in slots])
                for ticket, slots in self._engine.slot_sums(self._set)
            ]
        return found

    def _prepare(self, index: int, run: torch.Tensor) -> None:
        if not self._begun:
            self._begin()
        self._sent.add(index)
        if self._scale != 1.0:
            run.mul_(1.0 / self._scale)  # a power of two, as torch's are: exact
        if self._auto is not None:
            self._auto.before_send(index, run)
        parameter = self._parameters[index]
        compression = parameter.own or self._compression
        if parameter.rows is not None:
            self._scaled[index] = run
        if compression.spec == "none":
            self._dense.append(run)
        elif parameter.rows is not None:
            self._divided.add(index)
            self._scales.divide(parameter.name, run, parameter.rows)

    def wait(self) -> None:
        """Waits for the means of what was sent: all that bind() was given, or none of those. bind() may follow.

        Raises:
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        tickets = [ticket for ticket, _ in self._apart]
        for ticket in tickets:
            self._store.wait_until(ticket.wait)
        self._apart.clear()
        if self._marked:
            tickets += [ticket for ticket, _ in self._engine.slot_sums(self._set)]
            self._store.wait_until(functools.partial(self._engine.drain, set=self._set))
        self._marked = False
        self._met_nonfinite |= any(ticket.nonfinite for ticket in tickets)

    def finish(self, agree: Callable[[bool], bool] | None = None) -> bool:
        """Ends the step, once all means are there: wait(). Returns whether any rank met a NaN or an infinity; residuals
        are then as they were before, if such a step is not taken.

        Args:
            agree: called in a job that does not take such steps, with whether this store's ranks met one; returns
                whether any others have, who share the model and not the store. Default: there are none.

        Raises: as wait().
        """
        self.wait()
        self._scale_back(list(self._scaled))
        self.row_means = self._rows.finish(self._mean)
        self._store.print_notices()
        nonfinite = self._met_nonfinite or self._rows.met_nonfinite
        self._begun = self._met_nonfinite = False
        if self._options.vetoes:
            # Every rank has the same sums, and so finds the same.
            nonfinite = nonfinite or not all(bool(torch.isfinite(run).all()) for run in self._dense)
            nonfinite = nonfinite or not all(np.isfinite(rows).all() for _, rows in self.row_means.values())
            if agree is not None:
                nonfinite = agree(nonfinite)
            if nonfinite:
                self._engine.roll_back([self._parameters[index].key for index in sorted(self._sent)])
                self._rows.roll_back(self._sent)
        self._dense.clear()
        return nonfinite

    def _scale_back(self, indices: Iterable[int]) -> None:
        """Has the means that are there be those of gradients, and the scales learn from them."""
        for index in indices:
            if (run := self._scaled.pop(index, None)) is None:
                continue
            parameter = self._parameters[index]
            assert parameter.rows is not None
            if index in self._divided:
                self._scales.multiply(parameter.name, run, parameter.rows)
            mean = run if self._scale == 1.0 else run / self._scale
            self._scales.learn(parameter.name, mean, parameter.rows)
            self._divided.discard(index)

    def add_to_residual(self, index: int, mean: torch.Tensor) -> None:
        """Follows finish(): has what a step brought for a parameter travel once more, since no rank uses it. All ranks
        call it with the same mean, but for what each has taken off it itself.

        Args:
            mean: real (elements,), in the loss's scale.
        """
        values = (mean if self._scale == 1.0 else mean / self._scale).float().cpu().contiguous()
        parameter = self._parameters[index]
        if parameter.rows is not None and (parameter.own or self._compression).spec != "none":
            values = values.clone()  # the caller's own memory, perhaps
            self._scales.divide(parameter.name, values, parameter.rows)
        self._engine.add_to_residual(parameter.key, values.numpy())

    def advance(self) -> None:
        """Follows finish(): what is sent next may travel by another codec. A collective where there is a controller."""
        self._sent.clear()
        if self._auto is not None:
            self._auto.advance()

    def count_step(self) -> None:
        """Says that a step is taken: the next may have another codec. A collective where there is a warm-up."""
        warm_up = self._options.warm_up
        if warm_up is None:
            return
        warm_up.step += 1
        if (following := warm_up.compression()) != self._compression:
            self._use(following)

    @property
    def needs_quiet(self) -> bool:
        """True where no sum may be on its way at the next advance()."""
        return self._auto is not None and self._auto.needs_quiet

    # -- checkpoints -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Returns what this rank's codecs have not sent yet, and where the warm-up is: tensors, text and numbers.
        Empty where nothing is kept.
        """
        residuals: dict[str, Any] = {}
        for index, parameter in enumerate(self._parameters):
            if index in self._rows:
                ids, rows = self._rows.residual(index)
                if ids.size:
                    residuals[parameter.name] = {"ids": torch.from_numpy(ids), "rows": torch.from_numpy(rows)}
                continue
            residual = self._engine.residual(parameter.key)
            if residual.size:
                residuals[parameter.name] = torch.from_numpy(residual)
        state: dict[str, Any] = {}
        if residuals:
            state |= {"rank": self._store.rank, "residuals": residuals}
        if self._options.warm_up is not None:
            state["step"] = self._options.warm_up.step
        if self._auto is not None:
            state["auto"] = self._auto.state()
        if scales := self._scales.state():
            state["scales"] = scales
        return state

    def load_codecs(self, state: Mapping[str, Any]) -> None:
        """Has gradients travel as when state() returned this. A collective where that is of a warm-up, or of codecs
        that were chosen.
        """
        if self._options.warm_up is not None and "step" in state:
            self._options.warm_up.step = int(state["step"])
            self._use(self._options.warm_up.compression())
        if self._auto is not None and "auto" in state:
            self._auto.load(state["auto"])
        if self._options.row_column_scales:
            self._scales.load(state.get("scales", {}))

    def load(self, state: Mapping[str, Any], since: int = 0) -> None:
        """Goes on from what state() returned; parameters that it lacks begin with nothing left to send. Residuals of
        another rank are left, with a warning: they are what that rank still owes. A collective where the state is of
        a warm-up.

        Args:
            since: residuals alone, of parameters from this index on, which were added later; 0: all.

        Raises:
            ValueError: a residual has another number of elements than its parameter.
        """
        if since == 0:
            self.load_codecs(state)
        residuals = state.get("residuals", {})
        if residuals and state["rank"] != self._store.rank:
            residuals = {}
            if since == 0:
                warnings.warn(
                    f"gradwire.torch: the checkpoint holds the residuals of rank {state['rank']}, so rank "
                    f"{self._store.rank} begins without; save the optimizer's state on every rank to keep them",
                    stacklevel=3,
                )
        for index, parameter in enumerate(self._parameters[since:], since):
            residual = residuals.get(parameter.name)
            if index in self._rows:
                rows = None if residual is None else saved_rows(residual, parameter.shape)
                self._rows.set_residual(index, rows)
                continue
            if isinstance(residual, Mapping):
                residual = saved_flat(residual, parameter.shape)
            if residual is not None:
                self._engine.set_residual(parameter.key, residual.float().cpu().contiguous().numpy())
            elif elements := self._engine.residual(parameter.key).size:
                self._engine.set_residual(parameter.key, np.zeros(elements, np.float32))


def has_free_slots(store: KVStore) -> bool:
    """True where no exchange has slots, and so none has borrowed the compression."""
    return not _sets_of.get(store)


def is_channels_last(parameter: torch.Tensor) -> bool:
    """True for channels_last memory; the gradient lies in it likewise, so that autograd adds in place."""
    if parameter.is_contiguous():
        return False
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return parameter.dim() in formats and parameter.is_contiguous(memory_format=formats[parameter.dim()])


def _dtype_name(parameter: torch.Tensor, run: torch.Tensor | None) -> str:
    dtype = exchanged_dtype(parameter.dtype if run is None else run.dtype)
    return str(dtype).removeprefix("torch.")


def _wire_name(name: str, parameter: torch.Tensor) -> str:
    """Returns a name that differs where memory is laid out in another way, so that such ranks do not mix."""
    return f"{name} (channels last)" if is_channels_last(parameter) else name
