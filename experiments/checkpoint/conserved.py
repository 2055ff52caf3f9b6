"""Is what all workers had together still there, element by element, when others have taken over?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

_ROUNDING = 2.0**-24  # of float32, relative
_SMALLEST = 2.0**-149  # that float32 holds


class Total(NamedTuple):
    """Of all workers, float64 (elements,): what they have, added; and the magnitudes of that, added."""

    values: Any
    magnitudes: Any

    @classmethod
    def of(cls, own: Any, store: Any) -> Total:
        """Collective. own: this worker's, float32 (elements,)."""
        exact = own.astype(np.float64)
        return cls(store.collectives.all_reduce(exact), store.collectives.all_reduce(np.abs(exact)))


def require_conserved(
    what: str, was: Mapping[str, Total], now: Mapping[str, Total], *, share: float, roundings: int
) -> float:
    """Returns the largest difference of an element, relative to its magnitudes: a small one is as much as a large one.

    Args:
        share: what the values now are to be of those that were.
        roundings: of float32, that were made of each element.

    Raises:
        ValueError: an element differs by more than these roundings.
    """
    largest = 0.0
    for name, before in was.items():
        difference = np.abs(now[name].values - share * before.values)
        allowed = roundings * (_ROUNDING * share * before.magnitudes + _SMALLEST)
        if (lost := difference > allowed).any():
            first = int(np.argmax(lost))
            raise ValueError(
                f"checkpoint: {what} of {name}, element {first}: {now[name].values[first]}, expected "
                f"{share * before.values[first]} but for {allowed[first]} of rounding"
            )
        relative = difference / np.maximum(share * before.magnitudes, _SMALLEST)
        largest = max(largest, float(relative.max()))
    return largest
