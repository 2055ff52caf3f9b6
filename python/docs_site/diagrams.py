"""Draws the documentation's diagrams into python/docs/assets.

    python python/docs_site/diagrams.py

They are committed, since README.md shows them too; a test holds them against what this draws.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from gradwire.report.paired_statistics import t_quantile

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python")]

from docs_site.drawing import Drawing, Tone  # noqa: E402

ASSETS = ROOT / "python" / "docs" / "assets"


def architecture() -> str:
    """The layers, and which one uses which."""
    draw = Drawing(
        720, 430, "Layers: training script, front ends, key-value store, and three libraries below it"
    )
    draw.text(0, 16, "Your training script", "soft", "start")
    for at, name in enumerate(("PyTorch", "NumPy", "MXNet 1.9")):
        draw.box(at * 246, 26, 228, 34, [name])
    for x in (114, 360, 606):
        draw.arrow((x, 60), (x, 96))
    draw.text(126, 82, "front ends, in Python", "soft", "start")
    fronts = [
        (0, 228, ["gradwire.torch", "optimizer · DDP · FSDP2", "local steps"]),
        (246, 228, ["gradwire.kv", "push · pull · pushpull", "tables of rows"]),
        (492, 228, ["horovod · byteps · mxnet", "interfaces of", "other libraries"]),
    ]
    for x, width, lines in fronts:
        draw.box(x, 96, width, 66, lines, "one")
    draw.arrow((114, 162), (114, 196))
    draw.arrow((360, 162), (360, 196))
    draw.arrow((606, 162), (606, 196))
    draw.box(0, 196, 720, 74, tone="two")
    draw.text(360, 220, "kvstore (C++)", "strong")
    draw.text(360, 240, "rounds of keys · servers that sum · placements · residuals · checkpoints", "soft")
    draw.text(360, 257, "an engine thread owns all state; codec threads work beside it", "soft")
    for x in (114, 360, 606):
        draw.arrow((x, 270), (x, 306))
    libraries = [
        (0, ["compress", "codecs in SIMD and CUDA", "bytes of payloads"]),
        (246, ["fusion", "buckets, partitions", "send queue by priority"]),
        (492, ["transport", "frames over ZeroMQ, MPI,", "NCCL, or in process"]),
    ]
    for x, lines in libraries:
        draw.box(x, 306, 228, 66, lines, "three")
    draw.arrow((606, 372), (606, 404))
    draw.text(606, 420, "network", "soft")
    draw.text(0, 394, "these three do not know each other", "soft", "start")
    return draw.svg()


def life_of_a_gradient() -> str:
    """The way of one gradient from autograd's hook to the end of backward()."""
    draw = Drawing(
        720, 400, "One gradient: a worker encodes and sends it, a server sums, the worker decodes the mean"
    )
    draw.frame(0, 0, 720, 158, "worker, while backward() still runs")
    steps = [
        ("autograd", "marks the slot", "plain"),
        ("bucket", "small tensors join", "plain"),
        ("encode", "+ residual", "one"),
        ("send queue", "front layers first", "plain"),
    ]
    for at, (name, detail, tone) in enumerate(steps):
        x = 16 + at * 178
        draw.box(x, 40, 154, 54, [name, detail], "one" if tone == "one" else "plain")
        if at:
            draw.arrow((x - 24, 67), (x, 67))
    draw.box(372, 112, 154, 34, ["residual"], "one")
    draw.arrow((430, 112), (430, 94), tone="one")
    draw.arrow((468, 94), (468, 112), tone="one")
    draw.text(540, 133, "what was not sent yet", "soft", "start")
    draw.arrow((690, 94), (690, 200))
    draw.text(682, 168, "payload", "soft", "end")
    draw.frame(180, 172, 540, 94, "server, one for each share of the keys")
    draw.box(566, 200, 142, 54, ["collect", "all workers' payloads"])
    draw.arrow((566, 227), (546, 227))
    draw.box(388, 200, 158, 54, ["decode and sum", "in rank order"], "two")
    draw.arrow((388, 227), (368, 227))
    draw.box(196, 200, 172, 54, ["encode the reply", "once for all workers"], "two")
    draw.arrow((230, 254), (230, 318))
    draw.text(240, 290, "reply", "soft", "start")
    draw.frame(130, 284, 590, 106)
    draw.text(710, 304, "worker", "soft", "end")
    ends = [
        ("decode", "into p.grad", "one"),
        ("mean", "divided by the workers", "plain"),
        ("end of backward()", "waits for its tickets", "plain"),
    ]
    for at, (name, detail, tone) in enumerate(ends):
        x = 150 + at * 186
        draw.box(x, 318, 162, 54, [name, detail], "one" if tone == "one" else "plain")
        if at:
            draw.arrow((x - 24, 345), (x, 345))
    return draw.svg()


