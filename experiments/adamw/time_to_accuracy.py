"""Does compression pay with AdamW, once the steps that it costs are counted? Fills in the table in README.md.

    python experiments/adamw/time_to_accuracy.py            # simulates, writes time_to_accuracy.csv, fills in README.md
    python experiments/adamw/time_to_accuracy.py --tables   # README.md only

How much sooner an arm is at the same loss is a product of two figures:

- what a step takes, of the simulator of `gradwire plan`: bf16's step over the arm's;
- which share of its steps bf16 would need for the loss at which the arm ends. That is read off trainings without a
  codec that are shorter, with a learning rate that falls as much sooner (results.csv, arms none;steps=...).
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from arms import BASE, SHORTER
from gradwire.plan import calibration, planner
from gradwire.plan.layer_profile import Profile
from gradwire.plan.simulation import Network, Schedule, Variant
from gradwire.report.paired_statistics import Interval, paired_difference
from gradwire.settings.units import format_duration, format_rate
from replay.profiles import gpt_products, share_out
from training import readme

if TYPE_CHECKING:
    from run import Row

RESULTS = Path(__file__).with_name("time_to_accuracy.csv")
README = Path(__file__).with_name("README.md")
BASELINE = "bf16"
CODECS = ("int8", "nf4", "nf2", "2bit")
TASK = "char_lm_small"
"""Whose share of steps counts: of the language models the largest, on which every codec loses most."""
THREADS = 4  # for codecs and for sums: a host with 8 cores beside its device
FLOPS = 100e12
"""What a device computes with in a second, all told: an A100 or RTX 4090 at a third of its peak in bfloat16."""
TOKENS = 16_384  # of a worker's step
RATES, WORKERS = (1e9, 10e9, 25e9), (8, 64)


@dataclass(frozen=True)
class Model:
    """Shape of a GPT with sequences of `tokens`."""

    name: str
    hidden: int
    blocks: int
    tokens: int
    vocabulary: int

    def profile(self) -> Profile:
        """Returns its layers; a step has three times the multiply-accumulates of forward()."""
        products = gpt_products(self.hidden, self.blocks, self.tokens, self.vocabulary)
        batch = TOKENS // self.tokens
        seconds = 6 * batch * sum(product.macs for product in products) / FLOPS
        return share_out(self.name, "see time_to_accuracy.py", batch, batch / seconds, products)


MODELS = (
    Model("10 M", 256, 8, 512, 16_384),
    Model("124 M", 768, 12, 1024, 50_304),
    Model("1.3 B", 2048, 24, 2048, 50_304),
)


@dataclass(frozen=True)
class Cell:
    """A codec's step in one setting, over the baseline's: above 1, it is shorter."""

    model: str
    compute_seconds: float
    workers: int
    rate: float
    codec: str
    step_seconds: float
    step_ratio: float


def simulate() -> list[Cell]:
    costs = calibration.load()
    schedule = Schedule(codec_threads=THREADS, server_threads=THREADS)
    found = []
    for model in MODELS:
        profile = model.profile()
        for workers in WORKERS:
            for rate in RATES:
                network = Network("peers", workers, 0, rate, 50e-6)
                question = planner.Question(profile, workers, rate, 50e-6, schedule=schedule)
                steps = {
                    codec: planner.predict(
                        question, network, Variant.parse(codec), schedule, costs
                    ).step_seconds
                    for codec in (BASELINE, *CODECS)
                }
                found += [
                    Cell(
                        model.name,
                        round(profile.compute_seconds, 4),
                        workers,
                        rate,
                        codec,
                        round(seconds, 5),
                        round(steps[BASELINE] / seconds, 4),
                    )
                    for codec, seconds in steps.items()
                ]
                print(
                    f"{model.name}, {workers} workers, {format_rate(rate)}: {steps[BASELINE]:.3f} s",
                    flush=True,
                )
    return found


def shares(rows: Sequence[Row], task: str, codec: str) -> Interval:
    """Returns which share of the steps a training without a codec needs for the codec's final loss, by paired seeds.

    1 at most: a codec that ends better is taken to end as well. The least that was tried, where it is less.
    """
    losses = {
        arm: {row.seed: row.loss for row in rows if (row.task, row.arm) == (task, arm)}
        for arm in (BASE, codec, *SHORTER)
    }
    tried = {1.0: 0.0}
    for arm in SHORTER:
        tried[float(arm.partition("=")[2])] = _behind(losses[arm], losses[BASE]).mean
    steps = sorted(tried)
    behind = np.maximum.accumulate(
        [tried[share] for share in reversed(steps)]
    )  # fewer steps are never better

    def share(loss: float) -> float:
        return float(np.interp(loss, behind, list(reversed(steps))))

    found = _behind(losses[codec], losses[BASE])
    assert found.low is not None  # of several seeds
    assert found.high is not None
    return Interval(share(found.mean), share(found.high), share(found.low), found.count)


def _behind(losses: dict[int, float], base: dict[int, float]) -> Interval:
    shared = sorted(losses.keys() & base.keys())
    return paired_difference([losses[seed] for seed in shared], [base[seed] for seed in shared])


def shares_table(rows: Sequence[Row], tasks: Sequence[str]) -> str:
    lines = [f"| | {' | '.join(f'`{task}`' for task in tasks)} |", "|---" * (len(tasks) + 1) + "|"]
    for codec in CODECS:
        cells = [_interval(shares(rows, task, codec), 100, 0) for task in tasks]
        lines.append(f"| `{codec}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def table(cells: Sequence[Cell], rows: Sequence[Row]) -> str:
    """Returns how much sooner each codec is at the same loss; bold: the best, where its whole interval is above 1."""
    share = {codec: shares(rows, TASK, codec) for codec in CODECS}
    head = ["model, compute a step", "workers", "link", *(f"`{codec}`" for codec in CODECS)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    settings = dict.fromkeys((c.model, c.compute_seconds, c.workers, c.rate) for c in cells)
    for model, compute, workers, rate in settings:
        ratios = {
            c.codec: c.step_ratio for c in cells if (c.model, c.workers, c.rate) == (model, workers, rate)
        }
        sooner = {
            codec: Interval(*(ratios[codec] * end for end in (s.mean, s.low or 0.0, s.high or 0.0)), s.count)
            for codec, s in share.items()
        }
        best = max(CODECS, key=lambda codec: sooner[codec].mean)
        texts = [
            f"**{_interval(found, 1, 2)}**"
            if codec == best and (found.low or 0.0) > 1
            else _interval(found, 1, 2)
            for codec, found in sooner.items()
        ]
        lines.append(
            f"| {model}, {format_duration(compute)} | {workers} | {format_rate(rate)} | {' | '.join(texts)} |"
        )
    return "\n".join(lines)


def _interval(found: Interval, scale: float, digits: int) -> str:
    mean, low, high = (
        f"{scale * end:.{digits}f}" for end in (found.mean, found.low or 0.0, found.high or 0.0)
    )
    return mean if low == high else f"{mean} [{low}, {high}]"


def read(file: Path = RESULTS) -> list[Cell]:
    kinds: dict[str, Any] = {"model": str, "codec": str, "workers": int}
    with file.open(newline="", encoding="utf-8") as lines:
        return [
            Cell(**{name: kinds.get(name, float)(value) for name, value in line.items()})
            for line in csv.DictReader(lines)
        ]


def write(cells: Sequence[Cell], file: Path = RESULTS) -> None:
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, [field.name for field in fields(Cell)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(cell) for cell in cells)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tables", action="store_true", help="simulate nothing; fill in the tables of README.md"
    )
    if not parser.parse_args(arguments).tables:
        write(simulate())
    import run
    from arms import TASKS

    rows = run.read()
    readme.fill("step shares", shares_table(rows, TASKS), README)
    readme.fill("time to accuracy", table(read(), rows), README)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
