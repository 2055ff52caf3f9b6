"""Bits an element and speed of the lossless stage over the share of elements that are sent.

run.py [--elements N] [--repeat N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gradwire import _core, compress

DENSITIES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
PIECE = 262_144  # elements: one partition


def codes_of(elements: int, density: float) -> Any:
    """What 2bit makes of independent elements of which that share is sent, signs even."""
    random = np.random.default_rng(1)
    sent = random.random(elements, dtype=np.float32) < density
    return compress.make("2bit").encode(
        np.where(sent, random.integers(0, 2, elements) * 2 - 1, 0).astype(np.float32)
    )


def entropy(p: float) -> float:
    return float(-p * np.log2(p) - (1 - p) * np.log2(1 - p) + p)


def seconds(call: Callable[[], object]) -> float:
    """CPU time: one thread works, and others may use the machine."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def measure(density: float, elements: int, repeat: int) -> dict[str, float]:
    """Encode, decode and memcpy of the floats take turns; medians. Rates are of the float32 that is stood for."""
    payload = codes_of(elements, density)
    pieces = np.array_split(payload, elements // PIECE)
    coded = [compress.lossless_encode(piece, PIECE) for piece in pieces]
    floats, copy = np.ones(elements, np.float32), np.zeros(elements, np.float32)
    taken: dict[str, list[float]] = {"encode": [], "decode": [], "memcpy": []}
    for _ in range(repeat):
        taken["memcpy"].append(seconds(lambda: _core.copy(copy, floats)))
        taken["encode"].append(seconds(lambda: [compress.lossless_encode(p, PIECE) for p in pieces]))
        taken["decode"].append(seconds(lambda: [compress.lossless_decode(c, PIECE) for c in coded]))
    bits = 8 * sum(c.size for c in coded) / elements
    return {
        "density": density,
        "bits_per_element": bits,
        "entropy": entropy(density),
        "ratio_to_entropy": bits / entropy(density),
        **{f"{name}_gb_per_second": 4e-9 * elements / statistics.median(t) for name, t in taken.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=16 * PIECE)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    elements = max(1, given.elements // PIECE) * PIECE
    rows = [measure(density, elements, given.repeat) for density in DENSITIES]
    record = {"elements": elements, "repeat": given.repeat, "load": os.getloadavg()[0], "rows": rows}
    for row in rows:
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")


main()
