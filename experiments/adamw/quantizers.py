"""Quantizers that gradwire does not have, in NumPy: 3 to 8 levels per element, at the places of Lloyd and Max.

Sources: Max 1960, "Quantizing for minimum distortion", table I (levels and thresholds for a Gaussian); randomized
Hadamard transforms: Suresh et al. 2017, "Distributed mean estimation with limited communication", section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Positive levels and the thresholds between them, for a deviation of 1. An odd count has 0 as well.
_GAUSSIAN = {
    3: ((0.0, 1.224), (0.612,)),
    4: ((0.4528, 1.510), (0.9816,)),
    8: ((0.2451, 0.7560, 1.344, 2.152), (0.5006, 1.050, 1.748)),
}
_SCALE_BITS = 16  # of a block


@dataclass(frozen=True)
class Levels:
    """`count` levels for each element, and a scale for each block.

    Attributes:
        count: 3, 4 or 8.
        block: elements that share a scale, a power of two.
        reply: "own": the sum travels back in the same form, with a residual of the server's; "fp32".
        rotate: 1: each block is multiplied by a Hadamard matrix with random signs first.
    """

    count: int = 4
    block: int = 128
    reply: str = "own"
    rotate: int = 0

    @classmethod
    def parse(cls, spec: str) -> Levels:
        """Reads "levels:count=4,block=128,reply=fp32,rotate=1".

        Raises: ValueError: it is another quantizer, or one that there is not.
        """
        name, _, given = spec.partition(":")
        options = dict(word.split("=", 1) for word in given.split(",") if word)
        reply = options.pop("reply", "own")
        known = {"count", "block", "rotate"}
        if name != "levels" or set(options) - known or reply not in ("own", "fp32"):
            raise ValueError(f"adamw: {spec!r}: expected such as levels:count=4,block=128,reply=own,rotate=0")
        levels = cls(reply=reply, **{key: int(value) for key, value in options.items()})
        if levels.count not in _GAUSSIAN or levels.block < 1 or levels.block & (levels.block - 1):
            raise ValueError(f"adamw: {spec!r}: expected count of 3, 4 or 8 and a power of two as block")
        return levels

    @property
    def bits(self) -> float:
        """Bits of an element that is sent, scales included; three levels take two bits, as in 2bit."""
        return math.ceil(math.log2(self.count)) + _SCALE_BITS / self.block

    def rounded(self, values: Floats, signs: Floats) -> Floats:
        """What a payload of values stands for. signs: +1 or -1 for each element, padded to whole blocks."""
        blocks = np.pad(values, (0, -values.size % self.block)).reshape(-1, self.block)
        if self.rotate:
            blocks = hadamard(blocks * signs.reshape(blocks.shape))
        root = np.sqrt((blocks * blocks).mean(1, keepdims=True)) + np.float32(1e-30)
        levels, thresholds = _GAUSSIAN[self.count]
        chosen = np.float32(levels)[np.searchsorted(np.float32(thresholds), np.abs(blocks) / root)]
        chosen *= np.where(blocks < 0, np.float32(-1), np.float32(1))
        # The scale that leaves least of the block: blocks are not Gaussian.
        scale = (chosen * blocks).sum(1, keepdims=True) / np.maximum(
            (chosen * chosen).sum(1, keepdims=True), 1e-30
        )
        result = chosen * scale.astype(np.float32)
        if self.rotate:
            result = hadamard(result) * signs.reshape(result.shape)
        return np.ascontiguousarray(result.reshape(-1)[: values.size], dtype=np.float32)


def hadamard(blocks: Floats) -> Floats:
    """Multiplies each row by an orthogonal Hadamard matrix, which is its own inverse."""
    rows, size = blocks.shape
    result, half = blocks.copy(), 1
    while half < size:
        pairs = result.reshape(rows, size // (2 * half), 2, half)
        first, second = pairs[:, :, 0].copy(), pairs[:, :, 1].copy()
        pairs[:, :, 0], pairs[:, :, 1] = first + second, first - second
        half *= 2
    return result / np.float32(math.sqrt(size))
