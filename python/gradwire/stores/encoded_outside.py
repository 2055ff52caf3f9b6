"""EncodedOutside: what front ends encode themselves and send by a store's collectives, beside what its engine encodes.

FSDP2's reduce-scatter is such a sum. The engine does not know of it, so it is counted here, and a store's stats() adds
the two.

Threading: one thread at a time counts, that of the store's collectives. Any thread reads.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from gradwire.stores import codec_stats


class HoldsResiduals(Protocol):
    """What a front end keeps residuals in."""

    def residual_squares(self) -> float:
        """Returns the sum of the squares of what has not been sent yet, in one pass. On any thread."""


class EncodedOutside:
    """Counts bytes and seconds, and knows who holds residuals."""

    def __init__(self) -> None:
        self._bytes = (0, 0)  # raw and encoded; replaced whole, since other threads read it
        self._codec_seconds = 0.0
        self._holders: tuple[weakref.ref[HoldsResiduals], ...] = ()  # replaced whole, too

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes of gradients that were given, and bytes of their payloads."""
        return self._bytes

    def count(self, raw: int, encoded: int) -> None:
        """Counts one sum.

        Args:
            raw: bytes of the gradients that this worker gives.
            encoded: bytes of the payloads that were made of them.
        """
        self._bytes = self._bytes[0] + raw, self._bytes[1] + encoded

    @contextmanager
    def coding(self) -> Iterator[None]:
        """Counts this thread's CPU seconds inside the block as codec_seconds."""
        began = time.thread_time()
        yield
        self._codec_seconds += time.thread_time() - began

    def watch(self, holder: HoldsResiduals) -> None:
        """Includes a holder's residuals in residual_norm for as long as somebody else refers to it."""
        self._holders = (*(each for each in self._holders if each() is not None), weakref.ref(holder))

    def stats_beside(self, engine: dict[str, Any]) -> dict[str, Any]:
        """Returns those of a store's stats() in which this has a part.

        Args:
            engine: the engine's. If its residual_norm is None, no residual is read here.
        """
        return codec_stats.with_others(engine, *self._bytes, self._squares, self._codec_seconds)

    def _squares(self) -> float:
        there = [holder for each in self._holders if (holder := each()) is not None]
        return sum(holder.residual_squares() for holder in there)
