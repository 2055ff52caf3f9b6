"""experiments/server_cost: its page has its results, and its cells are commands of the bench."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from python.experiment_files import load

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "server_cost"
cost = load(FOLDER / "run.py")


def test_the_page_has_the_table_of_the_results() -> None:
    file = FOLDER / "results.json"
    page = (FOLDER / "README.md").read_text()
    wanted = cost.markdown(json.loads(file.read_text())) if file.exists() else "**Not measured yet**"
    assert wanted in page


def test_a_cell_is_measured_and_joins_those_of_before(tmp_path: Path) -> None:
    before = {"codec": "2bit", "workers": 4, "records": [record("gradwire", 0.25), record("mxnet", 0.5)]}
    (tmp_path / "results.json").write_text(json.dumps([before]))
    words = ["--codec", "2bit", "--workers", "16", "--repeat", "1", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    old, new = json.loads((tmp_path / "results.json").read_text())
    assert old == before
    assert (new["codec"], new["workers"]) == ("2bit", 16)
    (row,) = new["records"]
    assert 0 < row["server_cpu_seconds_per_gb"] < row["cpu_seconds_per_gb"]
    table = done.stdout[done.stdout.index("| codec") :].splitlines()
    assert [line.split("|")[1:3] for line in table[2:]] == [
        [" 2bit ", " gradwire 2bit "],
        [" 2bit ", " mxnet 2bit "],
    ]
    assert table[2].split("|")[5].strip() == "0.250"


def record(system: str, seconds: float) -> dict[str, object]:
    return {"system": system, "codec": "2bit", "server_cpu_seconds_per_gb": seconds}
