"""The page: self-contained, complete, well-formed, and its charts drawn to scale."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from gradwire.ab.experiment import Run
from gradwire.ab.names import arm_name
from gradwire.ab.report import page, summary_rows, write_page
from gradwire.ab.summary import Outcome, summarise
from gradwire.report.chart import (
    Axis,
    Bar,
    Crossing,
    Panel,
    Series,
    line_chart,
    linear_ticks,
    panel_chart,
    standalone,
)
from gradwire.report.page import prose, table
from gradwire.result import RunResult

ARMS = ("none", "2bit:threshold=auto", "2bit:threshold=auto,reply=2bit", "<script>alert(1)</script>")
FACTS = {"command": "gradwire ab -n 2 -- python t.py & <b>", "machine": "cpu X", "link": "unshaped"}


def experiment(seeds: int = 3, bytes_known: bool = True) -> Outcome:
    runs = []
    for number, arm in enumerate(ARMS):
        for seed in range(seeds):
            record = RunResult(
                "accuracy",
                (0.5, 0.8 + 0.001 * seed, 0.9 + 0.002 * seed - 0.001 * number),
                tuple(10.0 / (number + 1) * (epoch + 1) for epoch in range(3)),
                images_per_second=1000.0 * (number + 1),
                bytes_per_step=1e6 / (number + 1) if bytes_known else None,
                steps=100,
                codec_seconds=0.1 * number,
            )
            runs.append(Run(arm, seed, record, 31.0))
    return summarise(runs, ARMS, None, "100mbit")


class Checker(HTMLParser):
    """Collects what a page refers to, and checks that every element is closed in order."""

    VOID = frozenset({"meta", "br", "link", "img", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.references: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


def test_page_is_self_contained_and_complete() -> None:
    found = experiment()
    text = page(found, FACTS, "the link is NOT shaped")
    checker = checked(text)
    assert checker.references == []
    assert "script" not in checker.seen
    assert "link" not in checker.seen
    assert not re.search(r"https?://|@import|url\(", text)
    for arm in ARMS:
        assert checker.text.count(arm_name(arm)) >= 4  # legend, both tables, conclusions or record
    words = checker.text.replace("\xa0", " ")
    assert found.headline in words
    for text in found.conclusions:
        assert text in words
    assert "the link is NOT shaped" in checker.text
    assert FACTS["command"] in checker.text
    assert checker.seen.count("figure") == 2
    assert "0 us" not in checker.text
    order = [found.headline, "Accuracy against time", "Accuracy against bytes", "Means over", "How this was"]
    places = [words.index(text) for text in order]
    assert places == sorted(places)


def test_page_without_bytes_says_so() -> None:
    text = checked(page(experiment(bytes_known=False), FACTS)).text
    assert "a record has no bytes" in text


def test_page_of_one_seed_and_of_one_arm() -> None:
    checked(page(experiment(seeds=1), FACTS))
    record = RunResult("loss", (2.0,))
    found = summarise([Run("none", 0, record, 5.0)], ["none"], None, "unshaped")
    assert "Nothing to compare" in checked(page(found, FACTS)).text


def test_write_page(tmp_path: Path) -> None:
    path = write_page(tmp_path / "deep/report", experiment(), FACTS)
    assert path == tmp_path / "deep/report/index.html"
    assert path.read_text().startswith("<!doctype html>")


def test_summary_rows_by_hand() -> None:
    titles, rows = summary_rows(experiment())
    assert len(titles) == len(rows[0]) == len(rows[3])
    row = dict(zip(titles, rows[1], strict=True))
    assert row["difference to no compression"] == "-0.10 [-0.10, -0.10] points"
    assert row["time to 89 %"] == "14 s"  # a difference of 0.10 points leaves no arm out
    assert (row["times sooner"], rows[0][3]) == ("2x [2x, 2x]", "29 s")
    assert row["speed"] == "2x [2x, 2x]"
    assert (row["bytes/step"], row["fewer bytes"]) == ("500 KB", "2.0x")
    assert rows[0][2] == "-"


SERIES = [
    Series("a", (1.0, 2.0), (0.2, 0.4), (0.1, 0.3), (0.3, 0.5)),
    Series("b", (1.0, 3.0), (0.2, 0.6), (0.2, 0.6), (0.2, 0.6)),
]


def points(svg: str, tag: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(rf'<{tag} points="([^"]*)"', svg)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in lines]


def test_line_chart_is_to_scale() -> None:
    svg = line_chart(SERIES, "time", "accuracy", str, str, (0.3, "target"))
    ElementTree.fromstring(svg)
    (a0, a1), (b0, b1) = points(svg, "polyline")
    assert a0 == b0
    assert (b1[0] - b0[0]) == pytest.approx(2 * (a1[0] - a0[0]), abs=0.2)
    assert (b0[1] - b1[1]) == pytest.approx(2 * (a0[1] - a1[1]), abs=0.2)  # up is less in SVG
    band = points(svg, "polygon")[0]
    assert len(band) == 4
    assert min(y for _, y in band) < a1[1] < max(y for _, y in band)


def test_a_crossing_leads_down_to_the_axis_and_texts_keep_apart() -> None:
    near = [Crossing(0, 1.0, "1.0 s"), Crossing(1, 1.1, "1.1 s"), Crossing(1, 3.0, "3.0 s, at the end")]
    svg = line_chart(SERIES, "time", "accuracy", str, str, (0.3, "target"), crossings=near)
    ElementTree.fromstring(svg)
    lines = re.findall(r'<path d="M([\d.]+) ([\d.]+)V([\d.]+)"', svg)
    ((x, y), _), _ = points(svg, "polyline")
    assert float(lines[0][0]) == pytest.approx(x, abs=0.2)
    assert {float(top) for _, top, _ in lines} != {y}
    assert len({(top, bottom) for _, top, bottom in lines}) == 1
    heights = [float(re.search(rf'y="([\d.]+)"[^>]*>{each.text}<', svg)[1]) for each in near]  # type: ignore[index]
    assert heights[0] == heights[2]
    assert heights[1] == heights[0] - 17
    assert re.search(r'text-anchor="end"[^>]*>3.0 s, at the end<', svg)  # it would leave the chart


def test_an_axis_may_have_other_words_than_its_points() -> None:
    svg = line_chart(SERIES, "seconds", "accuracy", lambda x: f"{x:g} s", str, x_tick=lambda x: f"{x:g}")
    assert ">0<" in svg
    assert "at 2 s</title>" in svg


def test_a_fitted_table_names_each_cell_for_phones() -> None:
    text = table(["arm", "time to 74 %"], [["2bit:reply=2bit", "6 s\n[5, 7]"], ["none", "-"]], fitted=True)
    assert '<td data-title="time to 74 %"><span>6 s<small>[5, 7]</small></span></td>' in text
    assert "2bit:<wbr>reply=2bit" in text
    assert 'class="empty"' in text


def test_a_number_keeps_its_unit_on_its_line() -> None:
    assert prose("at 74 % after 6.2 s & 4.8 times") == "at 74&nbsp;% after 6.2&nbsp;s &amp; 4.8&nbsp;times"


def test_line_chart_goes_logarithmic_only_where_it_must() -> None:
    far = [*SERIES, Series("c", (30.0, 60.0), (0.2, 0.4), (0.2, 0.4), (0.2, 0.4))]
    assert "logarithmic" not in line_chart(SERIES, "time", "accuracy", str, str)
    assert "logarithmic" in line_chart(SERIES, "time", "accuracy", str, str, logarithmic=True)
    svg = line_chart(far, "time", "accuracy", str, str)
    assert "logarithmic" in svg
    curve = points(svg, "polyline")
    assert curve[2][1][0] - curve[2][0][0] == pytest.approx(
        curve[0][1][0] - curve[0][0][0], abs=0.2
    )  # both x 2


def test_a_legend_names_every_curve_within_the_chart() -> None:
    many = [
        Series(f"a rather long name {i}", (1.0, 2.0), (0.2, 0.4), (0.2, 0.4), (0.2, 0.4)) for i in range(9)
    ]
    svg = ElementTree.fromstring(line_chart(many, "x", "y", str, str, legend=True))
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    texts = [text for text in svg.iter("text") if (text.text or "").startswith("a rather")]
    assert [text.text for text in texts] == [row.name for row in many]
    for text in texts:
        assert float(text.attrib["x"]) < width - 100
        assert float(text.attrib["y"]) < height


def test_constant_curve_is_drawn() -> None:
    flat = [Series("a", (1.0,), (0.5,), (0.5,), (0.5,))]
    ElementTree.fromstring(line_chart(flat, "x", "y", str, str))


def test_panels_are_to_scale_each_on_its_own_axis_and_stand_alone() -> None:
    first = Panel("1 < 2", (Bar("a", 10.0, (9.0, 20.0), 5.0, "x"), Bar("b", 5.0, colour=1), Bar("c", None)))
    svg = standalone(panel_chart([first, Panel("far", (Bar("d", 0.001),))], str))
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    widths = [float(width) for width in re.findall(r'<rect [^>]*? width="([\d.]+)"', svg)]
    assert len(widths) == 3
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert widths[2] == pytest.approx(2 * widths[0], abs=0.2)  # alone on its axis, where a's spread has none
    (tick,) = re.findall(r'<path d="M([\d.]+) [\d.]+h6m-3', svg)
    assert float(tick) + 3 - 27 == pytest.approx(widths[1], abs=0.2)
    assert "10.0, x" in svg
    assert "not measured" in svg


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), (63.0, 91.0, [65, 70, 75, 80, 85, 90])],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert linear_ticks(low, high, 8) == pytest.approx(ticks)


def test_logarithmic_ticks() -> None:
    assert Axis(3.0, 60.0, 0, 1, True).ticks() == pytest.approx([5.0, 10.0, 20.0, 50.0])
