"""Draws charts as inline SVG: lines with bands, bars and lanes. Nothing is loaded: no script, no font, no file.

Arms differ by colour, by marker and by dash, so that they can be told apart without colour.

Source: the colours are those of Okabe and Ito, Color Universal Design, 2008, which colour-blind readers distinguish.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2", "12 4")
_INK, _FAINT, _GRID = "#1f2933", "#616e7c", "#e4e7eb"

Format = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """One arm's curve: x ascending, y the mean over seeds, low and high the spread."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Crossing:
    """Where a curve reaches the reference line. series: the curve's index. text: what stands beside it."""

    series: int
    x: float
    text: str


@dataclass(frozen=True)
class Bar:
    """Attributes:
    value: None: not measured.
    spread: lowest and highest.
    limit: drawn as a tick.
    note: stands behind the value.
    colour: an index into COLOURS.
    """

    name: str
    value: float | None
    spread: tuple[float, float] | None = None
    limit: float | None = None
    note: str = ""
    colour: int = 0

    def ends(self) -> list[float]:
        """Returns every value that the axis has to show."""
        return [end for end in (self.value, self.limit, *(self.spread or ())) if end is not None]


@dataclass(frozen=True)
class Axis:
    """Maps values from low to high onto pixels from start to end."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        scale = math.log10 if self.logarithmic else float
        share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        if not self.logarithmic:
            return linear_ticks(self.low, self.high, 8)
        low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        steps = (1, 2, 5) if high - low <= 3 else (1,)
        values = [step * 10.0**power for power in range(low, high + 1) for step in steps]
        return [value for value in values if self.low <= value <= self.high]


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Returns round values (1, 2 or 5 times a power of ten apart) within low and high."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def marker(index: int, x: float, y: float, title: str = "") -> str:
    """Draws the marker of the arm with this index at (x, y)."""
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"',
        f'<rect x="{x - 3.6:.1f}" y="{y - 3.6:.1f}" width="7.2" height="7.2"',
        f'<path d="M{x:.1f} {y - 4.8:.1f}l4.6 8.2h-9.2z"',
        f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"',
    )
    tip = f"<title>{html.escape(title)}</title>" if title else ""
    shape = shapes[index % len(shapes)]
    element = shape[1:].split()[0]
    return f'{shape} fill="{COLOURS[index % len(COLOURS)]}" stroke="#fff">{tip}</{element}>'


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = _FAINT, extra: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" {extra}'
    return f"<text {place}>{html.escape(text)}</text>"


def _svg(width: float, height: float, label: str, body: Sequence[str]) -> str:
    what = f'role="img" aria-label="{html.escape(label)}" font-size="12"'
    return f'<svg viewBox="0 0 {width:g} {height:g}" {what}>{"".join(body)}</svg>'


def line_chart(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    x_format: Format,
    y_format: Format,
    reference: tuple[float, str] | None = None,
    logarithmic: bool | None = None,
    legend: bool = False,
    crossings: Sequence[Crossing] = (),
    x_tick: Format | None = None,
) -> str:
    """Draws one curve per series with its band, and a dashed reference line across.

    A series without points is in the legend, and not drawn.

    Args:
        x_format: of a point's x, with its unit.
        reference: value on the y axis, and the text beside its line.
        logarithmic: of the x axis. None: only where the curves end more than 8 times apart, since the shorter one could
            not be read otherwise.
        legend: write the names below the chart.
        crossings: where curves reach the reference line; a line leads down to the x axis.
        x_tick: of a number on the x axis. Default: x_format.
    """
    width, height, left, right, top, bottom = 560.0, 330.0, 62.0, 16.0, 14.0, 46.0
    xs = [x for row in series for x in row.x]
    ys = [y for row in series for y in (*row.low, *row.high)] + ([reference[0]] if reference else [])
    ends = [row.x[-1] for row in series if row.x]
    if logarithmic is None:
        logarithmic = min(xs) > 0 and max(ends) > 8 * min(ends)
    pad = 0.06 * (max(ys) - min(ys)) or abs(max(ys)) * 0.05 or 1.0
    room = (
        (1.4 if logarithmic else 1.12) if crossings else 1.15 if logarithmic else 1.04
    )  # for a crossing's text
    x_low, x_high = (min(xs) / 1.15, max(xs) * room) if logarithmic else (0.0, max(xs) * room or 1.0)
    x_axis = Axis(x_low, x_high, left, width - right, logarithmic)
    y_axis = Axis(min(ys) - pad, max(ys) + pad, height - bottom, top)
    body = [
        _frame(
            x_axis,
            y_axis,
            x_label + (" (logarithmic)" if logarithmic else ""),
            y_label,
            x_tick or x_format,
            y_format,
        )
    ]
    if reference is not None:
        y = y_axis(reference[0])
        ends_at = f'x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"'
        body.append(f'<line {ends_at} stroke="{_FAINT}" stroke-dasharray="3 4"/>')
        curves = [[(x_axis(a), y_axis(b)) for a, b in zip(row.x, row.y, strict=True)] for row in series]
        body.append(_reference_label(reference[1], x_axis, y, curves))
    for index, row in enumerate(series):
        body.append(_curve(index, row, x_axis, y_axis, x_format, y_format))
    if reference is not None:
        body.append(_crossings(crossings, x_axis, y_axis, y_axis(reference[0])))
    if legend:
        text, lines = _legend([row.name for row in series], left, width - right, height + 12)
        body.append(text)
        height += 8 + 18 * lines
    return _svg(width, height, f"{y_label} against {x_label}", body)


def _reference_label(
    text: str, x_axis: Axis, y: float, curves: Sequence[Sequence[tuple[float, float]]]
) -> str:
    """Writes beside the reference line, at its left, middle or right, above or below, where no curve runs."""
    length = 7.5 * len(text)
    starts = (x_axis.start + 6, (x_axis.start + x_axis.end - length) / 2, x_axis.end - length - 6)
    on_curves = [point for curve in curves for point in _along(curve)]

    def hits(place: tuple[float, float]) -> int:
        x, base = place
        return sum(x - 8 <= a <= x + length + 8 and base - 16 <= b <= base + 6 for a, b in on_curves)

    x, base = min(((start, y + shift) for shift in (-6, 16) for start in starts), key=hits)
    return _text(x, base, text)


def _along(curve: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yields points on a polyline."""
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        for step in range(21):
            yield x0 + (x1 - x0) * step / 20, y0 + (y1 - y0) * step / 20
    yield from curve


