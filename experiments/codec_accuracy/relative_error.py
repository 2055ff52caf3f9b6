"""How wrong is the mean that workers get, layer by layer, over training?

For a tensor and a step, with x_i what worker i had to give (its gradient, or its momentum where it sends that):

    relative error    || received - mean of x_i || / || mean of x_i ||
    owed so far       the same of the sums over all steps up to this one

The first is what a step gets wrong; error feedback does not lower it, and may raise it above 1, since what was held
back arrives later on top. The second falls with the number of steps where what was held back does arrive.

Source: the square root of one draw of the vNMSE (vector's normalised mean squared error) of Vargaftik et al. 2021,
"DRIVE: One-bit distributed mean estimation", asked of the aggregated mean and of real gradients, as by DynamiQ (arXiv
2602.08923, 2026); Karimireddy et al. 2019, "Error feedback fixes SignSGD", for why the sum over steps is what counts.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from arms import BASE, every_arm
from gradwire.report.chart import COLOURS
from multiples import Line, Panel, Scale, draw
from numpy.typing import NDArray

FIELDS = ("arm", "layer", "limit", "num_epochs", "step", "relative_error", "owed_so_far")
_LOWEST = 1e-5  # in the plot


@dataclass(frozen=True)
class Length:
    """How long was trained: only arms of one length can be compared."""

    limit: int
    num_epochs: int

    def __str__(self) -> str:
        return f"--limit {self.limit} --num-epochs {self.num_epochs}"


@dataclass
class Point:
    """One layer, averaged over the steps from the last point to this one."""

    arm: str
    layer: str
    length: Length
    step: int
    relative_error: float
    owed_so_far: float


@dataclass
class LayerError:
    """Follows one tensor."""

    given: NDArray[np.float64]  # sums over the steps
    received: NDArray[np.float64]
    errors: list[tuple[float, float]] = field(default_factory=list)  # since the last point

    @classmethod
    def of(cls, elements: int) -> LayerError:
        return cls(np.zeros(elements), np.zeros(elements))

    def add(self, vectors: Sequence[NDArray[np.float32]], received: NDArray[np.float32]) -> None:
        exact = np.mean(vectors, axis=0, dtype=np.float64)
        self.given += exact
        self.received += received
        self.errors.append((ratio(received - exact, exact), ratio(self.received - self.given, self.given)))

    def take(self) -> tuple[float, float]:
        """Returns the means since the last call."""
        means = tuple(statistics.fmean(column) for column in zip(*self.errors, strict=True))
        self.errors.clear()
        return means[0], means[1]


def ratio(difference: NDArray[np.float64], whole: NDArray[np.float64]) -> float:
    """Returns the ratio of the lengths; 0 of 0 is 0, and anything else of 0 infinite."""
    length = float(np.linalg.norm(whole))
    error = float(np.linalg.norm(difference))
    if length == 0:
        return 0.0 if error == 0 else float("inf")
    return error / length


class Recorder:
    """Observes a training run; keeps a point per layer every so many steps."""

    def __init__(self, arm: str, length: Length, layers: dict[int, tuple[str, int]], every: int) -> None:
        """layers: name and elements, by number of the tensor; others are passed over."""
        self.points: list[Point] = []
        self._arm = arm
        self._length = length
        self._every = every
        self._layers = {index: (name, LayerError.of(elements)) for index, (name, elements) in layers.items()}

    def __call__(
        self, step: int, index: int, given: Sequence[NDArray[np.float32]], received: NDArray[np.float32]
    ) -> None:
        if index not in self._layers:
            return
        name, error = self._layers[index]
        error.add(given, received)
        if (step + 1) % self._every == 0:
            self.points.append(Point(self._arm, name, self._length, step + 1, *error.take()))


def read(file: Path) -> list[Point]:
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        return [
            Point(
                row["arm"],
                row["layer"],
                Length(int(row["limit"]), int(row["num_epochs"])),
                int(row["step"]),
                float(row["relative_error"]),
                float(row["owed_so_far"]),
            )
            for row in csv.DictReader(lines)
        ]


def write(file: Path, points: Sequence[Point]) -> None:
    """Replaces what file had of the same arms. Requires points of the length that check_length() took."""
    arms = {point.arm for point in points}
    kept = [point for point in read(file) if point.arm not in arms]
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(FIELDS)
        for p in [*kept, *points]:
            numbers = (f"{p.relative_error:.4g}", f"{p.owed_so_far:.4g}")
            writer.writerow([p.arm, p.layer, p.length.limit, p.length.num_epochs, p.step, *numbers])


def check_length(file: Path, length: Length, arms: Sequence[str]) -> None:
    """Finds, before hours of training, that file would hold arms that cannot be compared.

    Raises:
        ValueError: file has other arms, of another length.
    """
    others = {point.length for point in read(file) if point.arm not in arms} - {length}
    if others:
        found = ", ".join(str(other) for other in sorted(others, key=str))
        raise ValueError(
            f"codec_accuracy: {file.name} has arms trained with {found}, and {length} was given; give the former, "
            "measure every arm, or name another --folder"
        )


def _arms_of(points: Sequence[Point]) -> list[str]:
    """Returns the arms in the order of the table; `none` is left out: it is float32 itself."""
    present = {point.arm for point in points} - {BASE}
    known = [arm for arm in every_arm() if arm in present]
    return [*known, *sorted(present.difference(known))]


def _layers_of(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(point.layer for point in points))


def markdown(points: Sequence[Point]) -> str:
    """Returns the table: medians over the second half of the steps, per layer, and what is owed at the end."""
    layers = _layers_of(points)
    last = max(point.step for point in points)
    conditions = (
        f"LeNet, 4 simulated workers, {last} steps (`{points[0].length}`); medians over the second half of them, and "
        "the last step."
    )
    titles = ["codec", *layers, *(f"owed at the end, {layer}" for layer in layers)]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for arm in _arms_of(points):
        cells = [f"`{arm}`"]
        for layer in layers:
            late = [p for p in points if (p.arm, p.layer) == (arm, layer) and p.step > last / 2]
            cells.append(f"{statistics.median(p.relative_error for p in late):.2g}")
        for layer in layers:
            (end,) = (p for p in points if (p.arm, p.layer, p.step) == (arm, layer, last))
            cells.append(f"{end.owed_so_far:.2g}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", conditions])


def figure(points: Sequence[Point]) -> str:
    """Returns an SVG: a panel per arm, a line per layer, all on the same axes."""
    layers = _layers_of(points)
    panels = []
    for arm in _arms_of(points):
        lines = []
        for index, layer in enumerate(layers):
            own = [p for p in points if (p.arm, p.layer) == (arm, layer)]
            heights = tuple(max(p.relative_error, _LOWEST) for p in own)
            lines.append(Line(layer, tuple(float(p.step) for p in own), heights, COLOURS[index]))
        panels.append(Panel(arm, tuple(lines)))
    highest = max(2.0, *(max(line.y) for panel in panels for line in panel.lines))
    lowest = min(min(line.y) for panel in panels for line in panel.lines)
    last = max(point.step for point in points)
    return draw(
        "Relative error of the mean that workers get, per layer",
        panels,
        Scale("step", 0, last, lambda value: f"{value:.0f}"),
        Scale("relative error", lowest / 1.5, highest * 1.5, lambda value: f"{value:g}", logarithmic=True),
    )
