"""Writes an A/B experiment as one HTML page that loads nothing: no script, no font, no file."""

from __future__ import annotations

import html
import itertools
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from gradwire.ab.conclusions import basis, write_seconds, write_target
from gradwire.ab.experiment import Run, RunFailed
from gradwire.ab.names import link_name
from gradwire.ab.summary import NEGLIGIBLE, ArmSummary, Outcome, negligible, write_interval
from gradwire.report.chart import COLOURS, Crossing, Series, line_chart, marker
from gradwire.report.page import document, facts_list, prose, record_section, table, write_document
from gradwire.settings.units import format_bytes, format_duration

Value = TypeVar("Value")
_FAILED = re.compile(r", (\d+ of \d+ failed)$")
_BRACKETS = re.compile(r"^(.*) (\[.*\])(.*)$")


class _Scale(NamedTuple):
    """The unit of an x axis."""

    size: float
    name: str


_SECONDS = (_Scale(3600, "hours"), _Scale(60, "minutes"), _Scale(1, "seconds"), _Scale(1e-3, "milliseconds"))
_BYTES = (_Scale(1e12, "TB"), _Scale(1e9, "GB"), _Scale(1e6, "MB"), _Scale(1e3, "KB"), _Scale(1, "bytes"))


def write_page(folder: Path, outcome: Outcome, facts: Mapping[str, str], warning: str | None = None) -> Path:
    """Writes folder/index.html and returns its path.

    Args:
        facts: how the experiment was done, by name: command, machine, seeds and so on.
        warning: what readers must know before they read the figures. None: nothing.
    """
    return write_document(folder, page(outcome, facts, warning))


def page(outcome: Outcome, facts: Mapping[str, str], warning: str | None = None) -> str:
    """Returns the page's HTML: what to conclude, accuracy against time and bytes, a table, how it was measured."""
    names = [arm.name for arm in outcome.arms]
    title = f"{names[0]} against {', '.join(names[1:])}" if len(names) > 1 else names[0]
    used = {run.seed for arm in outcome.arms for run in arm.runs} | {run.seed for run in _failures(outcome)}
    seeds = f"seed{'s' if len(used) != 1 else ''} {', '.join(map(str, sorted(used)))}"
    kicker = f"gradwire A/B experiment: {title}. Link: {link_name(outcome.link)}, {seeds}"
    sections = [
        f'<p class="kicker">{html.escape(kicker)}</p>',
        f"<h1>{prose(outcome.headline)}</h1>",
        f'<p class="warning">{html.escape(warning)}</p>' if warning else "",
        _so_far(outcome),
        _conclusions(outcome),
        _legend(names),
        f'<div class="grid curves">{"".join(_curves(outcome))}</div>',
        "<h2>Means over the seeds</h2>",
        table(*_two_lines(*summary_rows(outcome)), fitted=True),
        *_failure_sections(outcome),
        "<h2>How this was measured</h2>",
        *(f"<p>{text}</p>" for text in _methods(outcome)),
        facts_list(facts),
        "<h2>Every run</h2>",
        table(*_run_rows(outcome), fitted=True),
        record_section(outcome.record()),
    ]
    return document(f"{title} - gradwire ab", sections)


def _so_far(outcome: Outcome) -> str:
    if outcome.ended_runs >= outcome.expected_runs:
        return ""
    return f'<p class="warning">After {outcome.ended_runs} of {outcome.expected_runs} runs.</p>'


def _conclusions(outcome: Outcome) -> str:
    texts = outcome.conclusions
    if not texts:
        return ""
    advice, *rest = (prose(text) for text in texts)
    paragraphs = [f'<p class="advice">{advice}</p>', *(f"<p>{text}</p>" for text in rest)]
    note = html.escape(basis(outcome))
    return f'<div class="verdict">{"".join(paragraphs)}<p class="basis">{note}.</p></div>'


