"""The part of a store's stats() that codecs beside its engine change."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def with_others(
    engine: dict[str, Any], raw: int, encoded: int, squares: Callable[[], float], seconds: float
) -> dict[str, Any]:
    """Returns bytes_raw, bytes_encoded, ratio, residual_norm and codec_seconds of the engine and the others.

    Args:
        engine: the engine's. If its residual_norm is None, squares is not called, as it reads all residuals.
        raw, encoded: the others' bytes.
        squares: gives the sum of the squares of their residuals.
        seconds: the others' codec_seconds.
    """
    raw, encoded = engine["bytes_raw"] + raw, engine["bytes_encoded"] + encoded
    of_engine = engine["residual_norm"]
    return {
        "bytes_raw": raw,
        "bytes_encoded": encoded,
        "ratio": raw / encoded if encoded else None,
        "residual_norm": None if of_engine is None else math.sqrt(of_engine**2 + squares()),
        "codec_seconds": engine["codec_seconds"] + seconds,
    }
