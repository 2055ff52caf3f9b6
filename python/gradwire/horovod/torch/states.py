"""The same weights and the same optimizer state for all ranks, as gradwire.torch gives them, in Horovod's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

import gradwire.torch
from gradwire.horovod import session
from gradwire.horovod.submission import call_together


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrites tensors, in place, with one rank's. A collective of all ranks.

    Args:
        params: model.state_dict(), model.named_parameters(), model.parameters(), or a list of (name, tensor) pairs or
            of tensors; the same names, shapes and dtypes on all ranks. What is no tensor is left alone.
        root_rank: whose.

    Raises:
        ValueError: params is something else; root_rank is no rank; ranks differ: the same text on all.
    """
    named = _named(params)
    store = session.current().store
    call_together(
        "broadcast_parameters", lambda: gradwire.torch.broadcast_parameters(named, root_rank, store)
    )


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Overwrites an optimizer's state and options with one rank's. A collective of all ranks.

    Other ranks' optimizers may be fresh. As after Horovod's, parameters without a gradient have one of zeros then; no
    step is taken.

    Args:
        optimizer: any but LBFGS; a DistributedOptimizer or the one inside.
        root_rank: whose.
        model: of Horovod's, which finds sparse parameters by it; not needed here.

    Raises:
        ValueError: LBFGS; root_rank is no rank; ranks whose parameter groups differ, or a state with something else
            than tensors, numbers, text, None, lists, tuples and dicts.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "hvd.broadcast_optimizer_state: the state of LBFGS is of its last steps; begin it anew on all ranks"
        )
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    store = session.current().store
    call_together(
        "broadcast_optimizer_state",
        lambda: gradwire.torch.broadcast_optimizer_state(optimizer, root_rank, store),
    )


def _named(params: Any) -> list[tuple[str, Any]]:
    """Returns names with values; of a mapping in the order of names, so that ranks may have put them in in any."""
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise ValueError(
            f"hvd.broadcast_parameters: given a {type(params).__name__}, expected model.state_dict(), a list of "
            "(name, tensor) pairs or a list of tensors"
        )
    pairs = [item if isinstance(item, tuple) else (None, item) for item in params]
    return [
        (f"tensor.{place}" if name is None else str(name), value) for place, (name, value) in enumerate(pairs)
    ]
