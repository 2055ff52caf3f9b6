"""MXNet's optimizers: what all workers must agree on, and which the servers of `dist_async*` have too."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradwire import kv
from gradwire.mxnet.errors import KVStoreError

__all__ = ["NO_NUMBER", "OnServers", "first_difference", "hyper_parameters", "numbers_in_use", "server_rule"]

NO_NUMBER = -sys.float_info.max  # in the place of None; finite, as what travels should be

_NOT_SETTINGS = ("num_update", "begin_num_update", "aggregate_num")


def hyper_parameters(optimizer: Any) -> dict[str, str]:
    """Returns an optimizer's class, its numbers and words, and those of its scheduler, as text by name."""
    found = {"class": type(optimizer).__name__}
    scheduler = getattr(optimizer, "lr_scheduler", None)
    for prefix, holder in (("", optimizer), ("lr_scheduler.", scheduler)):
        for name, value in sorted(vars(holder).items()) if holder is not None else ():
            if name not in _NOT_SETTINGS and isinstance(value, numbers.Number | str | bool | type(None)):
                found[prefix + name] = repr(value)
    return found


def numbers_in_use(optimizer: Any) -> dict[str, float]:
    """Returns the numbers by which an optimizer takes its next step, by name; NO_NUMBER for None."""
    found = {
        name: NO_NUMBER if value is None else float(value)
        for name, value in sorted(vars(optimizer).items())
        if name not in (*_NOT_SETTINGS, "lr") and isinstance(value, numbers.Real | type(None))
    }
    # First what changes most: the scheduler's rate, if there is one.
    in_front = {"learning_rate": optimizer.learning_rate, "num_update": optimizer.num_update}
    return {name: float(value) for name, value in in_front.items()} | found


def first_difference(of_ranks: Sequence[Mapping[str, str]]) -> str | None:
    """Returns where optimizers differ, as "learning_rate is 0.1 on rank 0 and 0.2 on rank 1"; None: nowhere."""
    for rank, other in enumerate(of_ranks):
        for name in dict.fromkeys([*of_ranks[0], *other]):  # the class first
            mine, its = of_ranks[0].get(name, "missing"), other.get(name, "missing")
            if mine != its:
                return f"{name} is {mine} on rank 0 and {its} on rank {rank}"
    return None


class OnServers:
    """MXNet's optimizer where the servers update: handed over when there are keys, and watched from then on, since who
    changes it, as Trainer.set_learning_rate() does, changes nothing there.
    """

    def __init__(self, store: kv.KVStore) -> None:
        self._store = store
        self._waiting: Any = None
        self._optimizer: Any = None  # that the servers have
        self._rate: float | None = (
            None  # and the rate that it had when they were told last; None: theirs has none
        )

    @property
    def is_waiting(self) -> bool:
        """Whether the servers have not got it yet."""
        return self._waiting is not None

    @property
    def optimizer(self) -> Any:
        """MXNet's, by which the servers' was made; None: they have none yet."""
        return self._optimizer

    def give(self, optimizer: Any) -> None:
        """Keeps it for hand_over(). Raises: as server_rule()."""
        server_rule(optimizer)
        self._waiting = optimizer

    def hand_over(self) -> None:
        """Gives the servers what waits. Collective, if anything does."""
        if self._waiting is None:
            return
        rule, parameters = server_rule(self._waiting)
        self._optimizer, self._waiting = self._waiting, None
        self._rate = parameters.get("learning_rate")
        self._store.set_optimizer(rule, **parameters)

    def take_over(self) -> None:
        """Gives the optimizer here what the servers' has got from a file, as far as a Trainer asks for it."""
        if self._optimizer is None or self._store.optimizer is None:
            return  # the servers' was set beneath, by gradwire.kv
        _, parameters = self._store.optimizer
        self._optimizer.rescale_grad = parameters.get("rescale_grad", 1.0)
        self._rate = parameters.get("learning_rate")
        if self._rate is not None:
            self._optimizer.set_learning_rate(self._rate)

    def require_its_rate(self, verb: str) -> None:
        """Raises KVStoreError: the rate was changed in this worker, where it counts for nothing."""
        if self._rate is None or (rate := float(self._optimizer.learning_rate)) == self._rate:
            return
        raise KVStoreError(
            f"{verb}: the optimizer's learning_rate was changed to {rate} in this worker, as "
            f"Trainer.set_learning_rate() does, and in {self._store.type!r} the servers update, with {self._rate}; "
            f"call kv.set_learning_rate({rate}) of the store, on all workers"
        )

    def set_learning_rate(self, learning_rate: float) -> None:
        """Gives the servers another rate, and the optimizer here, which who reads it asks. Collective.

        Raises: as gradwire.kv.KVStore.set_learning_rate().
        """
        self.hand_over()
        self._store.set_learning_rate(learning_rate)
        self._optimizer.set_learning_rate(learning_rate)
        self._rate = float(learning_rate)


