"""Copies weights, optimizer state and objects to all ranks, with BytePS's names."""

from __future__ import annotations

from typing import Any

import torch

from gradwire.byteps.lifecycle import require_init
from gradwire.horovod import objects
from gradwire.horovod.torch import states


def broadcast_parameters(params: Any, root_rank: int, prefix: str = "Parameter.") -> None:
    """Overwrites tensors of any dtype in place with those of one rank, bit for bit. A collective of all ranks.

    Args:
        params: model.state_dict(), model.named_parameters(), or a list of (name, tensor) pairs or of tensors; the same
            on all ranks.
        root_rank: the rank whose values all get.
        prefix: not used; BytePS names its sums by it.

    Raises:
        ValueError: params has another type; root_rank is not a rank; ranks differ (the same text on all); init() was
            not called.
    """
    require_init("broadcast_parameters")
    states.broadcast_parameters(params, root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, prefix: str = "Parameter."
) -> None:
    """Overwrites an optimizer's state and options with those of one rank. A collective of all ranks.

    Other ranks' optimizers may be new. No step is taken; parameters without a gradient get one of zeros.

    Args:
        optimizer: any optimizer but LBFGS; a DistributedOptimizer or the wrapped one.
        root_rank: the rank whose state all get.
        prefix: not used; BytePS names its sums by it.

    Raises:
        ValueError: LBFGS; root_rank is not a rank; ranks have different parameter groups; init() was not called.
    """
    require_init("broadcast_optimizer_state")
    states.broadcast_optimizer_state(optimizer, root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Gives every rank one rank's object. A collective of all ranks.

    Args:
        obj: anything that can be pickled; ignored on ranks other than the root.
        root_rank: the rank whose object all get.
        name: name by which ranks match objects. Default: one name for all.

    Returns: obj itself on the root, a copy of it elsewhere.

    Raises: ValueError: root_rank is not a rank; init() was not called.
    """
    require_init("broadcast_object")
    return objects.broadcast_object(obj, root_rank, name)
