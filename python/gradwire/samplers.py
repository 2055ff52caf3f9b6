"""Samplers: each rank's share of a data set, in equal or given sizes.

    picks = gradwire.samplers.shard(len(data), kv.rank, kv.num_workers)
    picks = gradwire.samplers.shard(len(data), kv.rank, kv.num_workers, work_load_list=[2, 1, 1])   # rank 0 is faster

Every example belongs to exactly one worker, so workers may have different numbers of batches. A worker that runs out of
batches calls `kv.join()`. gradwire.torch.ShardSampler does the same for a DataLoader.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def shard(examples: int, rank: int, num_workers: int, work_load_list: Sequence[float] | None = None) -> range:
    """Returns a worker's share of the examples, as a range of indices.

    Args:
        examples: number of examples, 0 or more.
        rank: rank of the worker, from 0.
        num_workers: number of workers.
        work_load_list: share of the work of each rank, in any unit (MXNet's word, which has it for devices). Default:
            equal shares.

    Returns: the rank-th of consecutive ranges that cover 0 to examples - 1. Ends are rounded to the nearest, so equal
        shares differ by at most one.

    Raises:
        ValueError: rank is not a rank; or loads that are not one per worker, not finite, negative, or all 0.
    """
    if examples < 0 or num_workers < 1 or not 0 <= rank < num_workers:
        raise ValueError(
            f"shard: examples={examples}, rank={rank}, num_workers={num_workers}: expected examples of 0 or more, and "
            "a rank from 0 to num_workers - 1"
        )
    loads = [1.0] * num_workers if work_load_list is None else [_load(load) for load in work_load_list]
    if (
        len(loads) != num_workers
        or not all(math.isfinite(load) and load >= 0 for load in loads)
        or not any(loads)
    ):
        raise ValueError(
            f"shard: work_load_list={work_load_list!r}: expected {num_workers} numbers of 0 or more, one for each "
            "worker, and not all 0"
        )
    exponent = math.frexp(max(loads))[1]  # taken off exactly, or the sum of large loads would be infinite
    loads = [math.ldexp(load, -exponent) for load in loads]
    before, total = math.fsum(loads[:rank]), math.fsum(loads)
    after = total if rank + 1 == num_workers else math.fsum(loads[: rank + 1])
    return range(_end(examples, before / total), _end(examples, after / total))


def _load(given: float) -> float:
    try:
        return float(given)
    except OverflowError:  # a whole number beyond 1.8e308
        return math.inf


def _end(examples: int, part: float) -> int:
    return math.floor(examples * part + 0.5)
