"""Writes an A/B experiment as one self-contained HTML page: no script, font or file from elsewhere."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gradwire.ab import UNSHAPED, Run
from gradwire.chart import COLOURS, Bar, Series, bar_chart, line_chart, marker
from gradwire.outcome import ArmSummary, Outcome, write_interval
from gradwire.page import document, facts_list, record_section, table
from gradwire.units import format_bytes, format_duration


def write_page(folder: Path, outcome: Outcome, facts: Mapping[str, str], warning: str | None = None) -> Path:
    """Writes folder/index.html and returns its path.

    Args:
        facts: how the experiment was done, by name: command, machine, seeds and so on.
        warning: what readers must know before the figures, if anything.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(page(outcome, facts, warning), encoding="utf-8")
    return path


def page(outcome: Outcome, facts: Mapping[str, str], warning: str | None = None) -> str:
    """Returns the page's HTML."""
    arms = [arm.arm for arm in outcome.arms]
    title = f"{arms[0]} against {', '.join(arms[1:])}" if len(arms) > 1 else arms[0]
    link = "unshaped link" if outcome.link == UNSHAPED else f"link of {outcome.link}"
    seeds = ", ".join(str(run.seed) for run in outcome.arms[0].runs)
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
        f"<p class='sub'>Target: {outcome.metric} {write_metric(outcome, outcome.target)}, "
        f"{html.escape(outcome.target_reason)}.</p>",
        "<h2>Every run</h2>",
        table(*_run_rows(outcome)),
        "<h2>How this was measured</h2>",
        facts_list(facts),
        record_section(outcome.record()),
    ]
    return document(f"{title} - gradwire ab", sections)


def write_metric(outcome: Outcome, value: float) -> str:
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
    final = write_metric(outcome, arm.final)
    if arm.final_std is not None:
        std = 100 * arm.final_std if outcome.metric == "accuracy" else arm.final_std
        final += f" \u00b1 {std:.2g}"
    fewer = "-"
    if arm is not base and arm.bytes_per_step and base.bytes_per_step:
        fewer = f"{base.bytes_per_step / arm.bytes_per_step:.1f}x"
    return [
        arm.arm,
        final,
        "-" if arm.difference is None else outcome.write_difference(arm.difference),
        _or_dash(arm.images_per_second, "{:.0f}".format),
        "1x" if arm.speed_ratio is None else write_interval(arm.speed_ratio, "{:.3g}x"),
        _or_dash(arm.bytes_per_step, format_bytes),
        fewer,
        "not reached" if arm.seconds_to_target is None else format_duration(arm.seconds_to_target),
        _or_dash(arm.codec_seconds, format_duration),
    ]


def _or_dash(value: float | None, form: Callable[[float], str]) -> str:
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
    return titles, rows


def _legend(arms: Sequence[str]) -> str:
    items = []
    for index, arm in enumerate(arms):
        sign = f'<svg viewBox="0 0 14 14" aria-hidden="true">{marker(index, 7, 7)}</svg>'
        items.append(f'<li style="color:{COLOURS[index % len(COLOURS)]}">{sign}{html.escape(arm)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _curves(outcome: Outcome) -> list[str]:
    reference = (outcome.target, f"target {write_metric(outcome, outcome.target)}")
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
    """Averages an arm's runs epoch by epoch, as far as the shortest run goes."""
    xs = [x for run in arm.runs if (x := x_of(run)) is not None]
    if len(xs) < len(arm.runs):
        return None
    metric = list(zip(*(run.result.per_epoch for run in arm.runs), strict=False))
    return Series(
        name=arm.arm,
        x=tuple(statistics.fmean(column) for column in zip(*xs, strict=False)),
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
    if len(values) < len(arm.runs):
        return Bar(arm.arm, None)
    return Bar(arm.arm, statistics.fmean(values), (min(values), max(values)))
