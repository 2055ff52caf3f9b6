"""Sums to which a codec could not send all: of a NaN or an infinity, or of a value beyond its format (fp16: 65504).

A codec sends 0 in the place of what is not finite. The payload's flag reaches all ranks with the sum, but not which
elements it is about. So a sum that is flagged is NaN, all of it and on every rank: whoever looks for NaNs, as a
GradScaler does, finds one on each rank, where finite numbers would be taken for the sum. Residuals keep what they kept
before. `nonfinite=mxnet` is MXNet's own way, and stays that. Servers with an optimizer leave such elements out of their
update, and weights stay finite.

gradwire.torch goes by the tickets itself: there on_nonfinite and grad_scaler say what becomes of a step.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gradwire import _core

__all__ = ["NonfiniteSums", "is_sent"]


def is_sent(spec: str) -> bool:
    """True where a codec sends what is not finite in a way of its own."""
    return spec.partition(":")[0] == "none" or "nonfinite=mxnet" in spec


class NonfiniteSums:
    """Marks the sums of one store, and warns once for each name."""

    def __init__(self, rank: int) -> None:
        """rank: this worker's."""
        self._rank = rank
        self._told: set[Hashable] = set()

    def mark(
        self, name: Hashable, spec: str, ticket: _core.Ticket, sums: Iterable[Any], given: Any = None
    ) -> None:
        """Has sums be NaN if their round is flagged.

        Args:
            name: of the tensor.
            spec: the codec by which it was sent.
            ticket: of the round; done.
            sums: arrays of floats, NumPy's or PyTorch's.
            given: what this worker gave, to say whether it was the one; None, or the memory of the sum: not known.
        """
        if not ticket.nonfinite or is_sent(spec):
            return
        self.warn(name, spec, "the sum is NaN on every rank", given)
        for array in sums:
            if isinstance(array, np.ndarray):
                array[...] = np.nan
            else:
                array.detach().fill_(float("nan"))

    def warn_of_update(self, name: Hashable, spec: str, ticket: _core.Ticket, given: Any = None) -> None:
        """Warns where servers have updated a weight without what could not be sent.

        Args:
            name, spec, ticket, given: as of mark().
        """
        if ticket.nonfinite and not is_sent(spec):
            self.warn(name, spec, "the servers' update leaves these elements out", given)

    def warn(self, name: Hashable, spec: str, then: str, given: Any = None) -> None:
        """Warns, once for each name.

        Args:
            name, spec, given: as of mark().
            then: what has become of the sum.
        """
        if name in self._told:
            return
        self._told.add(name)
        codec = spec.partition(":")[0]
        if given is not None and not _is_finite(given):
            what = f"the values of worker {self._rank}, this one, held a NaN or an infinity, for which {codec} sent 0"
        else:
            what = (
                "a worker's values held a NaN or an infinity, or a value beyond what the codec's format can (fp16: "
                f"65504); {codec} sent 0, or the largest that it can, in its place"
            )
        warnings.warn(f"gradwire: {name!r}: {what}, and {then}", RuntimeWarning, stacklevel=4)


def _is_finite(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return bool(np.isfinite(array).all())
    return bool(array.detach().isfinite().all())