def placements() -> str:
    """Who hosts the server that sums."""
    draw = Drawing(
        720, 420, "Four placements of the server: processes of its own, workers, one leader a host, a library"
    )
    _panel(draw, 0, 0, "dist_sync, p3, dist_async", "servers of their own; keys are spread over them")
    for at in range(3):
        draw.box(18 + at * 106, 52, 92, 34, [f"worker {at}"], "one")
        for server in range(2):
            draw.arrow((64 + at * 106, 86), (112 + server * 116, 132), both=True)
    for server in range(2):
        draw.box(64 + server * 116, 132, 96, 34, [f"server {server}"], "two")

    _panel(draw, 370, 0, "allreduce", "every worker hosts a server for its share")
    for at in range(3):
        draw.box(388 + at * 106, 52, 92, 76, tone="one")
        draw.text(434 + at * 106, 74, f"worker {at}", "strong")
        draw.box(396 + at * 106, 86, 76, 32, [f"server {at}"], "two")
    draw.arrow((480, 102), (502, 102), both=True)
    draw.arrow((586, 102), (608, 102), both=True)
    draw.arrow((434, 128), (434, 152), (646, 152), (646, 128), both=True)

    _panel(draw, 0, 214, "GRADWIRE_HIERARCHY=host", "workers of a host sum first, one of them sends")
    for host in range(2):
        left = 14 + host * 166
        draw.frame(left, 262, 156, 112, f"host {host}")
        draw.box(left + 10, 288, 62, 32, ["worker"], "one")
        draw.box(left + 84, 288, 62, 32, ["worker"], "one")
        draw.box(left + 36, 336, 84, 30, ["leader"], "two")
        draw.arrow((left + 41, 320), (left + 62, 336), both=True)
        draw.arrow((left + 115, 320), (left + 94, 336), both=True)
    draw.arrow((134, 351), (216, 351), tone="two", both=True)

    _panel(draw, 370, 214, "allreduce_mpi, nccl", "no server: a library sums, in an agreed order")
    for at in range(3):
        draw.box(388 + at * 106, 266, 92, 34, [f"worker {at}"], "one")
        draw.arrow((434 + at * 106, 300), (434 + at * 106, 330), both=True)
    draw.box(388, 330, 304, 38, ["MPI or NCCL"], "three")
    return draw.svg()


def _panel(draw: Drawing, x: float, y: float, title: str, text: str) -> None:
    draw.frame(x, y, 350, 204)
    draw.text(x + 14, y + 24, title, "title", "start")
    draw.text(x + 14, y + 195, text, "soft", "start")


