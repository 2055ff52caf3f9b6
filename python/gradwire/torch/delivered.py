"""Delivered: what p.grad was when an exchange had ended, to tell it from what somebody puts there afterwards.

Threading: one thread at a time.
"""

from __future__ import annotations

import torch


class Delivered:
    """Gradients by the index of their parameter."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}  # address and version
        self._kept: dict[int, torch.Tensor] = {}  # so that no other tensor gets their memory

    def note(self, index: int, gradient: torch.Tensor | None, *, keeps: bool) -> None:
        """Says what a parameter's grad is now.

        Args:
            keeps: keeps the gradient until release(): another tensor may get its memory once it is gone.
        """
        self._known.pop(index, None)
        self._kept.pop(index, None)
        if gradient is not None:
            self._known[index] = _identity(gradient)
            if keeps:
                self._kept[index] = gradient

    def is_there(self, index: int, gradient: torch.Tensor) -> bool:
        """True where a gradient lies where the one lies that was noted; its values may be others."""
        known = self._known.get(index)
        return known is not None and known[0] == _identity(gradient)[0]

    def is_untouched(self, index: int, gradient: torch.Tensor) -> bool:
        """True where it has not been written since, either."""
        return self._known.get(index) == _identity(gradient)

    def release(self) -> None:
        """Keeps gradients no longer, and so does not know any more where those lay."""
        for index in self._kept:
            del self._known[index]
        self._kept.clear()


def _identity(gradient: torch.Tensor) -> tuple[int, int]:
    strided = gradient.layout == torch.strided
    return (gradient.data_ptr() if strided else id(gradient)), gradient._version
