"""Fragments: the layers of a model that local workers exchange together, and after which of their steps.

Source: Douillard et al., Streaming DiLoCo, 2025 (arXiv 2501.18512), section 2.2. Deviation: a layer goes to the
fragment with the fewest elements so far, so that a link carries about the same each time; layers of one size
are strided over the fragments then, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Fragments:
    """Parameters are known by their index, in order of add()."""

    def __init__(self, count: int, sync_every: int) -> None:
        """
        Args:
            count: fragments, 1 to sync_every.
            sync_every: local steps between two exchanges of a fragment.
        """
        self._sync_every = sync_every
        self._members: list[list[int]] = [[] for _ in range(count)]
        self._elements = [0] * count
        self._of_layer: dict[str, int] = {}
        self._added = 0

    def __len__(self) -> int:
        return len(self._members)

    def add(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Takes parameters in, in order of the forward pass; those of one layer stay together."""
        sizes: dict[str, int] = {}
        for name, parameter in named:
            sizes[_layer(name)] = sizes.get(_layer(name), 0) + parameter.numel()
        for layer, elements in sizes.items():
            fragment = self._of_layer.get(layer)
            if fragment is None:
                fragment = self._of_layer[layer] = self._elements.index(min(self._elements))
            self._elements[fragment] += elements
        for name, _ in named:
            self._members[self._of_layer[_layer(name)]].append(self._added)
            self._added += 1

    def members(self, fragment: int) -> Sequence[int]:
        """Returns the indices of a fragment's parameters."""
        return self._members[fragment]

    def due(self, step: int) -> list[int]:
        """Returns the fragments that are sent after a step, counted from 1: each once in sync_every steps, at even
        distances, the last one after step sync_every.
        """
        return [f for f in range(len(self)) if step % self._sync_every == self._offset(f)]

    def _offset(self, fragment: int) -> int:
        return (fragment + 1) * self._sync_every // len(self) % self._sync_every


def require_layers(named: Sequence[tuple[str, torch.Tensor]], fragments: int) -> None:
    """Raises ValueError for fewer layers to train than fragments. A layer is what shares a name up to its last dot."""
    layers = {_layer(name) for name, p in named if p.requires_grad and p.numel() > 0}
    if len(layers) < fragments:
        raise ValueError(
            f"gradwire.torch: fragments={fragments}, but the model has {len(layers)} layers to put there, by the names "
            "in named_parameters; expected at most as many"
        )


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or name
