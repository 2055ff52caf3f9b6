"""The same weights, optimizer state and objects for all ranks, in BytePS's words."""

from __future__ import annotations

from typing import Any

import torch

from gradwire.byteps.lifecycle import require_init
from gradwire.horovod import objects
from gradwire.horovod.torch import states


def broadcast_parameters(params: Any, root_rank: int, prefix: str = "Parameter.") -> None:
    """Overwrites tensors, in place, with one rank's: bit for bit, of any dtype. A collective of all ranks.

    Args:
        params: model.state_dict(), model.named_parameters(), or a list of (name, tensor) pairs or of tensors; the same
            on all ranks.
        root_rank: whose.
        prefix: of the names by which BytePS sums them; no sum is made here.

    Raises:
        ValueError: params is something else; root_rank is no rank; ranks differ: the same text on all; no init().
    """
    require_init("broadcast_parameters")
    states.broadcast_parameters(params, root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, prefix: str = "Parameter."
) -> None:
    """Overwrites an optimizer's state and options with one rank's. A collective of all ranks.

    Other ranks' optimizers may be fresh. No step is taken; parameters without a gradient have one of zeros then.

    Args:
        optimizer: any but LBFGS; a DistributedOptimizer or the one inside.
        root_rank: whose.
        prefix: as for broadcast_parameters().

    Raises:
        ValueError: LBFGS; root_rank is no rank; ranks whose parameter groups differ; no init().
    """
    require_init("broadcast_optimizer_state")
    states.broadcast_optimizer_state(optimizer, root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Gives every rank one rank's object. A collective of all ranks.

    Args:
        obj: anything that can be pickled; of other ranks than the root it does not matter.
        root_rank: whose.
        name: by which ranks mean the same object. Default: one for all.

    Returns: obj itself on the root, elsewhere a copy of the root's.

    Raises: ValueError: root_rank is no rank; no init().
    """
    require_init("broadcast_object")
    return objects.broadcast_object(obj, root_rank, name)
