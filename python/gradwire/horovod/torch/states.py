"""Copies weights and optimizer state to all ranks, with Horovod's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

import gradwire.torch
from gradwire.horovod import session
from gradwire.horovod.submission import call_together


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrites tensors in place with those of one rank. A collective of all ranks.

    Args:
        params: model.state_dict(), model.named_parameters(), model.parameters(), or a list of (name, tensor) pairs or
            of tensors; the same names, shapes and dtypes on all ranks. Entries that are not tensors are ignored.
        root_rank: the rank whose values all get.

    Raises:
        ValueError: params has another type; root_rank is not a rank; ranks differ (the same text on all).
    """
    named = _named(params)
    store = session.current().store
    call_together(
        "broadcast_parameters", lambda: gradwire.torch.broadcast_parameters(named, root_rank, store)
    )


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Overwrites an optimizer's state and options with those of one rank. A collective of all ranks.

    Other ranks' optimizers may be new. As with Horovod, parameters without a gradient get one of zeros; no step is
    taken.

    Args:
        optimizer: any optimizer but LBFGS; a DistributedOptimizer or the wrapped one.
        root_rank: the rank whose state all get.
        model: not used; Horovod finds sparse parameters by it. Default: None.

    Raises:
        ValueError: LBFGS; root_rank is not a rank; ranks have different parameter groups; or the state has something
            other than tensors, numbers, text, None, lists, tuples and dicts.
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
