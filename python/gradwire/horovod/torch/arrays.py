"""PyTorch's tensors on the CPU as an ArrayLibrary."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from gradwire.horovod.request import TensorSpec

_COMBINE: dict[str, Any] = {
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "product": torch.mul,
}


def spec_of(array: torch.Tensor) -> TensorSpec:
    return TensorSpec(str(array.dtype).removeprefix("torch."), tuple(array.shape))


def is_floating(array: torch.Tensor) -> bool:
    return array.is_floating_point()


def zeros(shape: Sequence[int], dtype: str) -> torch.Tensor:
    return torch.zeros(tuple(shape), dtype=_dtype(dtype), device="cpu")


def empty_like(array: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(array)


def cast(array: torch.Tensor, dtype: str) -> torch.Tensor:
    return array.to(_dtype(dtype))


def copied(array: torch.Tensor, dtype: str) -> torch.Tensor:
    return array.to(_dtype(dtype), copy=True)


def joined(arrays: Sequence[torch.Tensor], out: torch.Tensor | None = None) -> torch.Tensor:
    if out is None:
        return torch.cat(list(arrays))
    with _writing_to(out):
        return torch.cat(list(arrays), out=out)


def parts(array: torch.Tensor, rows: Sequence[int]) -> list[torch.Tensor]:
    return list(array.split(list(rows)))  # type: ignore[no-untyped-call]


def combined(op: str, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = _COMBINE[op](one, other)
    return total


def write(target: torch.Tensor, values: torch.Tensor) -> None:
    if values.data_ptr() != target.data_ptr() or values.dtype != target.dtype:
        with _writing_to(target):
            target.copy_(values.view(target.shape))


def from_bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def to_bytes(array: torch.Tensor) -> bytes:
    return array.numpy().tobytes()


def _writing_to(target: torch.Tensor) -> AbstractContextManager[Any]:
    """What a tensor is written in, on the thread that has the result: torch takes one of inference mode in that alone,
    and the mode is the caller's thread's.
    """
    return torch.inference_mode() if target.is_inference() else torch.no_grad()


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype
