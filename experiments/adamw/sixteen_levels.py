"""Which sixteen levels and which scale nf4 should have, on the gradients of real trainings.

    python experiments/adamw/sixteen_levels.py    # half a minute; prints nf4's levels, fills in README.md

Each rule rounds blocks of 128 elements twice, as workers and the reply do, without residuals. The figure is vNMSE, as
in mean_error.py: the squared error of a mean over the mean's own square.

nf4's levels leave least of x/m by squares, m being the largest |x| of a block: Lloyd's iteration with 0 as a fixed
level (Blumenberg et al. 2025, "BOF4", 2505.06653). Gaussian numbers and two trainings weigh alike.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent))

import page
import tasks
from adamw_simulation import WORKERS, train
from gradwire import compress
from recipes import Recipe

Values = NDArray[np.float64]
Rule = Callable[[Values], Values]
BLOCK = 128
FITTED, HELD_OUT = ("char_lm_tiny", "vit"), ("char_lm_micro",)
_STEPS = range(42, 100, 6)
# Max 1960, table I, sixteen levels: the positive ones, in deviations.
MAX = np.array([0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733])
# Dettmers et al. 2023, "QLoRA", appendix E.
QLORA = np.array(
    (
        *(-1, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.09105, 0),
        *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.562617, 0.7229568, 1),
    )
)


def gradients(name: str) -> list[Values]:
    """Returns the workers' gradients (workers, elements) of every compressed tensor in some steps of a training."""
    found: list[Values] = []
    if name == "Gaussian":
        return [np.random.default_rng(seed).normal(size=(WORKERS, 50_000)) for seed in range(2)]
    train(
        Recipe.parse("none"),
        0,
        tasks.load(name),
        steps=_STEPS.stop,
        observe=lambda step, index, rows, mean: found.append(rows.astype(float)) if step in _STEPS else None,
    )
    return found


def blocks_of(values: Values) -> Values:
    return np.pad(values, (0, -values.size % BLOCK)).reshape(-1, BLOCK)


def largest(blocks: Values) -> Values:
    return np.maximum(np.abs(blocks).max(1, keepdims=True), 1e-30)


def nearest(scaled: Values, levels: Values) -> Values:
    chosen: Values = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, scaled, side="right")]
    return chosen


def by_largest(levels: Values, *, signed: bool = False) -> Rule:
    """The largest |x| of a block becomes 1; signed: x itself."""

    def rounded(values: Values) -> Values:
        blocks = blocks_of(values)
        scale = largest(blocks)
        if signed:
            scale = scale * np.where(blocks.max(1, keepdims=True) >= scale, 1, -1)
        return (nearest(blocks / scale, levels) * scale).ravel()[: values.size]

    return rounded


def fitted(steps: int, start: Callable[[Values], Values]) -> Rule:
    """Max's levels. The scale is the start's, then that of least squares for the levels that were chosen."""

    def rounded(values: Values) -> Values:
        blocks = blocks_of(values)
        scale = start(blocks)
        levels = np.append(-MAX[::-1], MAX)
        for _ in range(steps):
            chosen = nearest(blocks / scale, levels)
            scale = np.maximum((chosen * blocks).sum(1, keepdims=True), 1e-30) / (chosen**2).sum(
                1, keepdims=True
            )
        return (nearest(blocks / scale, levels) * scale).ravel()[: values.size]

    return rounded


def of_codec(spec: str) -> Rule:
    def rounded(values: Values) -> Values:
        codec = compress.make(spec)
        given = values.astype(np.float32)
        return codec.decode(codec.encode(given), given.size).astype(float)

    return rounded


def lloyd(sources: Sequence[Sequence[Values]], *, signed: bool = False) -> Values:
    """Returns the levels that leave least of the blocks of all sources, which weigh alike. 0 stays a level."""
    scaled, weights = [], []
    for source in sources:
        vectors = [row for rows in source for row in (*rows, rows.mean(0))]
        for vector in vectors:
            blocks = blocks_of(vector)
            scale = largest(blocks)
            sign = np.where(signed & (blocks.max(1, keepdims=True) < scale), -1, 1)
            scaled.append((blocks / scale * sign).ravel())
            weight = scale**2 / max((vector**2).sum(), 1e-30) / len(vectors)
            weights.append(np.broadcast_to(weight, blocks.shape).ravel())
    order = np.argsort(values := np.concatenate(scaled))
    values, weight = values[order], np.concatenate(weights)[order]
    of_weights = np.append(0, np.cumsum(weight))
    of_values = np.append(0, np.cumsum(weight * values))
    levels = QLORA.copy()
    for _ in range(3000):
        bounds = np.searchsorted(values, [-2, *(levels[1:] + levels[:-1]) / 2, 2])
        levels = np.diff(of_values[bounds]) / np.maximum(np.diff(of_weights[bounds]), 1e-30)
        levels[7] = 0
    return levels


def vnmse(rule: Rule, source: Sequence[Values]) -> float:
    off = exact = 0.0
    for rows in source:
        mean = rows.mean(0)
        off += float(((rule(np.mean([rule(row) for row in rows], 0)) - mean) ** 2).sum())
        exact += float((mean**2).sum())
    return off / exact


def main() -> None:
    sources = {name: gradients(name) for name in (*FITTED, "Gaussian", *HELD_OUT)}
    fitted_to = [sources[name] for name in (*FITTED, "Gaussian")]
    print("nf4, in 127ths:", " ".join(f"{127 * level:.1f}" for level in lloyd(fitted_to)))

    def by_root(blocks: Values) -> Values:
        return np.sqrt((blocks**2).mean(1, keepdims=True)) + 1e-30

    rules = {
        "`int4`: fifteen equal steps, by the largest": of_codec("int4"),
        "Max's levels, by the root mean square": fitted(0, by_root),
        "the same, then least squares": fitted(1, by_root),
        "the same, twice": fitted(2, by_root),
        "Max's levels, the largest 0.9 of its own, then least squares": fitted(
            1, lambda blocks: largest(blocks) / MAX[-1] * 0.9
        ),
        "NormalFloat's levels (QLoRA), by the largest": by_largest(QLORA),
        "`nf4`: levels of Lloyd's iteration, by the largest": of_codec("nf4"),
        "the same, by the largest with its sign": by_largest(lloyd(fitted_to, signed=True), signed=True),
    }
    lines = [f"| levels, scale | {' | '.join(sources)} |", "|---" * (len(sources) + 1) + "|"]
    for name, rule in rules.items():
        figures = [f"{vnmse(rule, source):.4f}" for source in sources.values()]
        lines.append(f"| {name} | {' | '.join(figures)} |")
        print(lines[-1])
    page.readme.fill("sixteen levels", "\n".join(lines), page.README)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
