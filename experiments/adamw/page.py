"""Puts what results.csv says between the marks in README.md, so no figure is typed by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arms import (
    BASE,
    LONG,
    MUON,
    PAIRED,
    RATES,
    RESIDUALS,
    RESIDUALS_TASKS,
    TASKS,
    TUNED,
    TUNED_TASKS,
    WITH_MUON,
    muon_arm,
    residuals_arm,
    tuned_arm,
)
from gradwire.report.paired_statistics import paired_difference

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training import readme

if TYPE_CHECKING:
    from mean_error import Error
    from run import Row

README = Path(__file__).with_name("README.md")
_TITLES = ("arm", "bits, both ways", "loss, nats", "difference to none", "in %", "seeds")


def _paired(rows: Sequence[Row], task: str, arm: str, base: str = BASE) -> tuple[list[float], list[float]]:
    """Returns the losses of an arm and of a base, of the seeds that both have."""
    of, of_base = (
        {row.seed: row.loss for row in rows if (row.task, row.arm) == (task, name)} for name in (arm, base)
    )
    shared = sorted(set(of) & set(of_base))
    return [of[seed] for seed in shared], [of_base[seed] for seed in shared]


def table(rows: Sequence[Row], task: str) -> str:
    """Returns the Markdown table of a task, the smallest loss first; differences are over the seeds that both have.

    With two seeds or more they have Student's 95 % interval.
    """
    others = {tuned_arm(codec, rate) for codec in TUNED for rate in RATES} - set(TUNED)
    others |= {residuals_arm(codec, dtype) for dtype, codecs in RESIDUALS.items() for codec in codecs}
    own = [row for row in rows if row.task == task and "optimizer=" not in row.arm and row.arm not in others]
    lines = []
    for arm in dict.fromkeys(row.arm for row in own):
        losses = [row.loss for row in own if row.arm == arm]
        shared, base = _paired(own, task, arm)
        if not shared:
            continue
        mean = sum(losses) / len(losses)
        difference = sum(loss - of_base for loss, of_base in zip(shared, base, strict=True)) / len(shared)
        text = "" if arm == BASE else f"{difference:+.4f}"
        if arm != BASE and len(shared) > 1:
            interval = paired_difference(shared, base)
            text = f"{interval.mean:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"
        share = difference / (sum(base) / len(shared))
        bits = next(row.bits for row in own if row.arm == arm)
        counted = f"{bits:.2f}" if bits == bits else "by shape"
        percent = "" if arm == BASE else f"{100 * share:+.2f}"
        cells = [f"`{arm}`", counted, f"{mean:.4f}", text, percent, str(len(losses))]
        lines.append((difference, cells))
    return _table(_TITLES, [cells for _, cells in sorted(lines)])


def answer(rows: Sequence[Row]) -> str:
    """Returns a table of the arms that have several seeds: by task, their difference to none in per cent."""
    return _by_task(PAIRED[1:], TASKS, lambda arm, task: _percent(*_paired(rows, task, arm)))


def muon(rows: Sequence[Row]) -> str:
    """Returns the same of the arms with Muon, behind none with Muon."""

    def cell(codec: str, task: str) -> str:
        losses, base = _paired(rows, task, muon_arm(codec, task), muon_arm(BASE, task))
        return _nats(base) if codec == BASE and base else _percent(losses, base)

    return _by_task(WITH_MUON, MUON, cell)


def residuals(rows: Sequence[Row], dtype: str, tasks: Sequence[str] = RESIDUALS_TASKS) -> str:
    """Returns a table of codecs whose residuals are in this dtype, behind the same codec with them in float32."""
    return _by_task(
        RESIDUALS[dtype],
        tasks,
        lambda codec, task: _percent(*_paired(rows, task, residuals_arm(codec, dtype), codec)),
    )


def tuned(rows: Sequence[Row]) -> str:
    """Returns a table of codecs with the best learning rate of each, behind none with the best of its own."""

    def cell(codec: str, task: str) -> str:
        arm, base = (_best(rows, task, name) for name in (codec, BASE))
        if arm is None or base is None:
            return ""
        losses, of_base = _paired(rows, task, arm, base)
        return f"{_nats(losses) if codec == BASE else _percent(losses, of_base)}, {arm.partition('lr=')[2] or '1'}"

    return _by_task(TUNED, TUNED_TASKS, cell)


def _by_task(arms: Iterable[str], columns: Iterable[str], cell: Callable[[str, str], str]) -> str:
    """Returns a table with a line for each arm. cell: what it says of an arm and a task."""
    lines = [[f"`{arm}`", *(cell(arm, task) for task in columns)] for arm in arms]
    return _table(["", *(f"`{task}`" for task in columns)], lines)


def _nats(losses: Sequence[float]) -> str:
    return f"{sum(losses) / len(losses):.4f} nats"


def _best(rows: Sequence[Row], task: str, codec: str) -> str | None:
    """Returns the arm of a codec whose learning rate ends lowest, over the seeds that all of its arms have."""
    losses = {
        arm: {row.seed: row.loss for row in rows if (row.task, row.arm) == (task, arm)}
        for arm in (tuned_arm(codec, rate) for rate in RATES)
    }
    shared = set.intersection(*map(set, losses.values()))
    if len(shared) < 2:
        return None
    return min(losses, key=lambda arm: sum(losses[arm][seed] for seed in shared))


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns a table of Markdown."""
    rows = [f"| {' | '.join(cells)} |" for cells in (head, *lines)]
    return "\n".join([rows[0], f"|{'---|' * len(head)}", *rows[1:]])


