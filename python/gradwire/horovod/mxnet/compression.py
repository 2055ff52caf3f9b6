"""Compression for MXNet's NDArrays: what all frameworks have, and fp16."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradwire.horovod.compression import Compressions, Compressor


class FP16Compressor(Compressor):
    """Floating point gradients are summed in half precision: in float32 on the way, rounded once."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        is_floating = np.issubdtype(tensor.dtype, np.floating)
        return (tensor.astype("float16") if is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor.astype(ctx) if tensor.dtype != ctx else tensor


class Compression(Compressions):
    """The compressions by name: none, fp16, two_bit, and codec() for the others of gradwire's."""

    fp16 = FP16Compressor
