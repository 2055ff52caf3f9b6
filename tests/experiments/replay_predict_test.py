"""experiments/replay: what is expected of each row, and what the records say of it and of the claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from experiments.tiny_replay import tiny_profile
from gradwire.plan import layer_profile
from replay import predict, rows, run, verdict

FOLDER = Path(run.__file__).parent


def efficiency(row: str, mode: str = "overlap") -> float:
    return predict.of(rows.parse(row), mode).efficiency


@pytest.mark.parametrize(
    ("row", "least", "most"),
    [
        ("gradwire-none-8w1s-10gbit", 0.58, 0.589),  # the wire's limit
        ("gradwire-none-8w2s-10gbit", 0.98, 1.0),
        ("gradwire-2bit-peers8-1gbit", 0.99, 1.0),
        ("mxnet-none-8w2s-10gbit", 0.54, 0.56),  # a simulation apart from this one: 55.2 %
        ("mxnet-none-8w4s-10gbit", 0.92, 0.94),  # 93.2 %
        ("openmpi-none-peers8-1gbit", 0.243, 0.2472),  # 24.7 %: forward waits for the front layer, the last
    ],
)
def test_what_is_expected_lies_where_others_have_found_it(row: str, least: float, most: float) -> None:
    assert least <= efficiency(row) <= most


def test_gloo_waits_for_the_buckets_that_backward_leaves() -> None:
    # At 1 Gbit the wire is busy for 8.11 s, nearly from the start of backward on, and forward, a third, waits for that.
    compute = layer_profile.find("vgg16").compute_seconds
    expected = compute / (8.113 + compute / 3)
    assert efficiency("gloo-none-peers8-1gbit", "drain") == pytest.approx(expected, rel=0.01)


def test_ddps_buckets_are_layers_that_are_ready_with_their_last() -> None:
    model = tiny_profile()
    bucketed = predict.bucketed(model)
    assert [layer.elements for layer in bucketed.layers] == [300_560, 700_001]  # the last is the first MiB
    assert bucketed.compute_seconds == pytest.approx(model.compute_seconds)


def test_every_row_of_the_table_is_predicted_in_every_way_that_it_takes_steps() -> None:
    found = predict.of_rows(rows.TABLE)
    expected = [(row.name, mode == "overlap") for row in rows.TABLE for mode in row.modes]
    assert [(one.row, one.overlap_step) for one in found] == expected
    for one in found:
        assert 0 < one.efficiency <= one.bound + 1e-9, one
    assert predict.of_rows([rows.parse("gradwire-none-2w1s-loopback")]) == []


def test_committed_predictions_are_of_the_table_and_of_the_committed_calibration() -> None:
    written = json.loads((FOLDER / predict.FILE).read_text())
    assert written["calibration_sha256"] == predict.calibration_sha256()
    assert [row["row"] for row in written["rows"]] == [row.name for row in rows.TABLE for _ in row.modes]


def test_predictions_are_made_before_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rows, "TABLE", rows.OURS[:2])
    monkeypatch.setattr("sys.argv", ["run.py", "--predict", "--folder", str(tmp_path)])
    assert run.main() == 0
    assert "| gradwire-none-1w1s-10gbit | drain | " in capsys.readouterr().out
    assert len(predict.read(tmp_path)) == 4
    (tmp_path / "results.json").write_text("[]")
    assert run.main() == 1
    assert "predictions are made before it" in capsys.readouterr().err


def record(row: str, efficiency: float | None, overlap: bool = True, changes: tuple[str, ...] = ()) -> Any:
    found = {"row": row, "system": row.split("-")[0], "overlap_step": overlap, "efficiency": efficiency}
    return {**found, "changes": list(changes)}


RECORDS = [
    record("gradwire-none-8w2s-10gbit", 0.97),
    record("gradwire-none-8w2s-10gbit", 0.81, overlap=False),
    record("gradwire-none-8w4s-10gbit", 0.95),
    record("gradwire-none-8w1s-10gbit", None),  # refused
    record("gradwire-2bit-8w1s-10gbit", 0.5, changes=("scale 20",)),  # a control
    record("mxnet-none-8w2s-10gbit", 0.54),
]
PREDICTIONS = {
    ("gradwire-none-8w2s-10gbit", True): 1.0,
    ("gradwire-none-8w2s-10gbit", False): 0.9,
    ("gradwire-none-8w1s-10gbit", True): 0.58,
    ("gradwire-2bit-8w1s-10gbit", True): 1.0,
    ("mxnet-none-8w2s-10gbit", True): 0.54,
}


def test_the_worst_error_is_named_and_controls_are_none() -> None:
    first, second = verdict.accuracy(RECORDS, PREDICTIONS).splitlines()
    assert first == (
        "Simulator against 2 replayed points of gradwire's rows of vgg16: mean error 6.5 %, worst -10.0 % "
        "(gradwire-none-8w2s-10gbit, drain)."
    )
    assert "1 replayed points of the peers' rows of vgg16: mean error 0.0 %" in second
    assert verdict.accuracy([], PREDICTIONS) == "No replayed point has a prediction beside it."


def test_claims_are_met_missed_or_not_measured() -> None:
    found = {claim.text: claim for claim in verdict.claims(RECORDS, PREDICTIONS)}
    two = found["gradwire-none-8w2s-10gbit, overlap"]
    assert (two.goal, two.figure, two.verdict, two.beside) == (
        ">= 96 %",
        "97.0 %",
        "met by 1.0 points",
        "54.0 %",
    )
    assert found["gradwire-none-8w4s-10gbit, overlap"].verdict == "**missed** by 3.0 points"
    for unmeasured in ("gradwire-none-8w1s-10gbit, overlap", "gradwire-2bit-8w1s-10gbit, overlap"):
        assert found[unmeasured].verdict == "not measured"
    assert found["simulator's worst error, gradwire's rows"].verdict == "**missed** by 5.0 points"
    assert len(found) == len(verdict.GOALS) + 1
    assert {row.name for row in rows.OURS} >= verdict.GOALS.keys()
