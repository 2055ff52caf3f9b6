"""The error that a store raises for misuse. MXNet's scripts and gradwire's scripts can both catch it."""

from __future__ import annotations

from mxnet.base import MXNetError

__all__ = ["KVStoreError"]


class KVStoreError(MXNetError, ValueError):  # type: ignore[misc]
    """An invalid call: an unknown key, another shape, an optimizer that servers do not have."""
