"""What the simulator expects with the compute of today's devices: prints the table in README.md.

    python experiments/replay/today.py

VGG16 and ResNet-50 compute ten times as fast as in their profiles, which are of 2017. GPT-2 computes as it was measured
on an H100. Nothing is measured here, and the same tree prints the same table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradwire.plan import calibration, layer_profile, planner
from gradwire.plan.simulation import Placement, Schedule
from gradwire.settings.units import format_duration, format_rate

WORKERS = 8
THREADS = 4  # of each worker's codec and of each server: a host with 8 cores beside its GPU
FASTER = {"vgg16": 10.0, "resnet50": 10.0, "gpt2_124m": 1.0}
RATES = (10e9, 25e9)
CODECS = ("none", "fp16", "int8", "nf4:reply=nf4", "2bit:reply=2bit")
PLACEMENTS: tuple[Placement, ...] = ("peers", "servers")


@dataclass(frozen=True)
class Cell:
    """efficiency and bound: shares of one node's speed, for each of PLACEMENTS."""

    model: str
    step_seconds: float
    rate: float
    codec: str
    efficiency: tuple[float, ...]
    bound: tuple[float, ...]

    def line(self) -> str:
        shares = [f"{100 * a:.1f} of {100 * b:.1f}" for a, b in zip(self.efficiency, self.bound, strict=True)]
        name = f"{self.model}, {format_duration(self.step_seconds)}"
        return f"| {name} | {format_rate(self.rate)} | {self.codec} | {' | '.join(shares)} |"


def cells() -> Iterator[Cell]:
    costs = calibration.load()
    for model, faster in FASTER.items():
        profile = layer_profile.find(model).scaled(1 / faster)
        for rate in RATES:
            for codec in CODECS:
                rows = [
                    planner.answer(
                        planner.Question(
                            profile,
                            WORKERS,
                            rate,
                            50e-6,
                            servers=None if placement == "peers" else WORKERS,
                            codecs=(codec,),
                            placements=(placement,),
                            schedule=Schedule(codec_threads=THREADS, server_threads=THREADS),
                        ),
                        costs,
                    ).best
                    for placement in PLACEMENTS
                ]
                yield Cell(
                    model,
                    profile.compute_seconds,
                    rate,
                    codec,
                    tuple(row.efficiency for row in rows),
                    tuple(row.bound for row in rows),
                )


def table() -> list[str]:
    """Returns the table's lines in Markdown."""
    names = [f"{WORKERS} {placement}" for placement in PLACEMENTS]
    head = ["model, compute a step", "link", "codec", *names]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(cell.line() for cell in cells())]


if __name__ == "__main__":
    print("\n".join(table()))
