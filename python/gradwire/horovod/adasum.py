"""Adasum: a sum that keeps what two gradients have in common once.

Source: Maleki et al. 2020, "Scaling distributed training with adaptive summation", section 3.1, equation for g1 and g2;
ranks are combined in pairs, neighbours first, as its algorithm 1 does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradwire.horovod.array_library import ArrayLibrary


def adasum(library: ArrayLibrary, gradients: Sequence[Any]) -> Any:
    """Combines the ranks' gradients, in rank order, computing in float64.

    Args:
        gradients: flat, of one length and one floating type; a power of two of them.

    Returns: of their type.
    """
    level = [library.cast(gradient, "float64") for gradient in gradients]
    while len(level) > 1:
        level = [_pair(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    return library.cast(level[0], library.spec_of(gradients[0]).dtype)


def _pair(a: Any, b: Any) -> Any:
    dot, a_norm, b_norm = a.dot(b), a.dot(a), b.dot(b)
    of_a = 1 - dot / (2 * a_norm) if a_norm > 0 else 1.0
    of_b = 1 - dot / (2 * b_norm) if b_norm > 0 else 1.0
    return of_a * a + of_b * b
