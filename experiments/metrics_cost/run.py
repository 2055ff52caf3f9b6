"""What do metrics cost? CPU time of a sample, and steps with and without a thread that samples 50 times as often."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gradwire import _core, kv, metrics
from gradwire.settings import definitions as settings

DEFAULT_INTERVAL = settings.Settings().metrics_interval  # seconds
SAMPLES = 200
FASTER = 50  # times the default rate, so that what a thread costs shows


class Step:
    """A step of one rank: some computation, and a gradient by int8."""

    def __init__(self, elements: int, side: int) -> None:
        engine = _core.InprocNetwork(1).connect(0, codec_threads=1)
        self.store = kv.KVStore("allreduce", engine, settings.read())
        self.store.set_gradient_compression("int8")
        self.store.init("w", np.zeros(elements, np.float32))
        random = np.random.default_rng(0)
        self._gradient = random.standard_normal(elements, np.float32)
        self._sum = np.zeros(elements, np.float32)
        self._factor = random.standard_normal((side, side), np.float32)

    def __call__(self) -> None:
        self._factor @ self._factor
        self.store.pushpull("w", self._gradient, out=self._sum)


def cpu_of(call: Callable[[], Any], times: int) -> float:
    """Returns CPU seconds of one call, all threads of the process."""
    began = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began) / times


def block(step: Step, steps: int) -> tuple[float, float]:
    """Returns the seconds of a step, by the clock (median) and of CPU (mean)."""
    times = []
    cpu = time.process_time()
    for _ in range(steps):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times), (time.process_time() - cpu) / steps


def quartiles(values: list[float]) -> list[float]:
    return [round(value, 4) for value in statistics.quantiles(values, n=4, method="inclusive")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--side", type=int, default=512, help="of the matrices that a step multiplies")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    step = Step(given.elements, given.side)
    for _ in range(3):
        step()
    with tempfile.TemporaryDirectory() as folder:
        targets = (f"textfile:{folder}", "prometheus:127.0.0.1:9490")
        meter = metrics.start(step.store, *targets, interval=None)
        sample = cpu_of(meter.write, SAMPLES // 10)
        meter.stop()
        stats = cpu_of(lambda: step.store.stats(residuals=False), SAMPLES)
        residuals = cpu_of(step.store.stats, SAMPLES // 10) - stats
        wall, cpu = [], []
        for _ in range(given.pairs):
            off = block(step, given.steps)
            meter = metrics.start(step.store, *targets, interval=DEFAULT_INTERVAL / FASTER)
            on = block(step, given.steps)
            meter.stop()
            wall.append(on[0] / off[0])
            cpu.append(on[1] / off[1])
    step.store.close()
    record = {
        "elements": given.elements,
        "load": os.getloadavg()[0],
        "step_ms": round(1e3 * off[0], 2),
        "step_cpu_ms": round(1e3 * off[1], 2),
        "sample_cpu_ms": round(1e3 * (sample - residuals), 3),
        "stats_cpu_ms": round(1e3 * stats, 3),
        "residuals_cpu_ms": round(1e3 * residuals, 2),
        "cpu_share_by_default": round((sample - residuals) / DEFAULT_INTERVAL + 1 / 400, 5),
        "sampled_faster": FASTER,
        "wall_ratio_quartiles": quartiles(wall),
        "cpu_ratio_quartiles": quartiles(cpu),
    }
    given.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record), file=sys.stderr)


if __name__ == "__main__":
    main()
