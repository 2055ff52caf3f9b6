"""What `gradwire tune` found as one self-contained HTML page, with a chart of its launches."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradwire.autotune.summary import Outcome, Trial
from gradwire.report.chart import Series, line_chart
from gradwire.report.page import document, facts_list, record_section, table, write_document
from gradwire.settings.units import format_duration


def write_page(folder: Path, outcome: Outcome, facts: Mapping[str, str], record: Any) -> Path:
    """Writes folder/index.html and returns its path. facts: how it was done, by name. record: as --json has it."""
    return write_document(folder, page(outcome, facts, record))


def page(outcome: Outcome, facts: Mapping[str, str], record: Any) -> str:
    """Returns the page's HTML."""
    sections = [
        "<h1>gradwire tune</h1>",
        f'<p class="sub">{html.escape(facts.get("command", ""))}</p>',
        *(f'<p class="warning">{html.escape(note)}</p>' for note in outcome.notes),
        f'<p class="verdict">{html.escape(outcome.verdict)}</p>',
        _chart(outcome),
        *_duels(outcome),
        "<h2>Every launch</h2>",
        table(*_launch_rows(outcome)),
        "<h2>How this was measured</h2>",
        facts_list(facts),
        record_section(record),
    ]
    return document("gradwire tune", sections)


def _chart(outcome: Outcome) -> str:
    """A step's seconds over the launches: the defaults, who was tried, and who fought the defaults."""
    numbered = list(enumerate(outcome.trials, start=1))
    default = outcome.search.box.default
    series = [
        _series("defaults", [row for row in numbered if row[1].setting == default]),
        *(
            _series(name, [row for row in numbered if row[1].setting != default and row[1].stage == stage])
            for name, stage in (("tried", "search"), ("in a duel with the defaults", "duel"))
        ),
    ]
    present = [row for row in series if row is not None]
    if not present:
        return ""
    drawn = line_chart(
        present, "launch", "a step", "{:.0f}".format, format_duration, logarithmic=False, legend=True
    )
    return f"<figure><figcaption>Launches in their order</figcaption>{drawn}</figure>"


def _series(name: str, rows: list[tuple[int, Trial]]) -> Series | None:
    points = [(float(number), trial.step_seconds) for number, trial in rows if trial.step_seconds is not None]
    if not points:
        return None
    x, y = tuple(number for number, _ in points), tuple(seconds for _, seconds in points)
    return Series(name, x, y, y, y)


def _duels(outcome: Outcome) -> list[str]:
    parts = []
    for duel in outcome.search.duels:
        how = "won" if duel.is_won else "lost" if duel.is_lost else "not ended"
        rows = [[str(n), _text(default), _text(own)] for n, (default, own) in enumerate(duel.pairs, start=1)]
        parts.append(
            f"<h2>{html.escape(outcome.search.box.text(duel.setting))} against the defaults: {how}</h2>"
        )
        parts.append(table(["pair", "defaults", "setting"], rows))
    return parts


def _launch_rows(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            str(number),
            trial.stage,
            outcome.search.box.text(trial.setting),
            trial.failure or _text(trial.step_seconds),
            format_duration(trial.wall_seconds),
        ]
        for number, trial in enumerate(outcome.trials, start=1)
    ]
    return ["launch", "stage", "setting", "a step", "the launch"], rows


def _text(seconds: float | None) -> str:
    return "-" if seconds is None or seconds == float("inf") else format_duration(seconds)
