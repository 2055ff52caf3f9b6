"""TorchState: what training goes on from: models, optimizers, samplers and plain values, under their names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gradwire.horovod.torch.elastic.sampler import ElasticSampler
from gradwire.horovod.torch.objects import broadcast_object
from gradwire.horovod.torch.optimizer import Distributed
from gradwire.horovod.torch.states import broadcast_optimizer_state, broadcast_parameters


def _sync_model(model: torch.nn.Module) -> None:
    broadcast_parameters(model.state_dict(), root_rank=0)


def _sync_optimizer(optimizer: torch.optim.Optimizer) -> None:
    broadcast_optimizer_state(optimizer, root_rank=0)


def _sync_sampler(sampler: ElasticSampler) -> None:
    sampler.load_state_dict(broadcast_object(sampler.state_dict(), root_rank=0))


# What has a state_dict() of its own, and how ranks get rank 0's.
_STATEFUL: dict[type, Callable[[Any], None]] = {
    torch.nn.Module: _sync_model,
    torch.optim.Optimizer: _sync_optimizer,
    ElasticSampler: _sync_sampler,
}


class TorchState:
    """Attributes that can be committed, restored and made the same on all ranks. Each argument becomes one."""

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        """
        Args:
            model, optimizer: torch's; others, and samplers, by any name.
            values: anything else; plain values, replaced rather than changed.
        """
        self._names = list(values)
        self._reset_callbacks: list[Callable[[], None]] = []
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

    def restore(self) -> None:
        """Goes back to what the last save() kept, and waits for no sum that an optimizer has under way."""
        self._forget_sums()
        for name, kept in self._saved.items():
            value = getattr(self, name)
            if _sync_of(value):
                value.load_state_dict(copy.deepcopy(kept))
            else:
                setattr(self, name, kept)

    def sync(self) -> None:
        """Gives all ranks rank 0's, and saves it. A collective of all ranks."""
        plain: dict[str, Any] = {}
        for name in self._names:
            value = getattr(self, name)
            if (sync := _sync_of(value)) is not None:
                sync(value)
            else:
                plain[name] = value
        for name, value in broadcast_object(plain, root_rank=0).items():
            setattr(self, name, value)
        self.save()

    def commit(self) -> None:
        """Saves, as what run() goes back to when an operation fails."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Does nothing: the ranks of a job are those that it was started with."""

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Has run() call these before it begins the function again."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """What run() calls before it begins the function again."""
        self._forget_sums()
        for callback in self._reset_callbacks:
            callback()

    def _forget_sums(self) -> None:
        for value in (getattr(self, name) for name in self._names):
            if isinstance(value, Distributed):
                value.forget_sums()


def _sync_of(value: Any) -> Callable[[Any], None] | None:
    return next((sync for kind, sync in _STATEFUL.items() if isinstance(value, kind)), None)
