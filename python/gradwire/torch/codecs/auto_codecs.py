"""AutoCodecs: has an exchange's parameters travel as gradwire.controller chooses, step by step.

Parameters that travel by themselves have a codec of their own in the engine; small ones, which share buckets, follow
the store's compression. Where a parameter goes from a codec that is lossy to none, the engine sends what was not sent
yet with its next gradient, so that nothing is lost whichever way the choice goes.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gradwire.compress import Compression
from gradwire.controller import Budget, Controller, Optimizer, Options, Plan, Tensor, compression_of
from gradwire.controller.prediction import schedule_of
from gradwire.plan.simulation import Placement
from gradwire.settings import definitions as settings
from gradwire.settings.cores import default_codec_threads
from gradwire.stores import connect
from gradwire.torch.codecs.adam_warning import is_like_adam

if TYPE_CHECKING:
    from gradwire.kv import KVStore

# Stores whose codecs are being chosen, for who would time their steps.
_chosen_for: weakref.WeakSet[KVStore] = weakref.WeakSet()

_PEERS = ("allreduce", "horovod", "dist_sync_mpi")


class Parameter(Protocol):
    """What an exchange knows of a parameter; `own` is the codec that it has apart from the store's."""

    name: str
    key: int
    place: int
    own: Compression | None


def controller_of(
    store: KVStore,
    budget: Budget | None,
    optimizer: torch.optim.Optimizer | None,
    *,
    overlaps: bool = False,
) -> Controller | None:
    """Makes the controller of a budget; None where there is none, or nobody to send to.

    Args:
        optimizer: which steps on the means, as far as the front end knows it.

    Raises:
        ValueError: a store whose sums cannot be predicted.
    """
    if budget is None or store.num_workers == 1:
        return None
    if connect.sums_in_one_order(store.type):
        raise ValueError(
            f"gradwire.torch: compression='auto' was given with the store {store.type!r}, where a library sums that "
            "cannot change codecs as it goes; use 'allreduce' or 'dist_sync', or name a codec"
        )
    values = settings.read()
    schedule = schedule_of(values, per_layer=overlaps, threads=default_codec_threads())
    return Controller(store, Options(budget, schedule, _placement(store, values), _family(optimizer)))


def _family(optimizer: torch.optim.Optimizer | None) -> Optimizer | None:
    """Returns which of the optimizers that were measured this one is like; None: none of them, or not known."""
    if optimizer is None:
        return None
    if is_like_adam(optimizer):
        return "adam"
    if isinstance(optimizer, torch.optim.SGD):
        return "sgd"
    return "muon" if type(optimizer).__name__ == "Muon" else None  # torch's, or that of its author


def _placement(store: KVStore, values: settings.Settings) -> Placement:
    if store.type in _PEERS:
        return "peers"
    beside = values.server_hosts == "beside" and store.engine.num_servers <= store.num_workers
    return "beside" if beside else "servers"


def chooses_for(store: KVStore) -> bool:
    """True where a store has had a controller, so that steps travel by one codec and by another in turns."""
    return store in _chosen_for


class AutoCodecs:
    """One exchange's."""

    def __init__(self, store: KVStore, controller: Controller, loan: object | None) -> None:
        """
        Args:
            loan: by which the exchange borrows the store's compression, and gives it back: its small parameters travel
                together. None: they do not.
        """
        _chosen_for.add(store)
        self._store = store
        self._controller = controller
        self._loan = loan
        self._parameters: list[Parameter] = []
        self._tensors: list[Tensor] = []
        self._codecs: list[str] = []  # in force
        self._default = controller.start  # of those that travel together
        if loan is not None:
            store.lend(compression_of(self._default), loan)

    @property
    def needs_quiet(self) -> bool:
        """True where no round may be under way at the next advance()."""
        return self._controller.needs_quiet

    def add(self, parameters: Sequence[Parameter], elements: Sequence[int]) -> None:
        """Takes parameters in, before they are bound. Those with a codec of their own keep it. A collective."""
        small = settings.read().fusion_bytes if self._loan is not None else 0
        added = []
        for parameter, count in zip(parameters, elements, strict=True):
            free = parameter.own is None
            added.append(Tensor(parameter.name, count, parameter.place, free, 4 * count < small))
        self._parameters += parameters
        self._tensors += added
        self._codecs += [""] * len(added)  # those that travel by themselves have yet to be told
        self._controller.add(added)
        self._apply(self._controller.plan)

    def before_send(self, index: int, run: torch.Tensor) -> None:
        """Samples a gradient that is about to be sent.

        Args:
            run: real (elements,), contiguous.
        """
        if blocks := self._controller.ready(index):
            sample = torch.cat([run[begin:end] for begin, end in blocks])
            self._controller.put(index, sample.float().cpu().numpy())

    def advance(self) -> None:
        """Has the next step travel as the controller says. A collective."""
        if self._tensors:  # else this rank has no shard of any parameter, as all workers of its store
            self._apply(self._controller.advance())

    def state(self) -> dict[str, Any]:
        """What was chosen, for a checkpoint."""
        return self._controller.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on with the codecs of what state() returned. A collective, between steps."""
        self._apply(self._controller.load(state))

    # -- inside ----------------------------------------------------------------------------------------

    def _apply(self, plan: Plan) -> None:
        """Tells the engine what differs from what is in force."""
        changed: dict[str, list[int]] = {}
        for index, (before, after) in enumerate(zip(self._codecs, plan.codecs, strict=True)):
            if before != after and self._tensors[index].free:
                changed.setdefault(after, []).append(index)
        for candidate, indices in changed.items():
            compression = compression_of(candidate)
            alone = [index for index in indices if not self._tensors[index].together]
            if alone:
                keys = [self._parameters[index].key for index in alone]
                self._store.engine.set_key_compression(keys, compression.spec, compression.reply)
            for index in alone:
                self._parameters[index].own = compression
            if len(alone) < len(indices) and candidate != self._default:
                self._default = candidate
                self._store.lend(compression, self._loan)
            for index in indices:
                self._codecs[index] = candidate
