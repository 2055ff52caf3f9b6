"""Which DistributedOptimizers a store serves: each exchanges its parameters there until it leaves.

A parameter has one such optimizer at a store. All ranks must know the same optimizers, so an entry is not left to the
garbage collector: an optimizer that was dropped without close() keeps its parameters.

Threading: the thread that makes, steps and closes the optimizers of a store.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from gradwire.stores import connect

if TYPE_CHECKING:
    from gradwire.kv import KVStore

_places: weakref.WeakKeyDictionary[KVStore, list[Place]] = weakref.WeakKeyDictionary()


class Place:
    """The entry of an optimizer at its store. No other optimizer may exchange its parameters meanwhile.

    Attributes:
        named: its parameters, as the optimizer keeps them: it adds to the list.
    """

    def __init__(
        self, store: KVStore, optimizer: torch.optim.Optimizer, named: list[tuple[str, torch.Tensor]]
    ) -> None:
        """Enters an optimizer behind the others. require_free() goes before, where nothing is changed yet."""
        self._served = _places.setdefault(store, [])
        self._optimizer = weakref.ref(optimizer)
        self.named = named
        self._served.append(self)

    @property
    def optimizer(self) -> Any:
        """The optimizer; None if it was dropped."""
        return self._optimizer()

    def leave(self) -> None:
        """Releases its parameters."""
        self._served.remove(self)


def served_by(store: KVStore) -> list[Any]:
    """Returns the optimizers that a store serves, in the order in which they were made, without those dropped."""
    found = [place.optimizer for place in _places.get(store, [])]
    return [optimizer for optimizer in found if optimizer is not None]


def require_free(store: KVStore, named: Iterable[tuple[str, torch.Tensor]], own: Place | None) -> None:
    """Checks that an optimizer may exchange these parameters. Warns of optimizers that were dropped.

    Args:
        store: where it wants to.
        named: parameters by name.
        own: its place, or that of an optimizer that it takes over, which does not count; None if it has none.

    Raises: ValueError: another optimizer at the store has one of the parameters, or the store serves one at a time.
    """
    others = [place for place in _places.get(store, []) if place is not own]
    if any(place.optimizer is None for place in others):
        warnings.warn(
            "gradwire.torch: a DistributedOptimizer at this store was dropped without close(), so the store keeps its "
            "memory and its parameters; call close() on all ranks first",
            RuntimeWarning,
            stacklevel=4,
        )
    theirs = {parameter: name for place in others for name, parameter in place.named}
    if taken := next((name for name, parameter in named if parameter in theirs), None):
        raise ValueError(
            f"gradwire.torch: {taken!r} is in a DistributedOptimizer at this store already, which exchanges its "
            "gradient; give each optimizer parameters of its own, or close() the other first: it is not enough to drop "
            "it"
        )
    if others and connect.sums_in_one_order(store.type):
        raise ValueError(
            f"gradwire.torch: the store {store.type!r} serves one DistributedOptimizer at a time, and has one: its "
            "library sums in one order on all ranks; give that one all parameters in groups, close() it first, or use "
            "'allreduce' or 'dist_sync'"
        )
