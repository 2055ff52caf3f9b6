"""Compression: how gradients travel: Horovod's `none` and `fp16`, and every codec of gradwire's.

    hvd.DistributedOptimizer(optimizer, named_parameters=..., compression=hvd.Compression.two_bit)
    hvd.DistributedOptimizer(..., compression=hvd.Compression.codec("int8"))

Horovod's two change a tensor before it is summed and back after it, so the sum is of what they made of it. A codec has
payloads that cannot be added as they are: the store decodes, sums in float32 and encodes the answer, and keeps what was
not sent for the tensor's next sum (error feedback), by the operation's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gradwire.compress import Compression as StoreCompression
from gradwire.torch import session


class Compressor:
    """What Horovod asks of a compression; users may give their own. Those of gradwire's codecs also have `codec`."""

    codec: StoreCompression | None = None

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor as it is summed, and what decompress() needs besides."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Undoes compress(), of the sum."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Gradients travel as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Floating point gradients are summed in half precision: in float32 on the way, rounded once."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx)


class CodecCompressor(NoneCompressor):
    """One of gradwire's codecs, which acts on the way. Made by Compression.codec()."""

    def __init__(self, codec: StoreCompression) -> None:
        self.codec = codec


class Compression:
    """The compressions by name."""

    none = NoneCompressor
    fp16 = FP16Compressor

    @staticmethod
    def codec(wanted: session.Wanted) -> CodecCompressor:
        """Returns a codec of gradwire's: "2bit", "int8:…" or {"type": "2bit", "threshold": 0.5}; see `gradwire doctor`.

        2bit has threshold=auto unless given, as in gradwire.torch.

        Raises:
            ValueError: an unknown codec, parameter or reply.
            TypeError: neither text nor a mapping.
        """
        return CodecCompressor(session.parse_compression(wanted))

    two_bit = CodecCompressor(StoreCompression.parse("2bit:threshold=auto"))


def compressor_of(wanted: Any) -> Any:
    """Returns what compresses and decompresses: what was given, or a codec by its text or mapping.

    Raises:
        ValueError: an unknown codec, parameter or reply.
        TypeError: it is none of these.
    """
    if isinstance(wanted, str | Mapping):
        return Compression.codec(wanted)
    if not all(callable(getattr(wanted, method, None)) for method in ("compress", "decompress")):
        raise TypeError(
            f"hvd: compression={wanted!r}: expected hvd.Compression.none or fp16, a codec such as '2bit' or "
            "{'type': '2bit'}, or what has compress() and decompress()"
        )
    return wanted


def codec_text(compressor: Any) -> str:
    """A codec as requests name it; empty where none acts on the way."""
    codec: StoreCompression | None = getattr(compressor, "codec", None)
    return "" if codec is None or codec.spec == "none" else f"{codec.spec} {codec.reply}"
