"""Closures: what DistributedOptimizer makes of one that is given to step().

torch's own optimizers call it once, before anything else; so it is called for them, and their step is as one without.
LBFGS, and classes that are not torch's (SAM), are handed one that they call when and as often as they like: after each
call p.grad is the workers' mean, and the loss too, so that all ranks decide the same.
"""

from __future__ import annotations

import numbers
import struct
from collections.abc import Callable
from typing import Any

import torch

from gradwire.torch.exchange_options import OnNonfinite
from gradwire.torch.reducer import GradientReducer

Gather = Callable[[str, bytes], list[bytes]]


def are_handed_to(base: type[torch.optim.Optimizer]) -> bool:
    """True for classes whose step() calls the closure itself."""
    module = getattr(base.step, "__module__", None) or ""
    return issubclass(base, torch.optim.LBFGS) or not module.startswith("torch.optim.")


def called_first(
    closure: Callable[[], Any] | None, base: type[torch.optim.Optimizer]
) -> tuple[Any, Callable[[], Any] | None]:
    """Calls a closure before the step, unless the class calls it itself.

    Returns: the loss, None where it was not called; and the closure that the class is to be handed, None where it is
        none.
    """
    if closure is None or are_handed_to(base):
        return None, closure
    with torch.enable_grad():
        return closure(), None


def require_possible(
    base: type, on_nonfinite: OnNonfinite, grad_scaler: object | None, *, sends_momentum: bool
) -> None:
    """Refuses what a step cannot go with that a class takes by calling a closure itself.

    Args:
        on_nonfinite, grad_scaler: as DistributedOptimizer's; a scaler vetoes, and so does "skip_step".
        sends_momentum: momentum_correction.

    Raises:
        ValueError: what vetoes, or momentum; says what to do instead.
    """
    if on_nonfinite == "skip_step" or grad_scaler is not None:
        what = "on_nonfinite='skip_step'" if grad_scaler is None else "grad_scaler"
        raise ValueError(
            f"gradwire.torch: {what} cannot veto a step of {base.__name__}, which calls its closure itself, each time "
            "on what it has done after the last; use on_nonfinite='warn', and keep a copy of weights and state to go "
            "back to"
        )
    if sends_momentum:
        raise ValueError(
            f"gradwire.torch: momentum_correction with step(closure) of {base.__name__}, which calls it itself: each "
            "call would advance the workers' momentum; leave momentum_correction out"
        )


def on_means(
    closure: Callable[[], Any], reducer: GradientReducer | None, gather: Gather, clip: Callable[[], None]
) -> Callable[[], Any]:
    """Returns a closure after which gradients are the workers' means, clipped, and which returns their mean loss.

    Args:
        closure: computes gradients, or none, and returns the loss: a number, a tensor of one element, or None.
        reducer: what has gradients be means; None where nothing is exchanged.
        gather: a collective: every rank's blob, in rank order.
        clip: clips p.grad of all parameters; the optimizer looks at them as soon as the closure returns.
    """

    def called() -> Any:
        if reducer is not None:
            reducer.forget_gradients()  # each call is an exchange of its own
        loss = closure()
        if reducer is not None:
            reducer.settle()
            reducer.flush()
        clip()
        return loss if reducer is None else shared_loss(loss, mean)

    def mean(own: float) -> float:
        losses = gather("loss", struct.pack("<d", own))
        total: float = sum(struct.unpack("<d", each)[0] for each in losses)
        return total / len(losses)

    return called


def shared_loss(loss: Any, combine: Callable[[float], float]) -> Any:
    """Returns what the workers' closures have returned, combined; of the kind of this one's.

    Args:
        combine: a collective: makes one number of the workers'.

    Raises: TypeError: it is no loss.
    """
    if loss is None:
        return None
    is_tensor = isinstance(loss, torch.Tensor)
    if not (loss.numel() == 1 if is_tensor else isinstance(loss, numbers.Real)):
        raise TypeError(
            f"gradwire.torch: a closure returned a {type(loss).__name__}, expected the loss, a number or a tensor of "
            "one element, which the ranks combine"
        )
    value = combine(float(loss.detach() if is_tensor else loss))
    return torch.full_like(loss, value, requires_grad=False) if is_tensor else value
