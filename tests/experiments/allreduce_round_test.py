"""experiments/allreduce_round: its rows, its claims, and one small row that is really run."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from python.experiment_files import load

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "allreduce_round"


figures = load(FOLDER / "figures.py")


def record(label: str, seconds: float, **more: Any) -> dict[str, Any]:
    ours = label.startswith("gradwire")
    fixed = {"store": "allreduce" if ours else None, "codec": "none", "reply": "none", "fused": None}
    return (
        {"label": label, "seconds_median": seconds, "wire_limit_seconds": 1.0, "payload_checksum": None}
        | fixed
        | more
    )


@pytest.mark.parametrize(("seconds", "holds"), [(1.02, True), (1.03, False)])
def test_a_claim_against_the_limit(seconds: float, holds: bool) -> None:
    claim = figures.Claim("row", "none", "none", "limit", 1.02)
    rows = [
        record("gradwire allreduce none", seconds),
        record("gloo", 0.5),
        record("gradwire dist_sync none", 9),
    ]
    rows[2]["store"] = "dist_sync"
    assert list(figures.reached(claim, rows)) == [("gradwire allreduce none", seconds, holds)]


def test_a_claim_against_a_peer_and_against_no_fusion() -> None:
    rows = [
        record("gradwire allreduce none, fused", 2.0, fused=True),
        record("gradwire allreduce none, not fused", 8.0, fused=False),
        record("openmpi, fused", 3.0, fused=True),
    ]
    over_peer = figures.Claim("row", "none", "none", "openmpi, fused", 1, fused=True)
    over_itself = figures.Claim("row", "none", "none", figures.NOT_FUSED, 5, fused=True)
    assert [(ratio, holds) for _, ratio, holds in figures.reached(over_peer, rows)] == [(1.5, True)]
    assert [(ratio, holds) for _, ratio, holds in figures.reached(over_itself, rows)] == [(4.0, False)]


def test_every_claim_is_about_a_row_that_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    rows = load(FOLDER / "run.py").ROWS
    assert {claim.row for claim in figures.CLAIMS} == set(rows)
    for claim in figures.CLAIMS:
        peers = rows[claim.row][rows[claim.row].index("--peer") + 1].split(",")
        assert claim.against in ("limit", figures.NOT_FUSED, *peers, *(f"{peer}, fused" for peer in peers))


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "encrypted"], ids=["plain", "encrypted"])
def test_the_page_has_the_claims_of_the_results(folder: Path) -> None:
    rows = json.loads((folder / "results.json").read_text())
    told = figures.markdown(rows).split("\n\n")[0].splitlines()[2:]
    page = (FOLDER / "README.md").read_text().replace("gradwire allreduce ", "")
    assert told
    for line in told:
        assert line.replace("gradwire allreduce ", "") in page


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_a_row_is_run_and_written(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "run.py"), "--row", "small-2-1gbit", "--folder", str(tmp_path)]
    done = subprocess.run(
        [*command, "--repeat", "1"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "results.json").read_text())
    assert [r["system"] for r in row["records"]] == ["gradwire", "gradwire", "gloo", "openmpi"]
    assert all(r["checksum"] for r in row["records"])
    assert "| small-2-1gbit: gradwire allreduce none, fused | openmpi, fused | >= 1 |" in done.stdout
    assert "not fused" in done.stdout
    with open(tmp_path / "results.csv") as file:
        assert [line["label"] for line in csv.DictReader(file)] == [r["label"] for r in row["records"]]
    assert ElementTree.parse(tmp_path / "results.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