def _crossings(crossings: Sequence[Crossing], x_axis: Axis, y_axis: Axis, y: float) -> str:
    """Leads from each crossing down to the axis, where its text is; above the line if there is little room below it.

    A text that would run into its neighbour's stands a line higher.
    """
    lowest = y_axis.start - 8 if y_axis.start - y > 60 else y - 12
    lines, texts = [], []
    ends: list[float] = []  # of the texts on each line, from the lowest
    for crossing in sorted(crossings, key=lambda each: each.x):
        x, colour = x_axis(crossing.x), COLOURS[crossing.series % len(COLOURS)]
        length = 7.2 * len(crossing.text)
        is_left = x + 8 + length > x_axis.end
        start = x - 6 - length if is_left else x + 6
        row = next((row for row, end in enumerate(ends) if end < start), len(ends))
        ends[row : row + 1] = [start + length + 6]
        lines.append(
            f'<path d="M{x:.1f} {y:.1f}V{y_axis.start:.1f}" stroke="{colour}" stroke-width="1.5" '
            'stroke-dasharray="2 3"/>'
        )
        lines.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6.5" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        bold = 'font-weight="700" paint-order="stroke" stroke="#fff" stroke-width="3"'
        anchor = "end" if is_left else "start"
        place = x - 6 if is_left else x + 6
        texts.append(_text(place, lowest - 17 * row, crossing.text, anchor, colour, bold))
    return "".join(lines + texts)


