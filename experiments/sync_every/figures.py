"""What a link's runs say of local steps: is the loss that of DDP with fp16, in how many bytes, and how soon."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gradwire.ab.experiment import Run
from gradwire.ab.summary import ArmSummary, Outcome, seconds_to
from gradwire.report.paired_statistics import paired_ratio
from gradwire.settings.units import format_bytes

FEWER = 100  # times fewer bytes than DDP with fp16: the goal
TITLES = (
    "arm",
    "final loss",
    "difference to {base} [95 %]",
    "steps",
    "bytes in all",
    "times fewer",
    "target after",
    "times {base}'s",
)


def record_of(link: str, outcome: Outcome) -> dict[str, Any]:
    """Adds to what `gradwire ab` records how an arm's bytes and times compare with the first arm's."""
    record = {"link": link} | outcome.record()
    base = outcome.arms[0]
    _, base_bytes = _trained_bytes(base)
    for arm, summary in zip(record["arms"], outcome.arms, strict=True):
        arm["steps"], arm["bytes"] = _trained_bytes(summary)
        known = base_bytes is not None and arm["bytes"]
        arm["times_fewer_bytes"] = base_bytes / arm["bytes"] if known else None
        arm["time_ratio"] = _time_ratio(summary.runs, base.runs, outcome.target)
        arm["judgement"] = None if summary.difference is None else outcome.judgement(summary.difference)
    return record


def _trained_bytes(arm: ArmSummary) -> tuple[float | None, float | None]:
    """Returns an arm's steps, and what a worker sends and receives in all of them; None: a run does not say."""
    steps = [run.result.steps for run in arm.runs if run.result.steps is not None]
    if len(steps) < len(arm.runs):
        return None, None
    mean = statistics.fmean(steps)
    return mean, None if arm.bytes_per_step is None else arm.bytes_per_step * mean


def _time_ratio(runs: Sequence[Run], base: Sequence[Run], target: float) -> dict[str, Any] | None:
    """Compares times to the target, seed by seed; None: a run of either did not reach it."""
    pairs = [
        (seconds_to(run, target), seconds_to(other, target)) for run, other in zip(runs, base, strict=True)
    ]
    times = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    if len(times) < len(pairs):
        return None
    return asdict(paired_ratio([ours for ours, _ in times], [theirs for _, theirs in times]))


def markdown(record: Mapping[str, Any]) -> str:
    """Returns a link's table, and which of its claims hold."""
    base = record["arms"][0]["arm"]
    lines = [
        f"**{record['link']}.** Target: loss {record['target']:.4g}, {record['target_reason']}.",
        "",
        f"| {' | '.join(title.format(base=base) for title in TITLES)} |",
        "|---" * len(TITLES) + "|",
        *(f"| {' | '.join(_cells(arm))} |" for arm in record["arms"]),
        "",
        *(f"- `{arm['arm']}`: {claims(arm)}" for arm in record["arms"][1:] if "sync_every=" in arm["arm"]),
    ]
    return "\n".join(lines)


def claims(arm: Mapping[str, Any]) -> str:
    """Says whether an arm loses nothing, and whether it sends as little as is wanted."""
    fewer = arm["times_fewer_bytes"]
    said = {  # by `gradwire ab`
        "worse": "its loss is higher",
        "better": "its loss is lower",
        "too little to matter": "its loss differs by too little to matter",
        "no difference seen": "its loss is no higher, within the interval of the seeds",
    }
    loss = said.get(arm["judgement"], f"of its loss: {arm['judgement']}")
    if fewer is None:
        return f"{loss}; bytes are not known"
    return f"{loss}; {fewer:.0f} times fewer bytes, goal {FEWER}: {'reached' if fewer >= FEWER else 'missed'}"


def _cells(arm: Mapping[str, Any]) -> list[str]:
    after, fewer, all_bytes = arm["seconds_to_target"], arm["times_fewer_bytes"], arm["bytes"]
    return [
        f"`{arm['arm']}`",
        f"{arm['loss']:.4g}",
        "" if arm["difference"] is None else _interval(arm["difference"], "{:+.3g}"),
        "" if arm["steps"] is None else f"{arm['steps']:.0f}",
        "" if all_bytes is None else format_bytes(all_bytes),
        "" if fewer is None else f"{fewer:.3g}",
        "not by all" if after is None else f"{after:.1f} s",
        "" if arm["time_ratio"] is None else _interval(arm["time_ratio"], "{:.2f}"),
    ]


def _interval(values: Mapping[str, Any], form: str) -> str:
    mean = form.format(values["mean"])
    if values["low"] is None:
        return mean
    return f"{mean} [{form.format(values['low'])}, {form.format(values['high'])}]"
