"""TorchState: models, optimizers, samplers and plain values that training resumes from, under their names."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gradwire.horovod import named_sums, session
from gradwire.horovod.errors import HostsUpdatedInterrupt
from gradwire.horovod.objects import allgather_bytes
from gradwire.horovod.torch.elastic import membership
from gradwire.horovod.torch.elastic.sampler import ElasticSampler
from gradwire.horovod.torch.objects import broadcast_object
from gradwire.horovod.torch.optimizer import Distributed
from gradwire.horovod.torch.states import broadcast_optimizer_state, broadcast_parameters
from gradwire.torch.shared_state import shared_lines


def _sync_model(model: torch.nn.Module, root: int) -> None:
    broadcast_parameters(model.state_dict(), root)


def _sync_optimizer(optimizer: torch.optim.Optimizer, root: int) -> None:
    broadcast_optimizer_state(optimizer, root)


def _sync_sampler(sampler: ElasticSampler, root: int) -> None:
    sampler.load_state_dict(broadcast_object(sampler.state_dict(), root))


# What has a state_dict() of its own, and how ranks get the root's.
_STATEFUL: dict[type, Callable[[Any, int], None]] = {
    torch.nn.Module: _sync_model,
    torch.optim.Optimizer: _sync_optimizer,
    ElasticSampler: _sync_sampler,
}


class TorchState:
    """Attributes that can be committed, restored and made equal on all ranks. Each argument becomes an attribute.

    It includes this rank's residuals of gradients and of other sums. Servers' residuals, of replies in a codec's own
    name, move to the ranks when new ranks are admitted. When a rank dies, they are lost, and so are that rank's own.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        """
        Args:
            model, optimizer: torch's; others, and samplers, by any name.
            values: anything else; plain values, replaced rather than changed.
        """
        self._names = list(values)
        self._reset_callbacks: list[Callable[[], None]] = []
        self._has_met = False  # whether it is one that a newcomer may go on from
        for name, value in {"model": model, "optimizer": optimizer}.items():
            if value is not None:
                self._names.append(name)
            setattr(self, name, value)
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    def save(self) -> None:
        """Keeps a copy of everything, for restore()."""
        self._saved: dict[str, Any] = {}
        for name in self._names:
            value = getattr(self, name)
            self._saved[name] = copy.deepcopy(value.state_dict()) if _sync_of(value) else value
        self._unsent = named_sums.unsent(session.current().store) if session.exists() else {}

    def restore(self) -> None:
        """Returns to the last save(). Does not wait for sums of an optimizer in progress."""
        self._forget_sums()
        for name, kept in self._saved.items():
            value = getattr(self, name)
            if _sync_of(value):
                value.load_state_dict(copy.deepcopy(kept))
            else:
                setattr(self, name, kept)

    def sync(self) -> None:
        """Gives all ranks the state of the first rank that was synchronized before, else rank 0's, and saves it.

        A collective of all ranks.

        Raises:
            RuntimeError: the job has been trained, and no rank that took part is left.
            ValueError: ranks still differ; names the difference. It is raised on all ranks; or, once members have
                changed, on those that differ, which leave the job.
        """
        root = self._root()
        plain: dict[str, Any] = {}
        for name in self._names:
            value = getattr(self, name)
            if (sync := _sync_of(value)) is not None:
                sync(value, root)
            else:
                plain[name] = value
        for name, value in broadcast_object(plain, root).items():
            setattr(self, name, value)
        membership.require_same(self._shared_lines())
        self.save()
        self._has_met = True

    def _root(self) -> int:
        """The rank whose attributes all get: of those that have begun later nobody's."""
        store = session.current().store
        if not store.goes_on:
            return 0
        told = allgather_bytes(json.dumps([self._has_met, store.since]).encode(), "elastic root")
        found = [json.loads(each) for each in told]
        if not any(met or since == 1 for met, since in found):
            raise RuntimeError(
                "hvd.elastic: all ranks that had the weights are dead, and those here have begun after them: start the "
                "job again from a file"
            )
        return next((rank for rank, (met, _) in enumerate(found) if met), 0)

    def commit(self) -> None:
        """Saves the state that run() returns to when an operation fails, and admits waiting ranks.

        A collective of all ranks in a job that continues without dead ranks.

        Raises: as check_host_updates().
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Admits waiting ranks. A collective of all ranks in a job that continues without dead ranks; else it does
        nothing.

        Raises:
            HostsUpdatedInterrupt: ranks are waiting; run() handles it.
            HorovodInternalError: the job's members have changed; run() handles it.
        """
        if membership.newcomers():
            membership.draw_residuals()
            self._unsent = named_sums.unsent(session.current().store)
            raise HostsUpdatedInterrupt(skip_sync=False)

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Has run() call these before it begins the function again."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """What run() calls before it begins the function again."""
        store = session.current().store
        if store.goes_on:
            for optimizer in self._distributed():
                optimizer.meet_others()
        self._forget_sums()
        named_sums.go_on_with(store, copy.deepcopy(self._unsent))
        for callback in self._reset_callbacks:
            callback()

    def _shared_lines(self) -> list[str]:
        lines = []
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
                lines += shared_lines(name, value)
            elif value is None or isinstance(value, bool | int | float | str):
                lines.append(f"{name}={value!r}")
        return lines

    def _forget_sums(self) -> None:
        for optimizer in self._distributed():
            optimizer.forget_sums()

    def _distributed(self) -> list[Distributed]:
        values = (getattr(self, name) for name in self._names)
        return [value for value in values if isinstance(value, Distributed)]


def _sync_of(value: Any) -> Callable[[Any, int], None] | None:
    return next((sync for kind, sync in _STATEFUL.items() if isinstance(value, kind)), None)
