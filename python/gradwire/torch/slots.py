"""Slots: the memory in which gradients are sent and their means arrive, one buffer for all parameters.

The engine reads and writes it on threads of its own, so it must stay where it is as long as the engine does. A tensor's
storage does not: share_memory_() and a queue of torch.multiprocessing move it, for every tensor that has it, and free
what was there. So nobody else has the storage of a slot. What p.grad gets is the same memory in a storage of its own:
whatever is done to that leaves the slot alone, and holds() tells whether p.grad is still there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import dlpack

from gradwire import _core
from gradwire.torch.elements import exchanged_dtype, memory_dtype, real_elements
from gradwire.torch.exchange import is_channels_last

_ALIGNMENT = 32  # elements, of two bytes or more: slots begin on cache lines


def home_of(parameters: Sequence[torch.Tensor]) -> torch.device:
    """Returns the one CUDA device that holds all parameters, if the engine can encode there; else the CPU."""
    devices = {parameter.device for parameter in parameters}
    usable = _core.build_info()["cuda_devices"] > 0
    if usable and len(devices) == 1 and (device := devices.pop()).type == "cuda":
        return device
    return torch.device("cpu")


def encodable(flat: torch.Tensor, *, keeps_halves: bool = False) -> torch.Tensor:
    """Returns real numbers of the dtype and on the device that codecs can work on: the tensor itself, or a copy.

    Args:
        keeps_halves: as memory_dtype().
    """
    home = home_of([flat]) if exchanged_dtype(flat.dtype) == torch.float32 else torch.device("cpu")
    return flat.to(device=home, dtype=memory_dtype(flat.dtype, keeps_halves=keeps_halves))


class Slot:
    """One parameter's memory.

    Attributes:
        values: of float16, bfloat16, float32 or float64, or complex numbers of the last two; of the parameter's shape,
            and laid out as it was when this was made, which is the order in which elements travel. Never handed out.
    """

    def __init__(self, run: torch.Tensor, parameter: torch.Tensor) -> None:
        """
        Args:
            run: real (elements,), of runs_of().
        """
        if parameter.is_complex():
            run = torch.view_as_complex(run.view(-1, 2))
        self.values = run.view(parameter.shape)
        if is_channels_last(parameter):
            self.values = run.as_strided(parameter.shape, parameter.stride())
        self._is_plain = self.values.is_contiguous()
        self._address, self._device = run.data_ptr(), run.device
        self._strides, self._elements = self.values.stride(), run.numel()
        self._shared: torch.Tensor | None = None  # as it was handed out last
        self._is_apart = False

    def fits(self, parameter: torch.Tensor) -> bool:
        """True where p.grad can be this memory: of a parameter on its device, laid out as it is, whose gradients are of
        its dtype. Not after part().
        """
        if self._is_apart or gradient_dtype(parameter) != self.values.dtype:
            return False
        if parameter.device != self._device:
            return False
        if parameter.shape != self.values.shape:
            return False
        return parameter.is_contiguous() if self._is_plain else _is_laid_out_alike(parameter, self.values)

    def holds(self, gradient: torch.Tensor | None) -> bool:
        """True where a gradient is this memory, whole."""
        if gradient is None or gradient.layout != torch.strided or gradient.data_ptr() != self._address:
            return False
        if gradient.numel() != self._elements or gradient.dtype != self.values.dtype:
            return False
        if gradient.stride() == self._strides:
            return True
        return gradient.shape == self.values.shape and _is_laid_out_alike(gradient, self.values)

    def shared(self) -> torch.Tensor:
        """Returns this memory as a tensor with a storage of its own: the one before, if nobody has moved it."""
        if self._shared is None or not self.holds(self._shared):
            self._shared = _in_own_storage(self.values)
        return self._shared

    def is_kept(self) -> bool:
        """True where somebody still has what shared() returned, or a view of it. Requires that p.grad is not it."""
        return self._shared is not None and self.holds(self._shared) and _references(self) != _UNKEPT

    def part(self) -> bool:
        """Gives what shared() returned a copy of the values for its own, so that whoever keeps it keeps them; fits() is
        False from now on. Returns False where a view of it, whose memory cannot be exchanged, still is this memory.
        """
        kept, self._shared, self._is_apart = self._shared, None, True
        assert kept is not None
        storage = kept.untyped_storage()
        kept.data = kept.clone()
        others: int = torch._C._storage_Use_Count(storage._cdata)
        return others < _UNKEPT[1]


def _in_own_storage(values: torch.Tensor) -> torch.Tensor:
    """Returns the same memory as a tensor with a storage of its own."""
    found: torch.Tensor = dlpack.from_dlpack(dlpack.to_dlpack(values))  # type: ignore[attr-defined]
    return found


def _references(owner: Any) -> tuple[int, int]:
    """Returns how many there are to the tensor owner._shared, which counts a saved one of autograd's too, and to its
    storage.
    """
    shared = owner._shared
    return sys.getrefcount(shared), torch._C._storage_Use_Count(shared.untyped_storage()._cdata)


# Of a tensor that only its owner has. Versions of Python and PyTorch differ in what the calls themselves add.
_UNKEPT = _references(SimpleNamespace(_shared=_in_own_storage(torch.zeros(1))))


def gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Returns what p.grad is to be: the parameter's dtype, unless p.grad_dtype, which newer PyTorch has, says else."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


def runs_of(
    parameters: Sequence[torch.Tensor], device: torch.device, *, keeps_halves: bool = False
) -> list[torch.Tensor]:
    """Returns one run of zeros (elements,) for each, out of one buffer of each dtype: of float64 on the CPU, which is
    where those are summed; of others there.

    Args:
        keeps_halves: as memory_dtype(), of gradients.
    """
    totals: dict[torch.dtype, int] = {}
    places = []
    for parameter in parameters:
        keeps = keeps_halves and getattr(parameter, "grad_dtype", parameter.dtype) is not None  # None: of any
        own = gradient_dtype(parameter) if keeps else parameter.dtype
        dtype = memory_dtype(own, keeps_halves=keeps)
        elements = real_elements(parameter)
        begin = totals.get(dtype, 0)
        places.append((dtype, begin, elements))
        totals[dtype] = begin + -(-elements // _ALIGNMENT) * _ALIGNMENT
    with torch.inference_mode(False):  # whoever makes the optimizer there trains elsewhere
        homes = {dtype: torch.device("cpu") if dtype == torch.float64 else device for dtype in totals}
        flat = {dtype: torch.zeros(totals[dtype], dtype=dtype, device=homes[dtype]) for dtype in totals}
        return [flat[dtype][offset : offset + elements] for dtype, offset, elements in places]


def _is_laid_out_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True where the elements of tensors of one shape follow each other in the same order. Dimensions of one element do
    not matter.
    """
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or a == b for size, a, b in strides)
