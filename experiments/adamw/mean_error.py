"""How far the mean that comes back is from the exact one, for every codec, on the gradients of a real training.

    python experiments/adamw/mean_error.py                  # measures, writes mean_error.csv, fills in README.md
    python experiments/adamw/mean_error.py --task vit

The training sends no codec's mean, so all codecs see the same gradients. Two figures are each a sum of squares over all
compressed tensors and steps from the 40th on, over the same sum of what is exact:

- vNMSE: of the mean, where codecs keep no residual. It is the measure of DynamiQ (2602.08923) and THC.
- of the momentum: of a running mean with Adam's decay of 0.9, where they keep residuals, as in a training.

The third is for ../controller/accuracy_cost.py: the relative error of a step where codecs keep residuals, the median of
these steps, of the tensor that is worst. compression="auto" measures the same in a job.

`dynamiq:bits=5` is no codec of gradwire but an oracle of DynamiQ's algorithm, which keeps no residual (dynamiq.py).
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import page
import tasks
from adamw_simulation import WORKERS, Floats, train
from averagers import Averager, OfCodec
from dynamiq import DynamiQ
from recipes import Recipe

RESULTS = Path(__file__).with_name("mean_error.csv")
CODECS = (
    *(
        "bf16",
        "fp16",
        "int8",
        "fp8",
        "natural",
        "int4",
        "int4:block=32",
        "nf4:block=32",
        "nf4:block=64",
        "nf4",
        "nf4:block=256",
        "qsgd",
        "nf2:block=64",
        "nf2",
        "nf2:block=256",
    ),
    *("2bit", "2bit:reply=2bit", "terngrad", "topk:ratio=0.1", "1bit"),
    *("dynamiq:bits=4.5", "dynamiq:bits=5", "dynamiq:bits=8"),
)
TASKS = ("char_lm_tiny", "vit")
_STEPS, _FIRST = 100, 40
_DECAY = 0.9


@dataclass(frozen=True)
class Error:
    """A line of mean_error.csv."""

    task: str
    codec: str
    bits: float  # of an element and step, sent and received by one worker
    vnmse: float
    momentum: float
    step: float  # of the worst tensor


@dataclass
class _Sums:
    """What one codec has done to one tensor."""

    once: Averager
    kept: Averager
    exact: Floats  # running means
    momentum: Floats
    of_steps: list[float] = field(default_factory=list)
    squares: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("mean", "off", "momentum", "late"), 0.0)
    )

    @classmethod
    def of(cls, codec: str, elements: int, key: int) -> _Sums:
        once, kept = (_averager(codec, elements, key, feedback=feedback) for feedback in (False, True))
        return cls(once, kept, np.zeros(elements, np.float32), np.zeros(elements, np.float32))

    def add(self, rows: Floats, step: int, counts: bool) -> None:
        given = [np.ascontiguousarray(row) for row in rows]
        exact, once, kept = rows.mean(0), self.once.mean(given, step), self.kept.mean(given, step)
        for mean, sent in ((self.exact, exact), (self.momentum, kept)):
            mean *= np.float32(_DECAY)
            mean += np.float32(1 - _DECAY) * sent
        if not counts:
            return
        if (length := np.linalg.norm(exact)) > 0:
            self.of_steps.append(float(np.linalg.norm(kept - exact) / length))
        for name, values in (
            ("mean", exact),
            ("off", once - exact),
            ("momentum", self.exact),
            ("late", self.momentum - self.exact),
        ):
            self.squares[name] += float((values.astype(float) ** 2).sum())


def _averager(codec: str, elements: int, key: int, *, feedback: bool) -> Averager:
    name, _, bits = codec.partition(":bits=")
    if name == "dynamiq":
        return DynamiQ(elements, key, budget=float(bits))
    return OfCodec(codec, elements, key, WORKERS, feedback=feedback)


def measure(
    name: str, codecs: Sequence[str] = CODECS, steps: int = _STEPS, first: int = _FIRST
) -> list[Error]:
    """Trains once with exact means, on one thread."""
    sums: dict[tuple[str, int], _Sums] = {}

    def observe(step: int, index: int, rows: Floats, mean: Floats) -> None:
        for codec in codecs:
            if (codec, index) not in sums:
                sums[codec, index] = _Sums.of(codec, mean.size, index)
            sums[codec, index].add(rows, step, step >= first)

    train(Recipe.parse("none"), 0, tasks.load(name), steps=steps, observe=observe)
    errors = []
    for codec in codecs:
        own = [each for (of, _), each in sums.items() if of == codec]
        total = {key: sum(each.squares[key] for each in own) for key in own[0].squares}
        bits = sum(each.kept.bits for each in own) / sum(each.exact.size for each in own) / steps
        worst = max((statistics.median(each.of_steps) for each in own if each.of_steps), default=0.0)
        ratios = total["off"] / total["mean"], total["late"] / total["momentum"], worst
        errors.append(Error(name, codec, round(bits, 2), *(float(f"{ratio:.3g}") for ratio in ratios)))
    return errors


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", action="append", choices=tasks.NAMES, help=f"(default: {', '.join(TASKS)})")
    given = parser.parse_args(arguments)
    measured = given.task or TASKS
    errors = [error for error in read() if error.task not in measured]
    for name in measured:
        for error in measure(name):
            errors.append(error)
            print(
                f"{name} {error.codec}: {error.bits} bits, vNMSE {error.vnmse:g}, momentum {error.momentum:g}"
            )
    with RESULTS.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, [column.name for column in fields(Error)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(error) for error in errors)
    page.fill_errors(errors, page.README)


def read() -> list[Error]:
    """Returns the lines of mean_error.csv."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as lines:
        return [
            Error(
                row["task"],
                row["codec"],
                *(float(row[name]) for name in ("bits", "vnmse", "momentum", "step")),
            )
            for row in csv.DictReader(lines)
        ]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
