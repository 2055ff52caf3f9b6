"""One of two workers of a store. Worker 1 is killed between two rounds; worker 0 prints its error, and when it came.

gradwire run -n 2 -s 0 python experiments/gpu/killed_rank.py --store nccl --device cuda
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time

import gradwire
import torch

ROUNDS_BEFORE = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", default="nccl")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    given = parser.parse_args()
    store = gradwire.kv.create(given.store)
    gradient = torch.ones(1 << 20, device=given.device)
    out = torch.zeros_like(gradient)
    store.init("w", out)
    killed = float("inf")
    try:
        for number in range(1000):
            if number == ROUNDS_BEFORE:
                killed = time.monotonic()
                if store.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
            store.pushpull("w", gradient, out=out)
            float(out[0])
        error = None
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    print("KILLED", json.dumps({"error": error, "seconds": round(time.monotonic() - killed, 2)}), flush=True)


if __name__ == "__main__":
    main()
