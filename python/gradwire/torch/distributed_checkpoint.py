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

_MODULE = "torch.distributed.checkpoint"


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


def by_rank(state: Mapping[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    """Returns a rank's state as it is saved beside those of the others."""
    written = io.BytesIO()
    torch.save(dict(state), written)
    return {_name(rank, ranks): written.getvalue()}


def of_rank(state: Mapping[str, Any], rank: int, ranks: int) -> Mapping[str, Any]:
    """Returns what by_rank() was given; another state as it is.

    Raises:
        ValueError: it is of another rank, or of another number of ranks.
    """
    names = [name for name, value in state.items() if isinstance(value, bytes) and name.startswith("rank ")]
    if not names:
        return state
    own = _name(rank, ranks)
    if own not in names:
        raise ValueError(
            f"gradwire.torch: the checkpoint has the state of {names[0]!r} and not of {own!r}; load it on as many "
            "ranks as it was saved on, or take gradwire.torch.save_checkpoint(), which any number of ranks can load"
        )
    loaded: Mapping[str, Any] = torch.load(io.BytesIO(state[own]), map_location="cpu", weights_only=True)
    return loaded


def _name(rank: int, ranks: int) -> str:
    return f"rank {rank} of {ranks}"
