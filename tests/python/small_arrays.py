"""Small arrays for a store, and what it gives back of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gradwire.kv import KVStore

SHAPE = (4, 3)


def ones(*shape: int, value: float = 1.0, dtype: Any = np.float32) -> Any:
    """Returns an array of one value, of SHAPE where none is given."""
    return np.full(shape or SHAPE, value, dtype)


def pulled(kv: KVStore, key: Any, shape: tuple[int, ...] = SHAPE) -> Any:
    """Returns what a pull of the key brings."""
    out = np.full(shape, np.nan, np.float32)
    kv.pull(key, out=out)
    return out
