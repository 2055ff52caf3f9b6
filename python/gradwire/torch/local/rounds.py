"""LocalRounds: workers train apart for some steps, then an outer optimizer steps on the mean of how far they have come.

All workers hold the same *shared weights*, and each its own model. A round of a fragment: every worker sends shared
weights minus its own parameters, the *outer gradient*; the outer optimizer takes a step on the workers' mean of that,
the same on all ranks; and the worker's parameters become the shared weights, or move towards them.

Source: Douillard et al., DiLoCo, 2023 (arXiv 2311.08105), algorithm 1; Streaming DiLoCo, 2025 (arXiv 2501.18512),
algorithm 2 (fragments, overlap, mixing). Deviations: codecs with error feedback in place of 4-bit floats, and what is
sent is measured from the shared weights as the parameter's dtype holds them.

Threading: on the thread that trains. What is under way needs no thread of ours: the engine's own carry it.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gradwire.torch import session
from gradwire.torch.elements import octets_of
from gradwire.torch.exchange import Exchange
from gradwire.torch.exchange_options import ExchangeOptions, warn_of_nonfinite
from gradwire.torch.local.fragments import Fragments
from gradwire.torch.slots import home_of, runs_of

if TYPE_CHECKING:
    from gradwire import _core
    from gradwire.kv import KVStore

ROUNDS_KEY = "local_steps"  # in an exchange's state
_DIGEST_BYTES = 8

MakeOuter = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Schedule:
    """When fragments are exchanged.

    Attributes:
        sync_every: local steps between two exchanges of a fragment.
        fragments: how many there are.
        merge_after: local steps between sending a fragment and taking in its mean; below sync_every.
        mixing: share of its own parameters that a worker keeps when it takes in a fragment, 0 to 1.
    """

    sync_every: int
    fragments: int
    merge_after: int
    mixing: float

    def described(self) -> list[int]:
        """What a state that was saved in the middle of a round must agree in."""
        return [self.sync_every, self.fragments, self.merge_after]


@dataclass
class _UnderWay:
    """What was sent of a fragment: after which step it is to be merged, which parameters those are, and what says that
    their means are here.
    """

    merge_at: int
    members: Sequence[int]
    tickets: dict[int, _core.Ticket] = field(default_factory=dict)


class LocalRounds:
    """The rounds of one model's parameters. Those that are frozen are taken in when they thaw; what is frozen later is
    sent once more, if it was trained since the last time, and then left alone by the outer optimizer, too.

    Attributes:
        outer: the outer optimizer; its parameters are the shared weights.
    """

    def __init__(
        self,
        store: KVStore,
        named: Sequence[tuple[str, torch.Tensor]],
        options: ExchangeOptions,
        schedule: Schedule,
        make_outer: MakeOuter,
    ) -> None:
        """Declares the parameters. A collective.

        Args:
            store: whose engine sums.
            named: parameters in order of the forward pass.
            options: codecs of the outer gradients.
            schedule: when fragments are exchanged.
            make_outer: makes the outer optimizer of the shared weights.

        Raises:
            ValueError: ranks differ in names, shapes or order.
        """
        self._store = store
        self._schedule = schedule
        self._exchange = Exchange(store, options, has_slots=False)
        self._fragments = Fragments(schedule.fragments, schedule.sync_every)
        self._names: list[str] = []
        self._parameters: list[torch.Tensor] = []
        self._shared: list[torch.Tensor] = []
        self._runs: list[torch.Tensor] = []  # outer gradients on their way, then their means
        self._unchecked: list[int] = []  # whose shared weights nobody has compared between ranks yet
        self._fresh: list[int] = []  # of these, whose are those that the model begins its next step with
        self._trained: set[int] = set()  # since they were last sent
        self._under_way: dict[int, _UnderWay] = {}  # by fragment
        self._due: list[int] = []  # fragments that this step is still to send
        self._step = 0  # local ones since all weights were the same
        self._device = home_of([parameter for _, parameter in named])
        live = [(name, p) for name, p in named if p.requires_grad and p.numel() > 0]
        self._frozen = [(name, p) for name, p in named if not p.requires_grad]
        self._take_in(live)
        self.outer = make_outer(list(self._shared))

    def add(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Takes more parameters in, behind the others. A collective, between steps."""
        live = [(name, p) for name, p in named if p.requires_grad and p.numel() > 0]
        self._frozen += [(name, p) for name, p in named if not p.requires_grad]
        if live:
            self.outer.add_param_group({"params": self._take_in(live)})

    @torch.no_grad()
    def _take_in(self, named: Sequence[tuple[str, torch.Tensor]]) -> list[torch.Tensor]:
        parameters = [parameter for _, parameter in named]
        runs = runs_of(parameters, self._device)
        first = len(self._parameters)
        self._exchange.add(named, runs, range(first, first + len(named)))
        self._fragments.add(named)
        added = [p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True) for p in parameters]
        self._names += [name for name, _ in named]
        self._parameters += parameters
        self._runs += runs
        self._shared += added
        self._unchecked += range(first, first + len(named))
        self._fresh += range(first, first + len(named))
        return added

    # -- a step ----------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Before a local step: notes where parameters that are new start from. A collective where there are any.

        Raises:
            ValueError: ranks start from different weights; every rank gets the same text.
        """
        self._go_on()
        if thawed := [(name, p) for name, p in self._frozen if p.requires_grad]:
            self._frozen = [(name, p) for name, p in self._frozen if not p.requires_grad]
            self.add(thawed)
        self._check_start()

    def _check_start(self) -> None:
        if self._unchecked:
            self._note_start()
            self._require_same_start()

    @torch.no_grad()
    def _note_start(self) -> None:
        for index in self._fresh:
            self._shared[index].copy_(self._parameters[index])

    def _require_same_start(self) -> None:
        digests = b"".join(_digest(self._shared[index]) for index in self._unchecked)
        everyone = self._store.engine.all_gather("first weights", digests)
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                count = len(self._unchecked)
                number = next(i for i in range(count) if _nth(theirs, i) != _nth(everyone[0], i))
                raise ValueError(
                    f"gradwire.torch: {self._names[self._unchecked[number]]!r} of rank {rank} is not that of rank 0; "
                    "local steps start from the same weights everywhere: call "
                    "gradwire.torch.broadcast_parameters(model.state_dict()) before the first step"
                )
        self._unchecked, self._fresh = [], []

    def end_step(self) -> None:
        """After a local step: merges the fragments whose time has come, and sends those that are due."""
        self._step += 1
        self._trained.update(index for index, p in enumerate(self._parameters) if p.requires_grad)
        self._due = list(self._fragments.due(self._step))
        self._go_on()

    def _go_on(self) -> None:
        """Does what is left of end_step(): something, where a Ctrl-C has ended that."""
        self._merge_arrived()
        while self._due:
            self._send(self._due.pop(0), self._schedule.merge_after)
            self._merge_arrived()

    def _merge_arrived(self) -> None:
        """Merges the fragments whose time has come."""
        for fragment in [f for f, sent in self._under_way.items() if sent.merge_at <= self._step]:
            self._merge(fragment, self._schedule.mixing)

    def synchronize(self) -> None:
        """Ends all rounds now, so that every parameter is the shared weight, on all ranks. A collective.

        What was sent after the last step is not sent again: nobody has learned anything since, and the momentum of the
        outer optimizer would move the shared weights all the same.

        Raises:
            ValueError: ranks have taken different numbers of steps; every rank gets the same text.
        """
        self._go_on()
        self._check_start()
        steps = self._steps_of_all()
        if len(set(steps)) > 1:
            raise ValueError(
                f"gradwire.torch: synchronize: the ranks have taken {', '.join(map(str, steps))} local steps; all "
                "must call step() as often"
            )
        if self._step == 0:
            return
        self._note_start()
        for fragment in list(self._under_way):
            self._merge(fragment, self._schedule.mixing)
        for fragment in range(len(self._fragments)):
            self._send(fragment, 0)
        for fragment in list(self._under_way):
            self._merge(fragment, 0.0)
        self._show_shared()  # where a merge has left a worker a share of its own
        self._step = 0

    def _steps_of_all(self) -> list[int]:
        """How many steps each rank has taken. A rank that has taken more waits for a sum of which the others know
        nothing, so those let it come without them.
        """
        with contextlib.suppress(ValueError):  # a store whose rounds need all ranks; then they are waited for
            self._store.engine.join()
        blobs = self._store.engine.all_gather("local steps", struct.pack("<q", self._step))
        return [struct.unpack("<q", blob)[0] for blob in blobs]

    def close(self) -> None:
        """Waits for what is under way, and lets go of it: parameters stay the worker's own.

        Raises:
            gradwire.TransportError, gradwire.TimeoutError: the job has failed.
        """
        try:
            if session.is_open(self._store):  # else nobody writes there any more
                self._await_all()
        finally:
            self._under_way.clear()
            self._exchange.close()

    @torch.no_grad()
    def _send(self, fragment: int, merge_after: int) -> None:
        """Sends what was trained of a fragment, if anything was."""
        members = [index for index in self._fragments.members(fragment) if index in self._trained]
        if not members:
            return
        self._trained.difference_update(members)
        for index in members:
            parameter, shared = self._parameters[index], self._shared[index]
            outer_gradient = shared.to(parameter.dtype).to(shared.dtype) - parameter.to(shared.dtype)
            self._runs[index].view(parameter.shape).copy_(outer_gradient)
        tickets = {index: self._exchange.submit(index) for index in members}
        self._under_way[fragment] = _UnderWay(self._step + merge_after, members, tickets)

    @torch.no_grad()
    def _merge(self, fragment: int, mixing: float) -> None:
        sent = self._under_way.pop(fragment)
        try:
            self._await(sent)
        except KeyboardInterrupt:  # the next call goes on
            self._under_way[fragment] = sent
            raise
        for index in sent.members:
            shared = self._shared[index]
            shared.grad = self._runs[index].view(shared.shape).to(shared, copy=True)
        self.outer.step()
        for index in sent.members:
            parameter, shared = self._parameters[index], self._shared[index]
            shared.grad = None
            mixed = shared if mixing == 0 else torch.lerp(shared, parameter.to(shared.dtype), mixing)
            parameter.copy_(mixed)

    def _await_all(self) -> None:
        for sent in self._under_way.values():
            self._await(sent)

    def _await(self, sent: _UnderWay) -> None:
        """Waits until a fragment's means are in its runs. Raises what its tickets do."""
        if sent.tickets:
            self._exchange.take_in(sent.tickets)
            if self._exchange.finish():
                warn_of_nonfinite("warn")
        sent.tickets = {}

    # -- who wants to see them -------------------------------------------------------------------------

    @torch.no_grad()
    def swap(self) -> list[torch.Tensor]:
        """Has the parameters be the shared weights; returns what they were, for put_back()."""
        self._go_on()
        self._note_start()
        own = [parameter.detach().clone() for parameter in self._parameters]
        self._show_shared()
        return own

    @torch.no_grad()
    def _show_shared(self) -> None:
        for parameter, shared in zip(self._parameters, self._shared, strict=True):
            parameter.copy_(shared)

    @torch.no_grad()
    def put_back(self, own: Sequence[torch.Tensor]) -> None:
        """Undoes swap()."""
        for parameter, value in zip(self._parameters, own, strict=True):
            parameter.copy_(value)

    def state(self) -> dict[str, Any]:
        """Returns what this rank's codecs have not sent yet, and where the rounds are: the shared weights, the outer
        optimizer's state, means that are to be merged yet. Waits for these.
        """
        self._go_on()
        self._note_start()
        self._await_all()
        under_way = {
            fragment: {
                "merge_at": sent.merge_at,
                "means": {self._names[index]: self._runs[index].clone() for index in sent.members},
            }
            for fragment, sent in self._under_way.items()
        }
        own = {
            "schedule": self._schedule.described(),
            "step": self._step,
            "trained": [self._names[index] for index in sorted(self._trained)],
            "weights": dict(zip(self._names, self._shared, strict=True)),
            "outer": self.outer.state_dict(),
            "under_way": under_way,
        }
        return {"rank": self._store.rank, ROUNDS_KEY: own} | self._exchange.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on from what state() returned, on all ranks. From a state without rounds they begin anew, with the
        parameters as the next step finds them.

        Raises:
            ValueError: the state is of other parameters; or of the middle of a round and another schedule.
        """
        self.require_fitting(state)
        self._await_all()  # means would be written over what is loaded
        self._exchange.load(state)
        self.load_rounds(state)

    def load_rounds(self, state: Mapping[str, Any]) -> None:
        """As load(), but for what codecs have not sent yet; nothing is under way, and the state fits."""
        own = state.get(ROUNDS_KEY)
        self._under_way.clear()
        self._trained.clear()
        self._unchecked = list(range(len(self._parameters)))
        self._fresh = [] if own is not None else list(self._unchecked)
        if own is None:
            self._step = 0
            self.outer.state.clear()
            return
        self._step = int(own["step"])
        self._trained.update(self._indices(own["trained"]))
        self.outer.load_state_dict(own["outer"])
        self._fill(self._shared, own["weights"])
        for fragment, sent in own["under_way"].items():
            self._fill(self._runs, sent["means"])
            self._under_way[int(fragment)] = _UnderWay(int(sent["merge_at"]), self._indices(sent["means"]))

    def _indices(self, names: Collection[str]) -> list[int]:
        return [index for index, name in enumerate(self._names) if name in names]

    @torch.no_grad()
    def _fill(self, targets: Sequence[torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
        for name, target in zip(self._names, targets, strict=True):
            if name in values:
                target.copy_(values[name])

    def require_fitting(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError where load() does. One without rounds fits."""
        if (own := state.get(ROUNDS_KEY)) is None:
            return
        weights = {name: tuple(weight.shape) for name, weight in own["weights"].items()}
        ours = {name: tuple(p.shape) for name, p in zip(self._names, self._parameters, strict=True)}
        if different := sorted(
            name for name in ours.keys() | weights.keys() if ours.get(name) != weights.get(name)
        ):
            name = different[0]
            raise ValueError(
                f"gradwire.torch: the state's shared weight {name!r} has shape {weights.get(name)}, the optimizer's "
                f"{ours.get(name)}; None: it has none; load it with the same parameters"
            )
        if own["step"] != 0 and list(own["schedule"]) != self._schedule.described():
            raise ValueError(
                f"gradwire.torch: the state is of the middle of a round with [sync_every, fragments, merge_after] = "
                f"{list(own['schedule'])}, this optimizer has {self._schedule.described()}; use the same, or call "
                "synchronize() before state_dict()"
            )


def _digest(weight: torch.Tensor) -> bytes:
    return hashlib.blake2b(octets_of(weight).numpy().data, digest_size=_DIGEST_BYTES).digest()


def _nth(digests: bytes, number: int) -> bytes:
    return digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]
