"""How tensors lie on the way: on the CPU, contiguous, of a type that gradwire's collectives have."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradwire.horovod.torch import arrays

# Types that travel as wider ones, exactly: sums wrap likewise when they are narrowed again.
_TRAVELS_AS = {torch.int16: torch.int32, torch.bool: torch.uint8}
_TRAVELS = (
    *(torch.uint8, torch.int8, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


def staged(verb: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor as it travels: itself, without its history, where it already lies so.

    Raises:
        TypeError: it is no tensor.
        ValueError: it is sparse, or of a type that cannot travel.
    """
    require_tensors(verb, [tensor])
    if tensor.is_sparse:
        raise ValueError(
            f"hvd.{verb}: the tensor is sparse; use sparse_allreduce_async(), or tensor.to_dense()"
        )
    dtype = _TRAVELS_AS.get(tensor.dtype, tensor.dtype)
    if dtype not in _TRAVELS:
        raise ValueError(f"hvd.{verb}: Tensor type {tensor.dtype} is not supported.")
    return tensor.detach().to(device="cpu", dtype=dtype).contiguous()


def require_rows(verb: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raises:
    TypeError: one is no tensor.
    ValueError: one has no dimension along which it could be cut or joined.
    """
    require_tensors(verb, tensors)
    for tensor in tensors:
        if tensor.dim() == 0:
            raise ValueError(f"hvd.{verb}: a tensor without dimensions has no rows; give tensor.reshape(1)")


def require_tensors(verb: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raises TypeError: one is no tensor."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"hvd.{verb}: given a {type(tensor).__name__}, expected a torch.Tensor")


def delivered(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Writes what has travelled to a tensor, which it returns; does nothing where that is the same memory."""
    arrays.write(tensor, values)
    return tensor
