"""One worker of a store: the same gradients as tensors of the CPU and of a device, codec by codec, in float32 and
bfloat16, then timed rounds in float32.

    gradwire run -n 2 -s 2 python experiments/gpu/store_rounds.py --store dist_sync --device cuda --codec none

Rank 0 prints a line `STORE {...}` for each codec: whether both kinds of tensors gave the same bits, a digest of all
sums, the bytes that left the device beside the encoded bytes that were pushed, and milliseconds a round by megabytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from typing import Any

import gradwire
import torch

DTYPES = (torch.float32, torch.bfloat16)
SHAPES = {"one": (1,), "several": (130_001,), "matrix": (1100, 1000), "unit": (65_536,)}
STEPS = 5
ROUNDS = 7


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def rounds(store: Any, prefix: str, device: torch.device) -> list[bytes]:
    """Pushes and pulls STEPS rounds of each dtype and shape and returns the bits of every sum."""
    random = torch.Generator().manual_seed(1000 + store.rank)
    received = []
    for dtype in DTYPES:
        names = {f"{prefix}/{dtype}/{name}": shape for name, shape in SHAPES.items()}
        for name, shape in names.items():
            store.init(name, torch.zeros(shape, device=device))
        for _ in range(STEPS):
            for name, shape in names.items():
                gradient = (torch.randn(shape, generator=random) * 0.6).to(device, dtype)
                out = torch.zeros(shape, device=device, dtype=dtype)
                # Where one worker has several devices, each gives a value.
                given = gradient if store.num_workers > 1 else [gradient, gradient / 3, -gradient]
                store.pushpull(name, given, out=out)
                received.append(bits(out))
    return received


def milliseconds(store: Any, key: str, megabytes: float, device: torch.device) -> float:
    """Returns the median time of a round of one tensor."""
    elements = int(megabytes * 2**20 / 4)
    gradient = torch.randn(elements, device=device) * 0.1
    out = torch.zeros(elements, device=device)
    store.init(key, torch.zeros(elements, device=device))
    took = []
    for _ in range(2 + ROUNDS):
        synchronize(device)
        began = time.perf_counter()
        store.pushpull(key, gradient, out=out)
        synchronize(device)
        took.append((time.perf_counter() - began) * 1e3)
    return round(statistics.median(took[2:]), 2)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def examine(store: Any, codec: str, device: torch.device, megabytes: list[float]) -> dict[str, Any]:
    store.set_gradient_compression(codec)
    on_host = rounds(store, f"{codec}/host", torch.device("cpu"))
    crossed, pushed = store.engine.counters()["bytes_from_devices"], store.engine.pushed()
    on_device = rounds(store, f"{codec}/device", device)
    crossed = store.engine.counters()["bytes_from_devices"] - crossed
    raw, encoded = (now - before for now, before in zip(store.engine.pushed(), pushed, strict=True))
    digest = hashlib.sha256(b"".join(on_device)).hexdigest()
    times = {f"{size:g}": milliseconds(store, f"{codec}/{size:g}", size, device) for size in megabytes}
    return {
        "codec": codec,
        "same_bits": on_host == on_device,
        "digest": digest,
        "bytes_from_device": crossed,
        "bytes_encoded": encoded,
        "bytes_raw": raw,
        "ms_a_round": times,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", default="dist_sync")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--codec", action="append", required=True)
    parser.add_argument("--megabytes", type=float, action="append", default=[])
    given = parser.parse_args()
    device = torch.device(given.device)
    store = gradwire.kv.create(given.store)
    for codec in given.codec:
        record = {"store": given.store, "ranks": store.num_workers} | examine(
            store, codec, device, given.megabytes
        )
        if store.rank == 0:
            print("STORE", json.dumps(record), flush=True)
    store.close()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "4")
    main()
