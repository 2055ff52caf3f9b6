"""SentGradients: whether p.grad still is what backward() has sent, so that nothing that was done to it since is lost
without a word.

A gradient may be moved meanwhile (share_memory_(), a conversion of the model and back), which is no change. torch's
count of writes to a tensor tells of most changes. Not of GradScaler's unscaling, nor of writes through p.grad.data: so
a few elements are kept as well.

Threading: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gradwire.torch.elements import in_memory_order

_SAMPLE = 32  # elements of a gradient, or up to twice as many


class SentGradients:
    """Gradients that are under way, by parameter."""

    def __init__(self) -> None:
        self._known: dict[torch.Tensor, tuple[torch.Tensor, int, torch.Tensor] | None] = {}

    def note(self, parameters: Iterable[torch.Tensor]) -> None:
        """Says that what p.grad of these holds is under way."""
        for parameter in parameters:
            self._known[parameter] = None
            if (gradient := parameter.grad) is not None:
                self._known[parameter] = gradient, gradient._version, _sample(gradient)

    def changed(self) -> list[torch.Tensor]:
        """Returns parameters whose p.grad was written, or set anew, since note()."""
        return [parameter for parameter in self._known if not self._is_as_noted(parameter)]

    def forget(self) -> None:
        """Says that nothing is under way."""
        self._known.clear()

    def _is_as_noted(self, parameter: torch.Tensor) -> bool:
        known, gradient = self._known[parameter], parameter.grad
        if known is None or gradient is None:
            return known is None and gradient is None
        noted, version, sample = known
        # A conversion that swaps the insides of tensors brings a lower count along.
        if gradient is not noted or gradient._version > version:
            return False
        now = _sample(gradient)
        return now.shape == sample.shape and torch.allclose(
            now.to(sample), sample, rtol=0.0, atol=0.0, equal_nan=True
        )


@torch.no_grad()
def _sample(gradient: torch.Tensor) -> torch.Tensor:
    values = gradient._values() if gradient.is_sparse else gradient
    flat = in_memory_order(values.detach(), values.stride()).reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)].clone()
