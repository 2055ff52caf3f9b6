"""What a store raises at misuse: both what MXNet's scripts catch and what gradwire's do."""

from __future__ import annotations

from mxnet.base import MXNetError

__all__ = ["KVStoreError"]


class KVStoreError(MXNetError, ValueError):  # type: ignore[misc]
    """A call that cannot be: an unknown key, another shape, an optimizer that servers do not have."""
