"""gradwire: compressed gradient exchange for distributed training on ordinary Ethernet.

| module | does |
|---|---|
| `gradwire.torch` | wraps PyTorch optimizers, and has hooks for DistributedDataParallel and FSDP2 |
| `gradwire.integrations` | Lightning, Accelerate and the Hugging Face Trainer |
| `gradwire.kv` | key-value stores: push, pull, all-reduce |
| `gradwire.compress` | codecs without a network |
| `gradwire.samplers` | divides examples among workers |
| `gradwire.elastic` | continues a job when workers die or join |
| `gradwire.metrics` | writes what a store does to TensorBoard, W&B, Prometheus and OpenTelemetry |
| `gradwire.horovod`, `gradwire.byteps`, `gradwire.mxnet` | the interfaces of these libraries |

Run `gradwire --help` for all commands.

Misuse raises ValueError or TypeError. Further errors:

| error | is also a | means |
|---|---|---|
| `DecodeError` | ValueError | the bytes are not a payload of this codec |
| `TransportError` | ConnectionError | the job has failed; names the rank at fault |
| `MembershipChanged` | TransportError | the job continues with other members; `gradwire.elastic` joins it again |
| `CallMismatch` | TransportError, ValueError | ranks make calls that can never match; names the rank of each call |
| `TimeoutError` | Python's TimeoutError | something did not arrive in time; names the missing ranks |
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire import byteps, compress, elastic, horovod, kv, metrics, samplers, torch
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
    "metrics",
    "samplers",
    "torch",
]

_MODULES = ("byteps", "compress", "elastic", "horovod", "kv", "metrics", "samplers", "torch")
_CORE = ("CallMismatch", "DecodeError", "MembershipChanged", "TimeoutError", "TransportError")


def __getattr__(name: str) -> Any:
    """Imports parts on first use, so that `import gradwire` is fast and does not import torch."""
    if name in _MODULES:
        return importlib.import_module(f"gradwire.{name}")
    if name in _CORE:
        return getattr(importlib.import_module("gradwire._core"), name)
    if name == "RowSparse":
        return importlib.import_module("gradwire.sparse").RowSparse
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("gradwire")
    raise AttributeError(f"module 'gradwire' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    """Lists what is imported on first use too, for tab completion and help()."""
    return sorted({*globals(), *__all__})
