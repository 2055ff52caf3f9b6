"""What overlap_step cannot go with, refused when the optimizer is made or steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from gradwire.stores import connect

if TYPE_CHECKING:
    from gradwire.kv import KVStore

_INSTEAD = {
    "max_grad_norm": "it needs the norm of all means; call optimizer.synchronize() after backward(), which waits for "
    "them, then torch.nn.utils.clip_grad_norm_() and step()",
    "grad_scaler": "it looks at all means before the first update; train in bfloat16, which needs no scale, or leave "
    "overlap_step out",
    "on_nonfinite='skip_step'": "a step cannot be taken back when its last sum arrives; use on_nonfinite='warn', or "
    "leave overlap_step out",
    "row_column_scales": "scales are learned from all means at the end of a step; leave one of the two out",
}


def require_possible(optimizer: torch.optim.Optimizer, store: KVStore, given: Mapping[str, bool]) -> None:
    """Refuses what overlap_step cannot go with.

    Args:
        given: which of the options that it excludes are in use.

    Raises:
        ValueError: names what excludes it, and what to do instead.
    """
    for name, is_given in given.items():
        if is_given:
            raise ValueError(
                f"gradwire.torch: overlap_step was given (or GRADWIRE_OVERLAP_STEP) with {name}: {_INSTEAD[name]}"
            )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "gradwire.torch: overlap_step was given (or GRADWIRE_OVERLAP_STEP) with LBFGS, whose step updates all "
            "parameters together; leave overlap_step out"
        )
    if connect.sums_in_one_order(store.type):
        raise ValueError(
            f"gradwire.torch: overlap_step was given (or GRADWIRE_OVERLAP_STEP) with the store {store.type!r}, whose "
            "library sums in one order on all ranks, the back layers first; use 'allreduce' or 'dist_sync', or leave "
            "overlap_step out"
        )


def require_no_gradient_is_needed(
    optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None
) -> None:
    """Raises ValueError for what reads gradients or losses during the step."""
    if closure is not None:
        raise ValueError(
            "gradwire.torch: step(closure) was called with overlap_step, which leaves sums on their way when "
            "step() returns; call backward() before, and step() without a closure, or leave overlap_step out"
        )
    if getattr(optimizer, "grad_scale", None) is not None:
        raise ValueError(
            "gradwire.torch: a GradScaler steps an optimizer that has overlap_step; train in bfloat16, which needs "
            "no scale, or leave overlap_step out"
        )


def require_no_arguments(given: Mapping[str, Any]) -> None:
    """Raises ValueError for arguments of step() other than its closure."""
    for name in given:
        raise ValueError(
            f"gradwire.torch: step({name}=...) was called with overlap_step, which takes the step in parts as sums "
            "arrive; leave the argument or overlap_step out"
        )
