"""Which elements 2bit leaves out: how far their scales lie apart, and which of them arrive.

    python experiments/adamw/spread.py --task char_lm_tiny --arm 2bit --steps 120

Prints a line per tensor, of the steps from the 50th on: the 5th and 95th percentile of the elements' root mean
squares, over the tensor's; and the root mean square of what arrived over that of what was given, of the quarter of the
elements that have the smallest gradients and of the quarter that have the largest.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import tasks
from adamw_simulation import Floats, Layout, train
from recipes import Recipe

_FIRST = 50  # step that counts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="char_lm_tiny", help="(default: %(default)s)")
    parser.add_argument("--arm", default="2bit", help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=120, help="(default: %(default)s)")
    given = parser.parse_args(arguments)
    task, recipe = tasks.load(given.task), Recipe.parse(given.arm)
    squares: dict[int, tuple[Floats, Floats]] = {}

    def observe(step: int, index: int, rows: Floats, mean: Floats) -> None:
        exact = rows.mean(0)
        if index not in squares:
            squares[index] = (np.zeros_like(exact), np.zeros_like(exact))
        if step >= min(_FIRST, given.steps // 2):
            for total, values in zip(squares[index], (exact, mean), strict=True):
                total += values * values

    train(recipe, 0, task, steps=given.steps, observe=observe)
    layout = Layout(task.network(), recipe)
    for index, (exact, mean) in squares.items():
        scale = np.sqrt(exact / max(float(exact.mean()), 1e-30))
        low, high = np.percentile(scale, [5, 95])
        quarters = [scale <= np.percentile(scale, 25), scale >= np.percentile(scale, 75)]
        small, large = (np.sqrt(mean[part].sum() / max(float(exact[part].sum()), 1e-30)) for part in quarters)
        print(
            f"{layout.names[index]:28s} scales {low:.2f} to {high:.2f}, arrived of the small {small:.2f}, "
            f"of the large {large:.2f}"
        )


if __name__ == "__main__":
    main()
