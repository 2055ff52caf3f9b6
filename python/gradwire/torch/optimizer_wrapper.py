"""What gradwire puts in front of an optimizer's class, and what another library, or gradwire, has put there already."""

from __future__ import annotations

import contextlib
import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch

NEVER = 1 << 62  # backward() passes: a count that does not end


class Front(torch.optim.Optimizer):
    """What we add to the class of a user's optimizer. Made by take_over(): an instance is of both classes, and shares
    groups and state with the optimizer that it was made of. Copies and pickles are of the class inside, which
    exchanges nothing.
    """

    prefix: ClassVar[str]  # of the name of the class that an instance gets
    _base: type  # the class inside
    _earlier: list[torch.optim.Optimizer]  # that it was made of

    @abstractmethod
    def close(self) -> None:
        """Ends the exchange."""

    def _note_step(self) -> None:
        """Has learning-rate schedulers that were made of the optimizer given know that it has stepped."""
        for optimizer in self._earlier:
            optimizer._opt_called = True  # type: ignore[attr-defined]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes in what load_state_dict() made: into the groups and state at hand, which the optimizer inside shares,
        and with it the schedulers that were made of that one.
        """
        groups, shared = self.param_groups, self.state
        super().__setstate__(state)
        loaded, loaded_state = [dict(group) for group in self.param_groups], dict(self.state)
        for group, values in zip(groups, loaded, strict=True):
            group.clear()
            group.update(values)
        shared.clear()
        shared.update(loaded_state)
        self.param_groups, self.state = groups, shared

    def __reduce__(self) -> Any:
        return _plain, (self._base,), self.__getstate__()


def take_over(optimizer: torch.optim.Optimizer, front: type[Front]) -> Any:
    """Returns an instance of front and of the optimizer's class that shares all it has, and exchanges nothing yet.

    What gradwire or Horovod has put in front of it before ends its exchange.
    """
    if isinstance(optimizer, Front):
        optimizer.close()
        base = optimizer._base
    else:
        _stop_horovods(optimizer)
        base = _own_class(optimizer)
    methods = {name: _as_seen(front, base, name) for name in ("step", "zero_grad") if name in vars(front)}
    result: Any = object.__new__(type(f"{front.prefix}{base.__name__}", (front, base), methods))
    # An LR scheduler made earlier has patched step() on the instance; its patch calls the class it knew.
    result.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    result._base = base
    result._earlier = [*getattr(optimizer, "_earlier", []), optimizer]
    return result


def _as_seen(front: type[Front], base: type, name: str) -> Callable[..., Any]:
    """A method of front that has the signature of the class inside: GradScaler and Accelerate look there for what they
    may pass.
    """
    method = getattr(front, name)

    @functools.wraps(method)
    def seen(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    with contextlib.suppress(TypeError, ValueError):  # compiled classes may have none to read
        seen.__signature__ = inspect.signature(getattr(base, name))  # type: ignore[attr-defined]
    return seen


def _plain(base: type) -> Any:
    return object.__new__(base)


def _own_class(optimizer: torch.optim.Optimizer) -> type:
    """Returns the class that computes the step.

    Horovod makes its DistributedOptimizer as a subclass of the user's, made for the one instance.
    """
    return type(optimizer).__bases__[0] if _is_horovods(optimizer) else type(optimizer)


def _stop_horovods(optimizer: torch.optim.Optimizer) -> None:
    """Ends Horovod's exchange of this optimizer's gradients: two that write one p.grad at a time would race.

    Its hooks cannot be taken off: it keeps no handle of them. They count backward() passes down and act at zero,
    so they are given a count that does not end.
    """
    if _is_horovods(optimizer):
        delays = optimizer._allreduce_delay  # type: ignore[attr-defined]
        delays.update(dict.fromkeys(delays, NEVER))


def _is_horovods(optimizer: torch.optim.Optimizer) -> bool:
    return hasattr(optimizer, "_allreduce_delay") and hasattr(optimizer, "skip_synchronize")