def _legend(names: Sequence[str], left: float, right: float, top: float) -> tuple[str, int]:
    """Returns the names with their markers, and the number of lines that they take."""
    parts = []
    x, lines = left, 1
    for index, name in enumerate(names):
        length = 26 + 6.5 * len(name)
        if x > left and x + length > right:
            x, lines = left, lines + 1
        y = top + 18 * (lines - 1)
        parts.append(marker(index, x, y - 4) + _text(x + 9, y, name, colour=_INK))
        x += length
    return "".join(parts), lines


def _frame(x_axis: Axis, y_axis: Axis, x_label: str, y_label: str, x_format: Format, y_format: Format) -> str:
    parts = []
    for value in y_axis.ticks():
        y = y_axis(value)
        parts.append(
            f'<line x1="{x_axis.start}" x2="{x_axis.end}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>'
        )
        parts.append(_text(x_axis.start - 8, y + 4, y_format(value), "end"))
    for value in x_axis.ticks():
        x = x_axis(value)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y_axis.start}" y2="{y_axis.start + 4}" stroke="{_FAINT}"/>'
        )
        parts.append(_text(x, y_axis.start + 18, x_format(value), "middle"))
    base = f'x1="{x_axis.start}" x2="{x_axis.end}" y1="{y_axis.start}" y2="{y_axis.start}"'
    parts.append(f'<line {base} stroke="{_FAINT}"/>')
    parts.append(_text((x_axis.start + x_axis.end) / 2, y_axis.start + 38, x_label, "middle", _INK))
    middle = (y_axis.start + y_axis.end) / 2
    parts.append(
        _text(15, middle, y_label, "middle", _INK, f'class="y-title" transform="rotate(-90 15 {middle:.1f})"')
    )
    return "".join(parts)


def _curve(index: int, row: Series, x_axis: Axis, y_axis: Axis, x_format: Format, y_format: Format) -> str:
    if not row.x:
        return ""
    colour = COLOURS[index % len(COLOURS)]
    points = [f"{x_axis(x):.1f},{y_axis(y):.1f}" for x, y in zip(row.x, row.y, strict=True)]
    upper = [f"{x_axis(x):.1f},{y_axis(y):.1f}" for x, y in zip(row.x, row.high, strict=True)]
    lower = [f"{x_axis(x):.1f},{y_axis(y):.1f}" for x, y in zip(row.x, row.low, strict=True)]
    dash = f' stroke-dasharray="{_DASHES[index % len(_DASHES)]}"' if index else ""
    parts = [
        f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{colour}" fill-opacity="0.14"/>',
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>',
    ]
    for x, y in zip(row.x, row.y, strict=True):
        parts.append(marker(index, x_axis(x), y_axis(y), f"{row.name}: {y_format(y)} at {x_format(x)}"))
    return "".join(parts)


def standalone(svg: str) -> str:
    """Returns a chart as the text of an .svg file, on a white background."""
    opening = '<svg xmlns="http://www.w3.org/2000/svg" style="background:#fff" font-family="sans-serif" '
    return svg.replace("<svg ", opening, 1) + "\n"


@dataclass(frozen=True)
class Panel:
    """Bars under one title, on their own axis."""

    title: str
    bars: tuple[Bar, ...]


def panel_chart(panels: Sequence[Panel], form: Format) -> str:
    """Draws panels one below the other. Each bar starts at 0, with its name before it and its value and note behind it.

    A line shows a bar's spread, and a capped tick its limit.
    """
    longest = max((len(bar.name) for panel in panels for bar in panel.bars), default=0)
    left, right, row_height, head = 20 + 7.0 * longest, 150.0, 22.0, 34.0
    width = left + 360 + right
    body: list[str] = []
    top = 4.0
    for panel in panels:
        most = max((end for bar in panel.bars for end in bar.ends()), default=0.0) or 1.0
        axis = Axis(0, most, left, width - right)
        body.append(_text(6, top + 18, panel.title, colour=_INK, extra='font-weight="600"'))
        for index, bar in enumerate(panel.bars):
            body.append(_panel_row(bar, axis, top + head + index * row_height, form))
        top += head + len(panel.bars) * row_height + 12
    label = "; ".join(panel.title for panel in panels)
    return _svg(width, top, label, body)


