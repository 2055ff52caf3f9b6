"""Compression for PyTorch's tensors: what all frameworks have, and fp16."""

from __future__ import annotations

import torch

from gradwire.horovod.compression import Compressions, Compressor


class FP16Compressor(Compressor):
    """Floating point gradients are summed in half precision: in float32 on the way, rounded once."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx)


class Compression(Compressions):
    """The compressions by name: none, fp16, two_bit, and codec() for the others of gradwire's."""

    fp16 = FP16Compressor