def _percent(losses: Sequence[float], base: Sequence[float]) -> str:
    """Returns a paired difference in per cent of the base, with its interval; nothing of fewer than two seeds."""
    if len(losses) < 2:
        return ""
    interval, percent = paired_difference(losses, base), 100 * len(base) / sum(base)
    return f"{percent * interval.mean:+.2f} [{percent * interval.low:+.2f}, {percent * interval.high:+.2f}]"


def curves(rows: Sequence[Row], task: str, arms: Sequence[str]) -> str:
    """Returns a table of training losses, seed 0, the mean of each 40 steps."""
    found = {row.arm: row.curve.split() for row in rows if row.task == task and row.seed == 0}
    shown = [arm for arm in arms if arm in found]
    points = len(found[shown[0]]) if shown else 0
    lines = [[f"`{arm}`", *(f"{float(loss):.3f}" for loss in found[arm])] for arm in shown]
    return _table(["arm", *(str(40 * (point + 1)) for point in range(points))], lines)


def fill(rows: Sequence[Row], file: Path = README) -> None:
    """Replaces what stands between the marks.

    Raises: ValueError: the file lacks a mark.
    """
    sections = {name: table(rows, name) for name in (*TASKS, LONG)}
    sections |= {
        "answer": answer(rows),
        "muon": muon(rows),
        "rounded": residuals(rows, "bfloat16"),
        "unkept": residuals(rows, "none", (*RESIDUALS_TASKS, LONG)),
        "tuned": tuned(rows),
    }
    shown = ("none", "int4", "nf4", "nf2", "2bit", "2bit;warm_up=40;first=int4", "2bit;whiten=rows+columns")
    sections["curves"] = curves(rows, "char_lm_micro", shown)
    for name, text in sections.items():
        readme.fill(name, text, file)


def errors_table(errors: Sequence[Error]) -> str:
    """Returns the Markdown table of how far means are off: a line for each codec, a pair of columns for each task."""
    of_tasks = list(dict.fromkeys(error.task for error in errors))
    head = ["codec", "bits, both ways"]
    for task in of_tasks:
        head += [f"{task}: vNMSE", "of the momentum"]
    lines = []
    for codec in dict.fromkeys(error.codec for error in errors):
        own = {error.task: error for error in errors if error.codec == codec}
        cells = [f"`{codec}`", f"{next(iter(own.values())).bits:.2f}"]
        for task in of_tasks:
            cells += [f"{own[task].vnmse:.3g}", f"{own[task].momentum:.3g}"] if task in own else ["", ""]
        lines.append(cells)
    return _table(head, lines)


def fill_errors(errors: Sequence[Error], file: Path) -> None:
    """Replaces the table of mean_error.csv.

    Raises: ValueError: the file lacks its marks.
    """
    readme.fill("mean_error", errors_table(errors), file)
