"""Buckets as PyTorch's DistributedDataParallel makes them. Only the standard library.

Source: Li et al., "PyTorch Distributed: experiences on accelerating data parallel training", VLDB 2020, section 3.2.3;
the first is smaller, so that communication begins early.
"""

from __future__ import annotations

from collections.abc import Sequence

DDP_BYTES = (2**20, 25 * 2**20)  # of DistributedDataParallel's buckets: the first, the others


def buckets(sizes: Sequence[int], bounds: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Fills buckets with layers from the last to the first; one is full once it holds its bound or more.

    Args:
        sizes: elements of each layer, in the order of forward().
        bounds: elements of the first bucket, and of all others.

    Returns: each layer's bucket, and each bucket's layers, both numbered in the order in which they leave.
    """
    members: list[list[int]] = [[]]
    filled = 0
    for layer in reversed(range(len(sizes))):
        if filled >= bounds[min(len(members) - 1, 1)]:
            members.append([])
            filled = 0
        members[-1].append(layer)
        filled += sizes[layer]
    bucket_of = [0] * len(sizes)
    for bucket, layers in enumerate(members):
        for layer in layers:
            bucket_of[layer] = bucket
    return bucket_of, members