def _methods(outcome: Outcome) -> list[str]:
    """Says where the target comes from, and what the figures are, in HTML."""
    texts = []
    if outcome.target is not None:
        texts.append(
            f"Target: {write_target(outcome)}, {outcome.target_reason}. Time to the target is read off each run's "
            "curve, on a straight line between two epochs."
        )
    if any(outcome.seeds_needed(arm) for arm in outcome.arms):
        texts.append(
            "How many seeds would decide is an estimate: it takes the mean and the spread of the paired differences as "
            "they are after these seeds."
        )
    if any(outcome.judge(arm) == NEGLIGIBLE for arm in outcome.arms[1:]):
        texts.append(
            f"A difference whose interval ends within {negligible(outcome.metric)} counts as too little to matter."
        )
    measured = sorted({name for arm in outcome.arms for run in arm.runs for name in run.result.measured})
    if measured:
        names = ", ".join(name.replace("_", " ") for name in measured)
        texts.append(f"Not given by the script, so measured by gradwire on worker 0: {names}.")
    return [prose(text) for text in texts]


def _two_lines(titles: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Puts intervals and counts of failed runs on a second line of their cells."""

    def cut(cell: str) -> str:
        return _FAILED.sub(r"\n\1", _BRACKETS.sub(r"\1\3\n\2", cell))

    return titles, [[row[0], *map(cut, row[1:])] for row in rows]


def _failures(outcome: Outcome) -> list[RunFailed]:
    return [failure for arm in outcome.arms for failure in arm.failures]


def _failure_sections(outcome: Outcome) -> list[str]:
    """Lists each failed run with the end of its output."""
    failures = _failures(outcome)
    if not failures:
        return []
    sections = ["<h2>Runs that failed</h2>"]
    for failure in failures:
        sections.append(f"<p>{html.escape(str(failure))}</p>")
        if failure.last_lines:
            sections.append(f"<pre>{html.escape(chr(10).join(failure.last_lines))}</pre>")
    return sections


def write_metric(outcome: Outcome, value: float) -> str:
    if not math.isfinite(value):
        return "diverged"
    return f"{100 * value:.2f} %" if outcome.metric == "accuracy" else f"{value:.4g}"


def summary_rows(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """Returns titles and one row per arm, as both the page and the terminal show them."""
    titles = [
        *("arm", f"final {outcome.metric}", f"difference to {outcome.arms[0].name}"),
        *(f"time to {write_target(outcome)}", "times sooner", "samples/s", "speed"),
        *("bytes/step", "fewer bytes", "codec time"),
    ]
    return titles, [_summary_row(outcome, arm) for arm in outcome.arms]


def _summary_row(outcome: Outcome, arm: ArmSummary) -> list[str]:
    base = outcome.arms[0]
    final = "diverged" if arm.diverged else "failed" if arm.failures else "-"
    if arm.final is not None:
        final = write_metric(outcome, arm.final)
    if arm.final_std is not None:
        std = 100 * arm.final_std if outcome.metric == "accuracy" else arm.final_std
        final += f" \u00b1 {std:.2g}"
    if arm.failures and arm.runs:
        final += f", {len(arm.failures)} of {len(arm.failures) + len(arm.runs)} failed"
    speed = "1x" if arm is base and arm.runs else "-"
    if arm is not base and arm.speed_ratio is not None:
        speed = write_interval(arm.speed_ratio, "{:.3g}x")
    return [
        arm.name,
        final,
        "-" if arm.difference is None else outcome.write_difference(arm.difference),
        _reached(arm),
        _sooner(outcome, arm),
        _or_dash(arm.images_per_second, "{:,.0f}".format),
        speed,
        _or_dash(arm.bytes_per_step, format_bytes),
        "-" if arm is base else _or_dash(outcome.times_fewer_bytes(arm), "{:.1f}x".format),
        _or_dash(arm.codec_seconds, _codec_time),
    ]


def _reached(arm: ArmSummary) -> str:
    if not arm.runs:
        return "-"
    return "not reached" if arm.seconds_to_target is None else write_seconds(arm.seconds_to_target)


def _sooner(outcome: Outcome, arm: ArmSummary) -> str:
    ratio = outcome.times_sooner(arm)
    if arm is outcome.arms[0] or ratio is None:
        return "-"
    if arm.sooner is None or arm.sooner.low is None or arm.sooner.high is None:
        return f"{ratio:.2g}x"
    return f"{ratio:.2g}x [{arm.sooner.low:.2g}x, {arm.sooner.high:.2g}x]"


def _codec_time(seconds: float) -> str:
    return format_duration(seconds) if seconds else "0 s"


def _or_dash(value: Value | None, form: Callable[[Value], str]) -> str:
    return "-" if value is None else form(value)


def _run_rows(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    titles = [
        "arm",
        "seed",
        f"final {outcome.metric}",
        "samples/s",
        "bytes/step",
        "codec time",
        "wall time",
        "weights",
    ]
    rows = []
    for arm in outcome.arms:
        for run in arm.runs:
            given = run.result
            rows.append(
                [
                    *(arm.name, str(run.seed), write_metric(outcome, given.final)),
                    _or_dash(given.images_per_second, "{:,.0f}".format),
                    _or_dash(given.bytes_per_step, format_bytes),
                    _or_dash(given.codec_seconds, _codec_time),
                    *(format_duration(run.wall_seconds), (given.weights_sha256 or "-")[:12]),
                ]
            )
        rows += [[arm.name, str(failure.seed), "failed", *["-"] * 5] for failure in arm.failures]
    return titles, rows


def _legend(arms: Sequence[str]) -> str:
    items = []
    for index, arm in enumerate(arms):
        sign = f'<svg viewBox="0 0 14 14" aria-hidden="true">{marker(index, 7, 7)}</svg>'
        items.append(f'<li style="color:{COLOURS[index % len(COLOURS)]}">{sign}{html.escape(arm)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _curves(outcome: Outcome) -> list[str]:
    """Draws the metric against time, where each arm reaches the target, and against bytes."""
    charts: list[tuple[str, Callable[[Run], tuple[float, ...] | None], str, tuple[_Scale, ...]]] = [
        ("against time", Run.seconds, "{} of training", _SECONDS),
        ("against bytes", Run.bytes, "{} that one worker sent and received", _BYTES),
    ]
    figures = []
    for title, x_of, label, scales in charts:
        series = [_series(arm, x_of) for arm in outcome.arms]
        present = [row for row in series if row is not None]
        most = max((row.x[-1] for row in present if row.x), default=0.0)
        if len(present) < len(series):
            chart = (
                "<p>Not known: a record has no bytes, and the script had no store that could count them.</p>"
            )
        elif most <= 0:
            chart = "<p>No run is finite.</p>"
        else:
            is_time = scales is _SECONDS
            chart = _chart(outcome, present, label, scales, most, with_crossings=is_time)
        note = "mean over the seeds; band: lowest to highest"
        caption = f"{outcome.metric.capitalize()} {title} <small>({note})</small>"
        figures.append(f"<figure><figcaption>{caption}</figcaption>{chart}</figure>")
    return figures


def _chart(
    outcome: Outcome,
    series: Sequence[Series],
    label: str,
    scales: tuple[_Scale, ...],
    most: float,
    *,
    with_crossings: bool,
) -> str:
    scale = next((each for each in scales if most >= 2 * each.size), scales[-1])
    target = outcome.target
    form = write_seconds if with_crossings else format_bytes
    crossings = [
        Crossing(index, arm.seconds_to_target / scale.size, write_seconds(arm.seconds_to_target))
        for index, arm in enumerate(outcome.arms)
        if arm.seconds_to_target is not None
    ]
    return line_chart(
        [replace(row, x=tuple(x / scale.size for x in row.x)) for row in series],
        label.format(scale.name),
        outcome.metric,
        lambda value: form(value * scale.size),
        lambda value: _metric_tick(outcome, value),
        None if target is None else (target, f"target {write_target(outcome)}"),
        crossings=crossings if with_crossings else (),
        x_tick="{:.4g}".format,
    )


def _metric_tick(outcome: Outcome, value: float) -> str:
    return f"{100 * value:.4g} %" if outcome.metric == "accuracy" else f"{value:.4g}"


def _series(arm: ArmSummary, x_of: Callable[[Run], tuple[float, ...] | None]) -> Series | None:
    """Averages an arm's runs epoch by epoch, as far as the shortest run goes and all are finite."""
    xs = [x for run in arm.runs if (x := x_of(run)) is not None]
    if len(xs) < len(arm.runs):
        return None
    columns = zip(*(run.result.per_epoch for run in arm.runs), strict=False)
    metric = list(itertools.takewhile(lambda column: all(map(math.isfinite, column)), columns))
    return Series(
        name=arm.name,
        x=tuple(statistics.fmean(column) for column in zip(*xs, strict=False))[: len(metric)],
        y=tuple(statistics.fmean(column) for column in metric),
        low=tuple(min(column) for column in metric),
        high=tuple(max(column) for column in metric),
    )
