"""What all ranks must hold alike of a model or an optimizer, as short lines that can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from gradwire.torch.elements import octets_of
from gradwire.torch.exchange import STATE_KEY

_PLAIN = (bool, int, float, str, type(None))
_OWN_MOMENTUM = "momentum_buffer"  # each worker's own, with momentum_correction


def shared_lines(name: str, value: torch.nn.Module | torch.optim.Optimizer) -> list[str]:
    """Returns "WHAT of NAME=VALUE", or a digest of the value, for each tensor and each hyperparameter.

    What each rank has of its own is left out: what its codec has not sent, its own momentum; and what is neither a
    tensor nor a number, text or None.
    """
    if isinstance(value, torch.nn.Module):
        return [
            f"{key} of {name}={text}"
            for key, item in value.state_dict().items()
            if (text := _text(item)) is not None
        ]
    return list(_lines_of_optimizer(name, value))


def _lines_of_optimizer(name: str, optimizer: torch.optim.Optimizer) -> Iterator[str]:
    state = optimizer.state_dict()
    state.pop(STATE_KEY, None)
    own_momentum = getattr(optimizer, "momentum_correction", False)
    for number, group in enumerate(state["param_groups"]):
        for key, item in sorted(group.items()):
            if key != "params" and (text := _text(item)) is not None:
                yield f"{key} of group {number} of {name}={text}"
    for index, entry in sorted(state["state"].items(), key=lambda row: str(row[0])):
        for key, item in sorted(entry.items()) if isinstance(entry, Mapping) else ():
            if (key != _OWN_MOMENTUM or not own_momentum) and (text := _text(item)) is not None:
                yield f"{key} of parameter {index} of {name}={text}"


def _text(value: Any) -> str | None:
    if isinstance(value, torch.Tensor):
        return digest_of(value)
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, list | tuple):
        texts = [_text(item) for item in value]
        return None if None in texts else "(" + ", ".join(map(str, texts)) + ")"
    return None


@torch.no_grad()
def digest_of(tensor: torch.Tensor) -> str:
    """Returns a short digest of a tensor's dtype, shape and elements, wherever and however they lie."""
    plain = tensor.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    digest = hashlib.blake2b(f"{plain.dtype} {tuple(plain.shape)}".encode(), digest_size=8)
    digest.update(octets_of(plain).numpy().data)
    return digest.hexdigest()
