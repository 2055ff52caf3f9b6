"""Draws many small charts on the same axes, one per arm, as SVG: more lines than one chart can show."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradwire.report.chart import Axis, standalone

_COLUMNS = 4
_WIDTH, _HEIGHT = 210.0, 150.0  # of a panel
_LEFT, _TOP, _BOTTOM, _RIGHT = 40.0, 20.0, 22.0, 8.0  # around its axes
_HEAD = 46.0  # title and legend
_INK, _FAINT, _GRID = "#1f2933", "#616e7c", "#e4e7eb"


@dataclass(frozen=True)
class Line:
    """x rising; lines of one name have one colour."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    colour: str


@dataclass(frozen=True)
class Panel:
    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Scale:
    """What an axis shows, the same in all panels."""

    label: str
    low: float
    high: float
    form: Callable[[float], str]
    logarithmic: bool = False
    ticks: tuple[float, ...] = ()  # none: round ones

    def axis(self, start: float, end: float) -> Axis:
        return Axis(self.low, self.high, start, end, self.logarithmic)


def draw(title: str, panels: Sequence[Panel], x: Scale, y: Scale) -> str:
    """Returns the text of an .svg file."""
    rows = -(-len(panels) // _COLUMNS)
    width, height = _COLUMNS * _WIDTH, _HEAD + rows * _HEIGHT + 6
    body = [_text(8, 16, f"{title}; {y.label} over {x.label}", _INK, 'font-weight="600"'), _legend(panels)]
    for index, panel in enumerate(panels):
        row, column = divmod(index, _COLUMNS)
        body.append(_panel(panel, column * _WIDTH, _HEAD + row * _HEIGHT, x, y))
    label = f'role="img" aria-label="{html.escape(title)}" font-size="11"'
    return standalone(f'<svg viewBox="0 0 {width:g} {height:g}" {label}>{"".join(body)}</svg>')


def _legend(panels: Sequence[Panel]) -> str:
    colours = {line.name: line.colour for panel in panels for line in panel.lines}
    parts, left = [], 8.0
    for name, colour in colours.items():
        parts.append(f'<rect x="{left:.0f}" y="27" width="12" height="3" fill="{colour}"/>')
        parts.append(_text(left + 16, 33, name, _INK))
        left += 34 + 6.2 * len(name)
    return "".join(parts)


def _panel(panel: Panel, left: float, top: float, x: Scale, y: Scale) -> str:
    bottom = top + _HEIGHT - _BOTTOM
    x_axis = x.axis(left + _LEFT, left + _WIDTH - _RIGHT)
    y_axis = y.axis(bottom, top + _TOP)
    parts = [_text(x_axis.start, top + 14, panel.title, _INK, 'font-weight="600"')]
    for value in y.ticks or y_axis.ticks():
        at = y_axis(value)
        parts.append(
            f'<path d="M{x_axis.start:.1f} {at:.1f}H{x_axis.end:.1f}" stroke="{_GRID}"/>'
            + _text(x_axis.start - 5, at + 4, y.form(value), _FAINT, 'text-anchor="end"')
        )
    for value in x.ticks or x_axis.ticks()[::2]:
        parts.append(_text(x_axis(value), bottom + 14, x.form(value), _FAINT, 'text-anchor="middle"'))
    parts.append(f'<path d="M{x_axis.start:.1f} {bottom:.1f}H{x_axis.end:.1f}" stroke="{_FAINT}"/>')
    for line in panel.lines:
        points = " ".join(f"{x_axis(a):.1f},{y_axis(b):.1f}" for a, b in zip(line.x, line.y, strict=True))
        tip = f"<title>{html.escape(f'{panel.title}: {line.name}')}</title>"
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="1.6">{tip}</polyline>'
        )
    return "".join(parts)


def _text(x: float, y: float, text: str, colour: str, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" {extra}>{html.escape(text)}</text>'
