"""Gradients of a device as FSDP2's reduce-scatter encodes and sums them there, beside the same on the CPU.

It prints a line `SHARDS {...}` for each codec, with whether payloads, residuals and sums are alike bit for bit.

python experiments/gpu/shards.py --device cuda --codec int8 --codec 2bit
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch
from gradwire.torch.sharded.shard_codec import HostShards, ShardCodec, shard_codec

RANKS = 4
ROUNDS = 3
SIZES = (1, 4099, 1_000_003)


def rounds(codec: ShardCodec, shards: torch.Tensor) -> list[Any]:
    """Returns all that rounds of one rank bring, as arrays: payloads, residuals and sums."""
    elements = shards.shape[-1]
    residuals = [torch.zeros(elements, device=shards.device) for _ in range(RANKS)]
    scales: list[torch.Tensor | None] = [None] * RANKS
    found: list[Any] = []
    for step, given in enumerate(shards):
        ready, wait = codec.ready(given)
        with codec.at_work():
            wait()
            payloads, met = codec.encode(ready, residuals, scales, first_key=0, rank=0, step=step)
            total, agreed = codec.total(payloads, elements)
        scales = [None if agreed is None else agreed.to(shards.device)] * RANKS
        found += [*payloads, np.array(met), total.cpu().numpy(), *(each.cpu().numpy() for each in residuals)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", required=True)
    parser.add_argument("--codec", action="append", required=True)
    options = parser.parse_args()
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device(options.device)
    for codec in options.codec:
        here, there = HostShards(codec), shard_codec(codec, device)
        alike = True
        for elements in SIZES:
            given = torch.randn(ROUNDS, RANKS, elements, generator=torch.Generator().manual_seed(elements))
            pairs = zip(rounds(here, given), rounds(there, given.to(device)), strict=True)
            alike &= all(one.tobytes() == other.tobytes() for one, other in pairs)
        print(
            "SHARDS",
            json.dumps({"codec": codec, "made_by": type(there).__name__, "alike": alike}),
            flush=True,
        )


if __name__ == "__main__":
    main()
