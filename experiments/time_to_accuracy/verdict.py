"""What a row says: times to the target against the first arm's, a table, and where gradwire loses."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from arm import PEERS
from gradwire.ab.experiment import Run
from gradwire.ab.summary import first_crossing, seconds_to
from gradwire.report.paired_statistics import Interval, paired_ratio
from gradwire.settings.units import format_bytes

TITLES = (
    "arm",
    "final",
    "difference to {base} [95 %]",
    "bytes a step",
    "seconds a step",
    "target after",
    "times {base}'s",
)


def reached(runs: Sequence[Run], target: float) -> int:
    """Counts the runs that reached the target."""
    return sum(seconds_to(run, target) is not None for run in runs)


def time_ratio(runs: Sequence[Run], base: Sequence[Run], target: float) -> Interval | None:
    """Compares times to the target, seed by seed; None: a run of either did not reach it."""
    times = [seconds_to(run, target) for run in runs]
    of_base = [seconds_to(run, target) for run in base]
    if any(seconds is None for seconds in (*times, *of_base)):
        return None
    return paired_ratio(
        [float(s) for s in times if s is not None], [float(s) for s in of_base if s is not None]
    )


def markdown(record: Mapping[str, Any]) -> str:
    """Returns a row's target, table and verdict."""
    base = record["arms"][0]["arm"]
    scale = 100 if record["metric"] == "accuracy" else 1
    unit = " %" if record["metric"] == "accuracy" else ""
    titles = [title.format(base=base) for title in TITLES]
    lines = [
        f"**{record['row']}.** Target: {record['metric']} {scale * record['target']:.4g}{unit}, "
        f"{record['target_reason']}. {answer(record)}",
        "",
        f"| {' | '.join(titles)} |",
        "|---" * len(titles) + "|",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(cells(arm, record, scale))} |" for arm in record["arms"])])


def median_seconds(arm: Mapping[str, Any], record: Mapping[str, Any]) -> float | None:
    """Returns the seeds' median time to the target, one that never is there being last; None: most never are."""
    metric = record["metric"]
    times = [
        first_crossing(
            run[f"{metric}_per_epoch"], run["seconds_per_epoch"], record["target"], metric == "accuracy"
        )
        for run in arm["per_seed"]
    ]
    median = statistics.median(float("inf") if time is None else time for time in times)
    return None if median == float("inf") else median


def cells(arm: Mapping[str, Any], record: Mapping[str, Any], scale: int) -> list[str]:
    metric, seeds = record["metric"], len(arm["per_seed"])
    after = f"{arm['seconds_to_target'] or 0:.1f} s"
    ratio = "" if arm["time_ratio"] is None else interval(arm["time_ratio"], "{:.2f}", 1)
    if arm["seconds_to_target"] is None:
        after = f"not by {seeds - arm['reached']} of {seeds}"
        median, of_base = median_seconds(arm, record), median_seconds(record["arms"][0], record)
        if median is not None and of_base is not None:
            after, ratio = f"median {median:.1f} s, {after}", f"medians {median / of_base:.2f}"
    steps = [run["seconds_per_epoch"][-1] / run["steps"] for run in arm["per_seed"]]
    return [
        f"`{arm['arm']}`",
        f"{scale * arm[metric]:.4g}",
        "" if arm["difference"] is None else interval(arm["difference"], "{:+.3g}", scale),
        "" if arm["bytes_per_step"] is None else format_bytes(arm["bytes_per_step"]),
        f"{sum(steps) / seeds:.4f}",
        after,
        ratio,
    ]


def interval(values: Mapping[str, Any], form: str, scale: int) -> str:
    mean = form.format(scale * values["mean"])
    if values["low"] is None or values["high"] is None:
        return mean
    return f"{mean} [{form.format(scale * values['low'])}, {form.format(scale * values['high'])}]"


def answer(record: Mapping[str, Any]) -> str:
    """Sorts gradwire's arms by the interval of their time against the first arm's."""
    sooner, later, unclear, missed = [], [], [], []
    for arm in record["arms"][1:]:
        if arm["arm"] in PEERS:
            continue
        ratio, name = arm["time_ratio"], f"`{arm['arm']}`"
        if ratio is None:
            missed.append(name)
        elif ratio["low"] is None or ratio["low"] <= 1 <= ratio["high"]:
            unclear.append(name)
        else:
            (sooner if ratio["mean"] < 1 else later).append(f"{name} ({ratio['mean']:.2f} times)")
    base = record["arms"][0]["arm"]
    said = {f"sooner than {base}": sooner, f"no sooner and no later than {base} for certain": unclear}
    said |= {f"later than {base}": later, "not there in every seed": missed}
    parts = [f"{what}: {', '.join(arms)}" for what, arms in said.items() if arms]
    return f"gradwire is {'; '.join(parts)}." if parts else "Nothing of gradwire's was run."
