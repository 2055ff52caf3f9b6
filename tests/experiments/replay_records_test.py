"""experiments/replay: what a record is of, what replaces it, and which table it stands in."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments.tiny_replay import IDLE, Meter, of_row, tiny_plan, tiny_profile
from gradwire.plan import layer_profile
from replay import figures, launches, records, rows, run
from replay.cpu import Load
from replay.plan import Plan, ReplayFailed, default
from replay.scale import Scale

TWO = "gradwire-none-8w2s-10gbit"
BUSY = Load(mean=0.9, core=0.99, process=0.5, process_name="python", window_seconds=1.0)


def asked(monkeypatch: pytest.MonkeyPatch, *options: str, row: str = TWO) -> Plan:
    """Returns what the command makes of a row and its options."""
    monkeypatch.setattr(sys, "argv", ["run.py", *options])
    return run.plan(rows.parse(row), run.arguments(), None)


def test_a_record_has_a_figure_or_the_reason_for_none() -> None:
    plan = tiny_plan("gloo-none-peers2-10gbit", cpu_limit=0.7)
    (good,) = of_row(plan, Meter())
    assert good["efficiency"] == pytest.approx(0.12 / 0.2)
    assert good["refused"] is None
    assert good["waited_seconds"] == {"front": 0.1, "second": 0.0, "middle": 0.0, "back": 0.2}
    assert (good["cpu_share"], good["busiest_core"]) == (0.1, 0.1)
    (bad,) = of_row(plan, Meter(BUSY))
    assert (bad["efficiency"], bad["step_seconds"]) == (None, None)
    assert "90% busy" in bad["refused"]


def test_bytes_that_by_passed_the_links_are_noticed() -> None:
    plan = tiny_plan("gloo-none-peers2-10gbit")
    expected = 3 * records.expected_bytes(plan)
    assert of_row(plan, Meter(link=1.05 * expected))
    with pytest.raises(ReplayFailed, match="bytes a step left a worker's host"):
        of_row(plan, Meter(link=0.9 * expected))


def test_bytes_that_are_not_the_formulas_are_noticed() -> None:
    plan = tiny_plan("gradwire-none-2w1s-10gbit")
    each = 3 * records.expected_bytes(plan) / 2
    assert of_row(plan, Meter(), sent=each)
    with pytest.raises(ReplayFailed, match="a worker sent"):
        of_row(plan, Meter(), sent=1.1 * each)


def test_expected_bytes_are_those_of_frames_divided() -> None:
    plan = default(rows.parse(TWO), layer_profile.find("vgg16"))
    each = records.expected_bytes(plan) / 8
    pieces = sum(len(key.pieces) for key in plan.cut.all_keys() if 16 not in key.tensors)
    full = 4 * plan.profile.elements + 112 * pieces
    assert each == pytest.approx(full / 100, rel=1e-3)


def test_what_the_table_is_of_has_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in rows.TABLE:
        assert asked(monkeypatch, row=row.name).changes == ()
    assert asked(monkeypatch).steps == 3
    assert asked(monkeypatch, row=f"{TWO}-resnet50").steps == 17  # 6 s


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--scale", "20"), "scale 20"),
        (("--in-order",), "in order"),
        (("--queue", "100"), "queues of 100 ms"),
        (("--credit", "1GB"), "credit 1000000000 B"),
        (("--partition", "4MiB"), "partition 4194304 B"),
        (("--steps", "1"), "1 steps"),
        (("--rounds", "0"), "0 rounds"),
        (("--cpu-limit", "1"), "CPU limit 1"),
    ],
)
def test_what_is_changed_is_in_label_and_key(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    plan = asked(monkeypatch, *options)
    assert plan.changes == (said,)
    [changed] = of_row(plan, Meter(), rounds=(1.4, 1.4))
    [plain] = of_row(asked(monkeypatch), Meter(), rounds=(1.4, 1.4))
    assert run.key_of(changed) != run.key_of(plain)
    assert figures.line(changed).startswith(f"{TWO}, overlap, {said}: ")
    assert figures.line(plain).startswith(f"{TWO}, overlap: ")


def test_another_profile_is_a_change_even_under_the_models_own_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    same, other = tmp_path / "same.json", tmp_path / "other.json"
    model = layer_profile.find("vgg16")
    same.write_text(layer_profile.text_of(model))
    renamed = replace(model.layers[0], name="conv")
    other.write_text(layer_profile.text_of(replace(model, layers=(renamed, *model.layers[1:]))))
    assert asked(monkeypatch, "--profile", str(same)).changes == ()
    [said] = asked(monkeypatch, "--profile", str(other)).changes
    assert said.startswith("profile vgg16 ")


def known_as(*found: dict[str, Any]) -> dict[run.Key, dict[str, Any]]:
    known: dict[run.Key, dict[str, Any]] = {}
    for record in found:
        run.keep(known, record)
    return known


def test_a_refused_rerun_replaces_no_good_record() -> None:
    plan = default(rows.parse(TWO), layer_profile.find("vgg16"))
    [good] = of_row(plan, Meter(), rounds=(1.4, 1.4))
    [refused] = of_row(plan, Meter(BUSY), rounds=(1.4, 1.4))
    [without_rounds] = of_row(plan, Meter(rounds=BUSY), rounds=(1.4, 1.4))
    [better] = of_row(plan, Meter(), step=2.5, rounds=(1.4, 1.4))
    assert refused["refused"]
    assert without_rounds["round_seconds"] is None
    for bad in (refused, without_rounds):
        assert list(known_as(good, bad).values()) == [good]
        assert list(known_as(bad, good).values()) == [good]
    assert list(known_as(refused, without_rounds).values()) == [without_rounds]
    assert list(known_as(good, better).values()) == [better]


def test_the_command_says_that_it_keeps_the_record_of_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = default(rows.parse(TWO), tiny_profile())
    taken = [of_row(plan, Meter(load), rounds=(1.4, 1.4)) for load in (IDLE, BUSY)]
    monkeypatch.setattr(launches, "run", lambda plan, say: taken.pop(0))
    monkeypatch.setattr(sys, "argv", ["run.py", "--row", TWO, "--folder", str(tmp_path)])
    assert [run.main(), run.main()] == [0, 1]
    assert "the record of before is kept" in capsys.readouterr().err
    [record] = json.loads((tmp_path / "results.json").read_text())
    assert record["efficiency"] is not None


def test_controls_stand_in_tables_of_their_own_under_what_is_changed(tmp_path: Path) -> None:
    plan = default(rows.parse(TWO), layer_profile.find("vgg16"))
    control = replace(plan, scale=Scale(100, credit_bytes=10**9), in_order=True)
    [plain] = of_row(plan, Meter(), step=2.4, rounds=(1.41, 1.41))
    [other] = of_row(control, Meter(), step=4.8, rounds=(1.44, 1.44))
    text = figures.markdown([plain, other], {(TWO, True): 0.9})
    table, controls = text.split("Controls:")
    assert "| overlap | **91.0 %** | 90.0 % | +1.1 % |" in table
    assert f"| {TWO} | 1.410 |" in table
    assert "1.440" not in table
    assert "| overlap, in order, credit 1000000000 B | **45.5 %** | - | - |" in controls
    assert f"| {TWO}, in order, credit 1000000000 B | 1.440 |" in controls
    figures.write(tmp_path, [plain, other])
    assert "45.5" not in (tmp_path / "results.svg").read_text()
    assert "in order; credit 1000000000 B" in (tmp_path / "results.csv").read_text()


def test_records_of_the_table_come_in_its_order() -> None:
    one, two = (of_row(tiny_plan(name), Meter())[0] for name in ("gradwire-none-1w1s-10gbit", TWO))
    odd = of_row(tiny_plan("gradwire-none-3w1s-10gbit"), Meter())[0]
    assert run.sorted_records(known_as(odd, two, one)) == [one, two, odd]
