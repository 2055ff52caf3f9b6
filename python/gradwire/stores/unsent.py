"""What a worker's codecs have not sent yet of a store's keys: kept by a commit, and gone on with in a later store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradwire.stores.keys import Key


@dataclass
class Unsent:
    """Residuals by key.

    Attributes:
        keys: float32 (elements,), of keys whose values are whole arrays.
        tables: row ids, int64 (n,), and rows, float32 (n, elements of a row), of tables.
        devices: of `local` and `device`, where each device encodes: DeviceSum.state().
    """

    keys: dict[Key, Any] = field(default_factory=dict)
    tables: dict[Key, tuple[Any, Any]] = field(default_factory=dict)
    devices: tuple[dict[tuple[Any, int], Any], dict[Any, Any], str, dict[Any, int]] = field(
        default_factory=lambda: ({}, {}, "", {})
    )
