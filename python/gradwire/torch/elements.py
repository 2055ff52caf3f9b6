"""Which elements of a tensor travel: real numbers of 32 or 64 bits.

A complex number is two of them, real part first, each with a residual of its own. Codecs work in float32; "none" sends
float64 as it is, so what a front end hands over keeps its 64 bits (compress/FORMAT.md, "none"). The engine widens
float16 and bfloat16 itself, as it encodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

_WIDE = (torch.float64, torch.complex128)
_HALVES = (torch.float16, torch.bfloat16)


def exchanged_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns float64 for what has 64 bits a number, else float32."""
    return torch.float64 if dtype in _WIDE else torch.float32


def memory_dtype(dtype: torch.dtype, *, keeps_halves: bool) -> torch.dtype:
    """Returns what the memory that the engine reads and writes is of.

    Args:
        keeps_halves: gradients of 16 bits lie there as they are.
    """
    return dtype if keeps_halves and dtype in _HALVES else exchanged_dtype(dtype)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a strided tensor's own memory, a complex one's as (..., 2)."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def real_shape(tensor: torch.Tensor) -> list[int]:
    """The shape of as_real()."""
    return [*tensor.shape, 2] if tensor.is_complex() else list(tensor.shape)


def real_elements(tensor: torch.Tensor) -> int:
    """How many numbers travel."""
    return math.prod(real_shape(tensor))


def octets_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a strided tensor's elements in their order: uint8 (bytes,), on the CPU; its own memory, or a
    copy where it lies otherwise.
    """
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # A tensor of one element is contiguous whatever its strides are, and torch views none but stride 1 as bytes.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def in_memory_order(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Returns a strided tensor with its dimensions in the order of these strides, the longest first: as a tensor that
    has them lies in memory.
    """
    return tensor.permute(sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension]))
