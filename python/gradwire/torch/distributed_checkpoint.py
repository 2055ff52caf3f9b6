"""What torch.distributed.checkpoint saves of what every rank has for itself.

It takes values of one name for copies, and saves one of them; so there a rank's state goes by a name of its own, as
bytes, whose length may be another when it is loaded.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

_MODULE = "torch.distributed.checkpoint"
_OPTIMIZER = "state"  # as in an optimizer's state_dict()


def is_for_distributed_checkpoint() -> bool:
    """Whether the state that is asked for goes to torch.distributed.checkpoint: as Stateful objects are called, or out
    of one that has others in it.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_MODULE):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def place() -> tuple[int, int]:
    """Returns which of torch's ranks this process is, and of how many. Not of a process group: ranks of several groups,
    which may all save to one checkpoint, would be alike.
    """
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def by_rank(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns this rank's state as it is saved beside those of the others."""
    written = io.BytesIO()
    torch.save(dict(state), written)
    return {_own_name(): written.getvalue()}


def optimizer_by_rank(own: Mapping[str, Any], optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns by_rank() of what gradwire keeps for an optimizer, with the optimizer's state, which differs between
    workers. It stays in the state_dict(), too, of which one copy is saved.

    Args:
        optimizer: its state_dict().
    """
    return by_rank({**own, _OPTIMIZER: optimizer[_OPTIMIZER]})


def with_own_state(optimizer: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns an optimizer's state_dict() with the state of this rank, where of_rank() has returned one."""
    return {**optimizer, _OPTIMIZER: own[_OPTIMIZER]} if _OPTIMIZER in own else optimizer


def of_rank(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what by_rank() was given; another state as it is.

    Raises:
        ValueError: it is of another rank, or of another number of ranks.
    """
    names = [name for name, value in state.items() if isinstance(value, bytes) and name.startswith("rank ")]
    if not names:
        return state
    own = _own_name()
    if own not in names:
        raise ValueError(
            f"gradwire.torch: the checkpoint has the state of {names[0]!r} and not of {own!r}; load it on as many "
            "ranks as it was saved on, or take gradwire.torch.save_checkpoint(), which any number of ranks can load"
        )
    loaded: Mapping[str, Any] = torch.load(io.BytesIO(state[own]), map_location="cpu", weights_only=True)
    return loaded


def _own_name() -> str:
    rank, ranks = place()
    return f"rank {rank} of {ranks}"
