"""Slots: the memory in which gradients are sent and their means arrive, one buffer for all parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradwire import _core
from gradwire.torch.exchange import is_channels_last

_ALIGNMENT = 16  # float32 elements: slots begin on cache lines

NO_SLOT = torch.empty(0)
"""Of a parameter whose gradients travel as rows."""


def home_of(parameters: Sequence[torch.Tensor]) -> torch.device:
    """Returns the one CUDA device that holds all parameters, if the engine can encode there; else the CPU."""
    devices = {parameter.device for parameter in parameters}
    usable = _core.build_info()["cuda_devices"] > 0
    if usable and len(devices) == 1 and (device := devices.pop()).type == "cuda":
        return device
    return torch.device("cpu")


def as_slot(run: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Returns a run, float32 (elements,), in the shape of its parameter, and laid out as that is."""
    if is_channels_last(parameter):
        return run.as_strided(parameter.shape, parameter.stride())
    return run.view(parameter.shape)


def is_slot(gradient: torch.Tensor | None, slot: torch.Tensor) -> bool:
    """True where a gradient is a slot's memory."""
    return gradient is not None and gradient.data_ptr() == slot.data_ptr()


def runs_of(parameters: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Returns one run of float32 zeros (elements,) for each, out of one buffer."""
    offsets, total = [], 0
    for parameter in parameters:
        offsets.append(total)
        total += -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
    flat = torch.zeros(total, dtype=torch.float32, device=device)
    return [flat[o : o + p.numel()] for o, p in zip(offsets, parameters, strict=True)]
