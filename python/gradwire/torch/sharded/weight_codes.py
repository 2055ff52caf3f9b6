"""Codes of weights, on the device where they lie: those of the codecs int8 and int4 (compress/FORMAT.md).

Each rank's own part is rounded to the nearest code, with a scale for each block of a matrix. Nothing is kept for the
next time: weights are sent whole. A NaN or an infinity makes all of its block NaN, so that a model that has diverged is
seen to have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_LARGEST_CODE = {8: 127.0, 4: 7.0}
_LARGEST_PRODUCT = float.fromhex("0x1.fffffcp127")


@dataclass(frozen=True)
class WeightCodes:
    """How matrices travel.

    Attributes:
        bits: 8 or 4, of a code.
        block: elements that share a scale; even.
    """

    bits: int
    block: int

    def blocks(self, elements: int) -> int:
        return -(-elements // self.block)

    def payload_bytes(self, sizes: Sequence[int]) -> int:
        """Of matrices of so many elements: their scales, and then their codes."""
        blocks = sum(self.blocks(size) for size in sizes)
        return blocks * (4 + self.block * self.bits // 8)

    def encode(self, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns uint8 (payload_bytes,).

        Args:
            matrices: each (elements,), of any floating dtype.
        """
        padded = [part for each in matrices for part in (each, each.new_zeros(-each.numel() % self.block))]
        values = torch.cat(padded).to(torch.float32).view(-1, self.block)
        most = values.abs().amax(dim=1)
        largest = _LARGEST_CODE[self.bits]
        scales = most / largest
        scales = torch.where(scales < torch.finfo(torch.float32).tiny, 0.0, scales)
        scales = torch.where(most.isfinite(), scales.clamp(max=_LARGEST_PRODUCT / largest), math.nan)
        inverse = torch.where(scales > 0, 1.0 / scales, 0.0)
        codes = (values * inverse.unsqueeze(1)).round_().to(torch.int8).view(torch.uint8).view(-1)
        if self.bits == 4:
            codes = (codes[0::2] & 15) | (codes[1::2] << 4)
        return torch.cat([scales.view(torch.uint8), codes])

    def decode(self, payloads: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Returns what payloads of several ranks stand for: for each matrix (ranks, elements), float32.

        Args:
            payloads: uint8 (ranks, payload_bytes).
            sizes: elements of each matrix, of one rank.
        """
        counts = [self.blocks(size) for size in sizes]
        ranks, blocks = len(payloads), sum(counts)
        scales = payloads[:, : 4 * blocks].contiguous().view(torch.float32)
        codes = payloads[:, 4 * blocks :]
        if self.bits == 4:
            both = torch.stack([codes << 4, codes], dim=2).view(torch.int8) >> 4  # with the sign
            numbers = both.view(ranks, blocks, self.block)
        else:
            numbers = codes.view(torch.int8).reshape(ranks, blocks, self.block)
        values = numbers * scales.unsqueeze(2)
        parts = values.split(counts, dim=1)  # type: ignore[no-untyped-call]
        return [part.reshape(ranks, -1)[:, :size] for part, size in zip(parts, sizes, strict=True)]