def _panel_row(bar: Bar, axis: Axis, y: float, form: Format) -> str:
    parts = [_text(axis.start - 8, y + 12, bar.name, "end", _INK)]
    if bar.value is None:
        return "".join([*parts, _text(axis.start, y + 12, "not measured")])
    colour = COLOURS[bar.colour % len(COLOURS)]
    length = max(axis(bar.value) - axis.start, 1)
    tip = f"<title>{html.escape(bar.name)}: {form(bar.value)}</title>"
    parts.append(
        f'<rect x="{axis.start}" y="{y}" width="{length:.1f}" height="15" rx="2" fill="{colour}">{tip}</rect>'
    )
    if bar.spread is not None:
        low, high = axis(bar.spread[0]), axis(bar.spread[1])
        parts.append(f'<path d="M{low:.1f} {y + 7.5}H{high:.1f}" stroke="{_INK}" stroke-width="1.5"/>')
    if bar.limit is not None:
        x = axis(bar.limit)
        parts.append(
            f'<path d="M{x - 3:.1f} {y - 2}h6m-3 0v19m-3 0h6" fill="none" stroke="#000" stroke-width="1.5"/>'
        )
    text = form(bar.value) + (f", {bar.note}" if bar.note else "")
    parts.append(_text(max(map(axis, bar.ends())) + 8, y + 12, text, colour=_INK))
    return "".join(parts)


@dataclass(frozen=True)
class Lane:
    """When something was in progress: intervals from begin to end. colour: an index into COLOURS."""

    name: str
    intervals: tuple[tuple[float, float], ...]
    colour: int = 0


def lane_chart(groups: Sequence[tuple[str, Sequence[Lane]]], x_label: str, x_format: Format) -> str:
    """Draws lanes one below the other, in titled groups, over one axis that begins at 0.

    Intervals less than half a pixel apart are drawn as one.
    """
    longest = max((len(lane.name) for _, lanes in groups for lane in lanes), default=0)
    left, width, row_height, head = 20 + 7.0 * longest, 1100.0, 16.0, 24.0
    most = max((end for _, lanes in groups for lane in lanes for _, end in lane.intervals), default=0.0)
    axis = Axis(0.0, most or 1.0, left, width - 16)
    body: list[str] = []
    y = 4.0
    for title, lanes in groups:
        body.append(_text(6, y + 15, title, colour=_INK, extra='font-weight="600"'))
        y += head
        for lane in lanes:
            body.append(_lane(lane, axis, y))
            y += row_height
        y += 8
    for value in axis.ticks():
        x = axis(value)
        body.insert(0, f'<path d="M{x:.1f} 24V{y:.1f}" stroke="{_GRID}"/>')
        body.append(_text(x, y + 14, x_format(value), "middle"))
    body.append(_text((axis.start + axis.end) / 2, y + 32, x_label, "middle", _INK))
    return _svg(width, y + 40, "; ".join(title for title, _ in groups), body)


def _lane(lane: Lane, axis: Axis, y: float) -> str:
    drawn: list[list[float]] = []
    for begin, end in sorted(lane.intervals):
        start, stop = axis(begin), max(axis(end), axis(begin) + 0.5)
        if drawn and start - drawn[-1][1] < 0.5:
            drawn[-1][1] = max(drawn[-1][1], stop)
        else:
            drawn.append([start, stop])
    path = "".join(f"M{start:.1f} {y}H{stop:.1f}v11H{start:.1f}z" for start, stop in drawn)
    colour = COLOURS[lane.colour % len(COLOURS)]
    return (
        _text(axis.start - 8, y + 10, lane.name, "end")
        + f'<path d="{path}" fill="{colour}"><title>{html.escape(lane.name)}</title></path>'
    )