def server_rule(optimizer: Any) -> tuple[str, dict[str, float]]:
    """Returns the optimizer as gradwire.kv's set_optimizer() takes it: a name and parameters.

    Raises:
        KVStoreError: it is none of the servers', or has what theirs have not: a scheduler, other rates for some keys.
    """
    name = type(optimizer).__name__
    if name not in _RULES:
        raise KVStoreError(
            f"set_optimizer: the servers have no {name}; use one of {', '.join(_RULES)}, or a store that sums, such as "
            "dist_sync, whose workers run any optimizer"
        )
    if getattr(optimizer, "lr_scheduler", None) is not None:
        raise KVStoreError(
            "set_optimizer: lr_scheduler is set, and the servers have none; call set_learning_rate() of the store on "
            "all workers, or use a store that sums, such as dist_sync"
        )
    if (key := _key_with_own_rate(optimizer)) is not None:
        raise KVStoreError(
            f"set_optimizer: lr_mult or wd_mult of {key!r} is not 1, and the servers update all keys alike; leave it "
            "out, set wd=0, or use a store that sums, such as dist_sync"
        )
    rule, parameters = _RULES[name](optimizer)
    clip = getattr(optimizer, "clip_gradient", None)
    return rule, {
        **parameters,
        "rescale_grad": float(optimizer.rescale_grad),
        **({"clip_gradient": float(clip)} if clip is not None and clip > 0 else {}),
    }


def _key_with_own_rate(optimizer: Any) -> Any:
    decays = bool(optimizer.wd)
    for key, factor in optimizer.lr_mult.items():
        if factor != 1:
            return key
    for key, factor in optimizer.wd_mult.items():
        if factor != 1 and decays:
            return key
    for parameter in optimizer.param_dict.values():
        if parameter.lr_mult != 1 or (parameter.wd_mult != 1 and decays):
            return parameter.name
    return None


def _sgd(optimizer: Any) -> tuple[str, dict[str, float]]:
    return "mxnet_sgd", _rates(optimizer, momentum=optimizer.momentum)


def _nag(optimizer: Any) -> tuple[str, dict[str, float]]:
    """Without a momentum, MXNet's default, its NAG is its SGD."""
    return "mxnet_sgd", _rates(
        optimizer, momentum=optimizer.momentum, nesterov=float(optimizer.momentum != 0)
    )


def _adam(optimizer: Any) -> tuple[str, dict[str, float]]:
    return "adam", _rates(optimizer, beta1=optimizer.beta1, beta2=optimizer.beta2, epsilon=optimizer.epsilon)


def _test(optimizer: Any) -> tuple[str, dict[str, float]]:
    return "test", {}


def _rates(optimizer: Any, **others: float) -> dict[str, float]:
    given = {"learning_rate": optimizer.learning_rate, "wd": optimizer.wd, **others}
    return {name: float(value) for name, value in given.items()}


_RULES: dict[str, Callable[[Any], tuple[str, dict[str, float]]]] = {
    "SGD": _sgd,
    "NAG": _nag,
    "Adam": _adam,
    "Test": _test,
}
