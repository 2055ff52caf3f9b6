"""Writes an A/B experiment as one self-contained HTML page: no script, font or file from elsewhere."""

from __future__ import annotations

import html
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from gradwire.ab.experiment import UNSHAPED, Run, RunFailed
from gradwire.ab.summary import ArmSummary, Outcome, write_interval
from gradwire.report.chart import COLOURS, Bar, Series, bar_chart, line_chart, marker
from gradwire.report.page import document, facts_list, record_section, table, write_document
from gradwire.settings.units import format_bytes, format_duration

Value = TypeVar("Value")


def write_page(folder: Path, outcome: Outcome, facts: Mapping[str, str], warning: str | None = None) -> Path:
    """Writes folder/index.html and returns its path.

    Args:
        facts: how the experiment was done, by name: command, machine, seeds and so on.
        warning: what readers must know before the figures, if anything.
    """
    return write_document(folder, page(outcome, facts, warning))


def page(outcome: Outcome, facts: Mapping[str, str], warning: str | None = None) -> str:
    """Returns the page's HTML."""
    arms = [arm.arm for arm in outcome.arms]
    title = f"{arms[0]} against {', '.join(arms[1:])}" if len(arms) > 1 else arms[0]
    link = "unshaped link" if outcome.link == UNSHAPED else f"link of {outcome.link}"
    used = {run.seed for arm in outcome.arms for run in arm.runs} | {run.seed for run in _failures(outcome)}
    seeds = ", ".join(map(str, sorted(used)))
    sections = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="sub">gradwire A/B experiment, {html.escape(link)}, seeds {seeds}</p>',
        f'<p class="warning">{html.escape(warning)}</p>' if warning else "",
        f'<p class="verdict">{html.escape(outcome.verdict)}</p>',
        _legend(arms),
        f'<div class="grid curves">{"".join(_curves(outcome))}</div>',
        f'<div class="grid bars">{"".join(_bars(outcome.arms))}</div>',
        "<h2>Means over the seeds</h2>",
        table(*summary_rows(outcome)),
        f"<p class='sub'>Target: {_target(outcome)}{html.escape(outcome.target_reason)}.</p>",
        "<h2>Every run</h2>",
        table(*_run_rows(outcome)),
        *_failure_sections(outcome),
        "<h2>How this was measured</h2>",
        facts_list(facts),
        record_section(outcome.record()),
    ]
    return document(f"{title} - gradwire ab", sections)


def _target(outcome: Outcome) -> str:
    if outcome.target is None:
        return ""
    return f"{outcome.metric} {write_metric(outcome, outcome.target)}, "


def _failures(outcome: Outcome) -> list[RunFailed]:
    return [failure for arm in outcome.arms for failure in arm.failures]


def _failure_sections(outcome: Outcome) -> list[str]:
    """Each failed run with its last words."""
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
        *("arm", f"final {outcome.metric}", f"difference to {outcome.arms[0].arm}", "images/s", "speed"),
        *("bytes/step", "fewer bytes", "time to target", "codec time"),
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
    fewer = "-"
    if arm is not base and arm.bytes_per_step and base.bytes_per_step:
        fewer = f"{base.bytes_per_step / arm.bytes_per_step:.1f}x"
    return [
        arm.arm,
        final,
        "-" if arm.difference is None else outcome.write_difference(arm.difference),
        _or_dash(arm.images_per_second, "{:.0f}".format),
        ("1x" if arm.runs else "-")
        if arm is base
        else _or_dash(arm.speed_ratio, lambda ratio: write_interval(ratio, "{:.3g}x")),
        _or_dash(arm.bytes_per_step, format_bytes),
        fewer,
        _reached(arm),
        _or_dash(arm.codec_seconds, format_duration),
    ]


def _reached(arm: ArmSummary) -> str:
    if not arm.runs:
        return "-"
    return "not reached" if arm.seconds_to_target is None else format_duration(arm.seconds_to_target)


def _or_dash(value: Value | None, form: Callable[[Value], str]) -> str:
    return "-" if value is None else form(value)


def _run_rows(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    titles = [
        "arm",
        "seed",
        f"final {outcome.metric}",
        "images/s",
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
                    *(run.arm, str(run.seed), write_metric(outcome, given.final)),
                    _or_dash(given.images_per_second, "{:.0f}".format),
                    _or_dash(given.bytes_per_step, format_bytes),
                    _or_dash(given.codec_seconds, format_duration),
                    *(format_duration(run.wall_seconds), (given.weights_sha256 or "-")[:12]),
                ]
            )
        rows += [[failure.arm, str(failure.seed), "failed", *["-"] * 5] for failure in arm.failures]
    return titles, rows


def _legend(arms: Sequence[str]) -> str:
    items = []
    for index, arm in enumerate(arms):
        sign = f'<svg viewBox="0 0 14 14" aria-hidden="true">{marker(index, 7, 7)}</svg>'
        items.append(f'<li style="color:{COLOURS[index % len(COLOURS)]}">{sign}{html.escape(arm)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _curves(outcome: Outcome) -> list[str]:
    target = outcome.target
    reference = None if target is None else (target, f"target {write_metric(outcome, target)}")
    charts: list[tuple[str, Callable[[Run], tuple[float, ...] | None], str, Callable[[float], str]]] = [
        ("against time", Run.seconds, "training time", format_duration),
        ("against bytes", Run.bytes, "bytes of one worker at the socket", format_bytes),
    ]
    figures = []
    for title, x_of, label, form in charts:
        series = [_series(arm, x_of) for arm in outcome.arms]
        present = [row for row in series if row is not None]
        if len(present) < len(series):
            chart = "<p>The script's records give no bytes_per_step and steps.</p>"
        elif not any(row.x for row in present):
            chart = "<p>No run is finite.</p>"
        else:
            chart = line_chart(
                present, label, outcome.metric, form, lambda value: _metric_tick(outcome, value), reference
            )
        note = "mean over the seeds; band: lowest to highest"
        caption = f"{outcome.metric.capitalize()} {title} <small>({note})</small>"
        figures.append(f"<figure><figcaption>{caption}</figcaption>{chart}</figure>")
    return figures


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
        name=arm.arm,
        x=tuple(statistics.fmean(column) for column in zip(*xs, strict=False))[: len(metric)],
        y=tuple(statistics.fmean(column) for column in metric),
        low=tuple(min(column) for column in metric),
        high=tuple(max(column) for column in metric),
    )


def _bars(arms: Sequence[ArmSummary]) -> list[str]:
    charts: list[tuple[str, str, Callable[[float], str]]] = [
        ("Images per second", "images_per_second", lambda value: f"{value:.0f}"),
        ("Bytes per step", "bytes_per_step", format_bytes),
        ("Codec time of one run", "codec_seconds", format_duration),
    ]
    return [
        f"<figure>{bar_chart(title, [_bar(arm, name) for arm in arms], form)}</figure>"
        for title, name, form in charts
    ]


def _bar(arm: ArmSummary, name: str) -> Bar:
    values = [value for run in arm.runs if (value := getattr(run.result, name)) is not None]
    if not arm.runs:
        return Bar(arm.arm, None, note="no run has ended")
    if len(values) < len(arm.runs):
        return Bar(arm.arm, None)
    return Bar(arm.arm, statistics.fmean(values), (min(values), max(values)))
