"""gradwire: compressed gradient exchange for distributed training on ordinary Ethernet.

`gradwire.kv` is the key-value store (push, pull, pushpull), `gradwire.torch` wraps any PyTorch optimizer,
`gradwire.compress` has the codecs by themselves, `gradwire.samplers` says who trains on what,
`gradwire.elastic` goes on without workers that die. `gradwire.horovod`,
`gradwire.byteps` and `gradwire.mxnet` are the interfaces of those. The command `gradwire --help` tells the rest.

Errors besides ValueError (misuse) and TypeError: `DecodeError`, a ValueError: bytes that are no payload of the codec.
`TransportError`, a ConnectionError: the job has failed; names the rank at fault. `MembershipChanged`, a TransportError:
the job goes on with other members; `gradwire.elastic` joins it again. `CallMismatch`, a TransportError and a
ValueError: ranks make calls that can never meet, so that the job has failed; names who is in what. `TimeoutError`,
Python's own among its bases: what was waited for did not come; names who is missing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire import byteps, compress, elastic, horovod, kv, samplers, torch
    from gradwire._core import CallMismatch, DecodeError, MembershipChanged, TimeoutError, TransportError
    from gradwire.sparse import RowSparse

    __version__: str

__all__ = [
    "CallMismatch",
    "DecodeError",
    "MembershipChanged",
    "RowSparse",
    "TimeoutError",
    "TransportError",
    "__version__",
    "byteps",
    "compress",
    "elastic",
    "horovod",
    "kv",
    "samplers",
    "torch",
]

_MODULES = ("byteps", "compress", "elastic", "horovod", "kv", "samplers", "torch")
_CORE = ("CallMismatch", "DecodeError", "MembershipChanged", "TimeoutError", "TransportError")


def __getattr__(name: str) -> Any:
    """Imports parts when they are first used: `import gradwire` costs nothing, and torch is not imported with it."""
    if name in _MODULES:
        return importlib.import_module(f"gradwire.{name}")
    if name in _CORE:
        return getattr(importlib.import_module("gradwire._core"), name)
    if name == "RowSparse":
        return importlib.import_module("gradwire.sparse").RowSparse
    if name == "__version__":
        return importlib.metadata.version("gradwire")
    raise AttributeError(f"module 'gradwire' has no attribute {name!r}; it has {', '.join(__all__)}")
