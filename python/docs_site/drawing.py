"""What the documentation's diagrams are drawn with: boxes, arrows and texts of an SVG that follows light and dark."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Literal

Tone = Literal["plain", "one", "two", "three"]
Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]

_LIGHT = (
    "--ink:#1c2731;--soft:#52606d;--line:#8493a1;--paper:#fff;--fill:#f3f6f9;--one:#0072b2;--two:#b85c00;"
    "--three:#00795a;--one-fill:#e6f1f8;--two-fill:#fbeee0;--three-fill:#e2f3ed"
)
_DARK = (
    "--ink:#e3eaf0;--soft:#a9b7c3;--line:#6b7b89;--paper:#1b242c;--fill:#232e38;--one:#6cb9ee;--two:#f0a04b;"
    "--three:#4fc7a0;--one-fill:#17354a;--two-fill:#43301a;--three-fill:#16392f"
)
_STYLE = f"""<style>
.gw-diagram{{{_LIGHT}}}
@media (prefers-color-scheme:dark){{.gw-diagram{{{_DARK}}}}}
.gw-diagram text{{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--ink)}}
.gw-diagram .strong{{font-weight:650}}
.gw-diagram .soft{{fill:var(--soft);font-size:12px}}
.gw-diagram .code{{font-family:ui-monospace,monospace;font-size:12px}}
.gw-diagram .title{{font-size:14px;font-weight:650}}
</style>"""
_LINE_HEIGHT = 16.0


class Drawing:
    """An SVG that is drawn from the back to the front.

    Attributes:
        width, height: in units of one CSS pixel.
        title: what a screen reader says.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width = width
        self.height = height
        self.title = title
        self._parts: list[str] = []

    def svg(self) -> str:
        """Returns the whole drawing."""
        head = (
            '<svg class="gw-diagram" xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="-2 -2 {_n(self.width + 4)} {_n(self.height + 4)}" width="{_n(self.width + 4)}" role="img">'
        )
        return "\n".join(
            [head, f"<title>{html.escape(self.title)}</title>", _STYLE, *self._parts, "</svg>", ""]
        )

    def box(
        self, x: float, y: float, width: float, height: float, lines: Sequence[str] = (), tone: Tone = "plain"
    ) -> None:
        """Draws a box; the first of its lines is strong, and lines between backticks are code."""
        stroke, fill = ("line", "fill") if tone == "plain" else (tone, f"{tone}-fill")
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="6" '
            f'fill="var(--{fill})" stroke="var(--{stroke})" stroke-width="1.2"/>'
        )
        top = y + height / 2 - (len(lines) - 1) * _LINE_HEIGHT / 2 + 4.5
        for at, line in enumerate(lines):
            kind = "strong" if at == 0 else "soft"
            self.text(x + width / 2, top + at * _LINE_HEIGHT, line, kind)

    def frame(self, x: float, y: float, width: float, height: float, label: str = "") -> None:
        """Draws a dashed frame with a label in its upper left corner."""
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="8" fill="none" '
            f'stroke="var(--line)" stroke-dasharray="4 4"/>'
        )
        if label:
            self.text(x + 10, y + 18, label, "soft", "start")

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: Anchor = "middle") -> None:
        """Writes one line. kind: words of the style: strong, soft, code, title."""
        if text.startswith("`"):
            text, kind = text.strip("`"), f"{kind} code".strip()
        given = f' class="{kind}"' if kind else ""
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}"{given}>{html.escape(text, quote=False)}</text>'
        )

    def line(self, *points: Point, tone: Tone = "plain", dashed: bool = False, width: float = 1.4) -> None:
        """Draws a line through points."""
        path = " ".join(f"{'M' if at == 0 else 'L'}{_n(x)} {_n(y)}" for at, (x, y) in enumerate(points))
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="{_color(tone)}" stroke-width="{_n(width)}"{dash}/>'
        )

    def arrow(self, *points: Point, tone: Tone = "plain", dashed: bool = False, both: bool = False) -> None:
        """Draws a line through points with a head at its end, or at both ends."""
        ends = [(points[-2], points[-1])] + ([(points[1], points[0])] if both else [])
        trimmed = list(points)
        trimmed[-1] = _toward(points[-1], points[-2], 5)
        if both:
            trimmed[0] = _toward(points[0], points[1], 5)
        self.line(*trimmed, tone=tone, dashed=dashed)
        for before, tip in ends:
            self._head(before, tip, tone)

    def dot(self, x: float, y: float, tone: Tone = "one", radius: float = 4.5) -> None:
        """Draws a point of a chart."""
        self._parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" fill="{_color(tone)}"/>')

    def _head(self, before: Point, tip: Point, tone: Tone) -> None:
        back = _toward(tip, before, 8)
        dx, dy = (tip[0] - back[0]) / 8 * 3.6, (tip[1] - back[1]) / 8 * 3.6
        corners = [tip, (back[0] - dy, back[1] + dx), (back[0] + dy, back[1] - dx)]
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in corners)
        self._parts.append(f'<polygon points="{path}" fill="{_color(tone)}"/>')


def _toward(start: Point, end: Point, distance: float) -> Point:
    """The point at a distance from start on the way to end."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    return start[0] + dx / length * distance, start[1] + dy / length * distance


def _color(tone: Tone) -> str:
    return f"var(--{'line' if tone == 'plain' else tone})"


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
