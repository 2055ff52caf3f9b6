"""Compression of gradients: Horovod's `none` and `fp16`, and every codec of gradwire.

    hvd.DistributedOptimizer(optimizer, named_parameters=..., compression=hvd.Compression.two_bit)
    hvd.DistributedOptimizer(..., compression=hvd.Compression.codec("int8"))

Horovod's two convert a tensor before the sum and back after it. Payloads of a codec cannot be added as they are: the
store decodes, sums in float32 and encodes the reply. It keeps residuals by the operation's name, for the tensor's next
sum (error feedback).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwire.compress import Compression as StoreCompression
from gradwire.stores.codec_choice import Wanted, parse_codec


class Compressor:
    """What Horovod asks of a compression; users may give their own. Those of gradwire's codecs also have `codec`."""

    codec: StoreCompression | None = None

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor as it is summed, and what decompress() needs besides."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Undoes compress(), of the sum."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Gradients travel as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: None) -> Any:
        return tensor


class CodecCompressor(NoneCompressor):
    """One of gradwire's codecs, which acts on the way. Made by Compression.codec()."""

    def __init__(self, codec: StoreCompression) -> None:
        self.codec = codec


def codec(wanted: Wanted) -> CodecCompressor:
    """Returns a codec of gradwire's: "2bit", "int8:…" or {"type": "2bit", "threshold": 0.5}; see `gradwire doctor`.

    2bit has threshold=auto unless given, as in gradwire.torch.

    Raises:
        ValueError: an unknown codec, parameter or reply.
        TypeError: neither text nor a mapping.
    """
    return CodecCompressor(parse_codec("gradwire.horovod", wanted))


class Compressions:
    """The compressions of one framework by name: what all have; a framework adds fp16 for its own tensors."""

    none = NoneCompressor
    codec = staticmethod(codec)
    two_bit = CodecCompressor(StoreCompression.parse("2bit:threshold=auto"))


def compressor_of(wanted: Any) -> Any:
    """Returns what compresses and decompresses: what was given, or a codec by its text or mapping.

    Raises:
        ValueError: an unknown codec, parameter or reply.
        TypeError: it is none of these.
    """
    if isinstance(wanted, str | Mapping):
        return codec(wanted)
    if not all(callable(getattr(wanted, method, None)) for method in ("compress", "decompress")):
        raise TypeError(
            f"hvd: compression={wanted!r}: expected hvd.Compression.none or fp16, a codec such as '2bit' or "
            "{'type': '2bit'}, or what has compress() and decompress()"
        )
    return wanted


def codec_text(compressor: Any) -> str:
    """A codec as requests name it; empty where none acts on the way."""
    found: StoreCompression | None = getattr(compressor, "codec", None)
    return "" if found is None or found.spec == "none" else f"{found.spec} {found.reply}"