# The codecs of the chart, and where their names stand beside their points.
_LABELS: dict[str, tuple[float, float, str]] = {
    "none": (0, -12, "middle"),
    "fp16": (0, -12, "middle"),
    "int8": (0, -12, "middle"),
    "natural": (0, 24, "middle"),
    "int4": (4, -16, "middle"),
    "nf4": (11, -6, "start"),
    "nf2": (-10, 0, "end"),
    "2bit": (-10, 5, "end"),
    "2bit:reply=2bit": (10, 5, "start"),
    "terngrad": (10, 5, "start"),
    "topk:ratio=0.1": (-4, 22, "start"),
    "1bit": (12, 5, "start"),
    "topk": (12, 5, "start"),
    "powersgd:rank=4": (12, 5, "start"),
}


def trade() -> str:
    """Accuracy against bytes, from experiments/codec_accuracy."""
    folder = ROOT / "experiments" / "codec_accuracy"
    scores, sent = _scores(folder / "simulated.csv", "lenet"), _bytes(folder / "results.csv", "lenet")
    draw = Drawing(720, 400, "Accuracy lost against bits sent for each gradient element, by codec")
    left, right, top, bottom = 62.0, 700.0, 46.0, 330.0

    def across(bits: float) -> float:
        return left + (right - left) * (math.log2(bits) - math.log2(0.8)) / (math.log2(90) - math.log2(0.8))

    def down(points: float) -> float:
        return top + (bottom - top) * (0.6 - points) / 6.4

    draw.text(left, 18, "Accuracy against float32, points", "strong", "start")
    for points in range(0, -6, -1):
        y = down(points)
        draw.line((left, y), (right, y), width=1.2 if points == 0 else 0.4)
        label = f"{points:+d}".replace("-", "\u2212") if points else "0"
        draw.text(left - 10, y + 4.5, label, "soft", "end")
    for bits in (1, 2, 4, 8, 16, 32, 64):
        draw.line((across(bits), bottom), (across(bits), bottom + 5), width=1)
        draw.text(across(bits), bottom + 21, str(bits), "soft")
    draw.text((left + right) / 2, bottom + 42, "bits sent and received for each element, logarithmic", "soft")
    draw.text(
        left,
        bottom + 64,
        "LeNet on Fashion-MNIST, 4 workers, 5 or 10 paired seeds, 95 % intervals.",
        "soft",
        "start",
    )
    for arm, (dx, dy, anchor) in _LABELS.items():
        pairs = [100 * (score - scores["none"][seed]) for seed, score in scores[arm].items()]
        mean = statistics.fmean(pairs)
        reach = t_quantile(len(pairs) - 1, 0.95) * statistics.stdev(pairs) / math.sqrt(len(pairs))
        x, y = across(64 * sent[arm] / sent["none"]), down(mean)
        tone: Tone = "one" if mean + reach >= 0 else "two"
        if reach:
            draw.line((x, down(mean - reach)), (x, down(mean + reach)), tone=tone, width=2)
        draw.dot(x, y, tone)
        draw.text(x + dx, y + dy, arm, "soft", anchor)  # type: ignore[arg-type]
    draw.dot(right - 130, bottom - 84, "one")
    draw.text(right - 118, bottom - 80, "no loss seen", "soft", "start")
    draw.dot(right - 130, bottom - 64, "two")
    draw.text(right - 118, bottom - 60, "below float32", "soft", "start")
    return draw.svg()


def _scores(path: Path, task: str) -> dict[str, dict[str, float]]:
    """Scores by arm and seed."""
    found: dict[str, dict[str, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["task"] == task:
                found.setdefault(row["arm"], {})[row["seed"]] = float(row["score"])
    return found


def _bytes(path: Path, task: str) -> dict[str, float]:
    """Bytes of a worker's median step, by arm."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["arm"]: float(row["bytes_per_step"]) for row in csv.DictReader(file) if row["task"] == task
        }


DIAGRAMS: dict[str, Callable[[], str]] = {
    "architecture": architecture,
    "life_of_a_gradient": life_of_a_gradient,
    "placements": placements,
    "trade": trade,
}


def main() -> None:
    for name, draw in DIAGRAMS.items():
        (ASSETS / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
