"""experiments/plan_predictions: a cell whole, what a stopped run goes on with, the summary, and the fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from integration.hosts import needs_hosts
from python.experiment_files import imported

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "plan_predictions"
RUN = FOLDER / "run.py"
_SECONDS = 600.0  # on a busy machine


@pytest.fixture
def files() -> Iterator[dict[str, ModuleType]]:
    with imported(FOLDER, ("run", "summary")) as modules:
        yield modules


def cell(files: dict[str, Any], **changes: Any) -> Any:
    """Of a step of 1 s, predicted to within 4 %, steady."""
    plain = files["summary"].Cell(
        *("mlp", "1gbit", "2bit", "peers", 2**20, 2**18),
        *(0.96, 0.95, 1.2),  # predicted, and its interval
        *(20, 1.0, 0.97, 1.03, 0.1, 0.2),
    )
    return replace(plain, **changes)


def test_there_are_72_cells_with_a_name_each(files: dict[str, Any]) -> None:
    names = list(map(str, files["run"].NAMES))
    assert len(names) == len(set(names)) == 3 * 3 * 4 * 2
    assert {"lenet-100mbit-none-servers", "transformer-10gbit-2bit-peers"} <= set(names)


def test_steps_are_seconds_long_and_ten_at_least(files: dict[str, Any]) -> None:
    run = files["run"]
    assert run.steps_for(10.0) == run.FEWEST_STEPS == 10
    assert run.steps_for(0.1) == 45
    assert run.steps_for(1.0) == 10
    assert run.steps_for(1e-3) == run.MOST_STEPS
    for step in (0.01, 0.05, 0.3, 1.0):
        assert 4 <= step * run.steps_for(step) <= 12


def test_a_cell_comes_back_from_its_line(files: dict[str, Any]) -> None:
    one = cell(files)
    row = one.row()
    assert tuple(row) == files["summary"].COLUMNS
    assert (row["error"], row["spread"], row["within"]) == ("-0.04", "0.06", "yes")
    assert files["summary"].Cell.of_row(row) == one


def test_the_summary_judges_steady_cells_alone(files: dict[str, Any]) -> None:
    cells = [
        cell(files),
        cell(files, codec="none", predicted=0.98),
        cell(files, model="lenet", predicted=0.9, high=0.99),  # its measured step is not within
        cell(files, bandwidth="10gbit", predicted=0.1, slow=1.2),  # varied too much
    ]
    text = files["summary"].markdown(cells)
    assert text.startswith("4 cells measured, 3 of them steady")
    assert "| all | 3 | 4.0% | -4.0% | 67% |" in text
    assert "| lenet | 1 | 10.0% | -10.0% | 0% |" in text
    assert "| 10gbit | 0 |  |  |  |" in text
    assert "a median error under 5% is met (4.0%)" in text
    assert "within their interval is **missed** (67%)" in text
    assert text.splitlines()[-1].endswith("| -90.0% | not judged |")
    assert text.splitlines()[-2].endswith("| -10.0% | **no** |")
    assert "Goals: nothing to judge." in files["summary"].markdown([cells[-1]])


def test_factors_are_fitted_on_the_other_models_and_judged_on_the_one_left_out(files: dict[str, Any]) -> None:
    summary = files["summary"]

    def predict(one: Any, factors: Any) -> float:
        """Half a second of compute, the rest of codecs; links do not matter."""
        return float(0.5 + factors.costs * (one.predicted - 0.5))

    doubled = [cell(files, model=model, predicted=0.75) for model in ("lenet", "mlp")]
    free = cell(files, model="transformer", predicted=1.0)
    wild = cell(files, model="transformer", predicted=0.1, slow=2.0)
    assert summary.fitted(doubled, predict) == summary.Factors(2.0, 1.0)
    assert summary.fitted([free, wild], lambda one, _: one.predicted) == summary.Factors()
    found = summary.folds([*doubled, free, wild], predict)
    assert [(fold.left_out, fold.cells) for fold in found] == [("lenet", 1), ("mlp", 1), ("transformer", 1)]
    assert found[2].factors == summary.Factors(2.0, 1.0)
    assert (found[2].before, found[2].after) == (0.0, 0.5), "worse on what it was not fitted on"
    text = summary.fit_table(found)
    assert "| transformer | 1 | x 2 | x 1 | 0.0% | 50.0% |" in text
    assert text.endswith("Factors fitted on the other models predict 0 of 3 models better than 1 does.")
    assert summary.folds(doubled[:1], predict) == []
    assert summary.fit_table([]).startswith("Nothing to fit: expected steady cells of two models")


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    chosen = ["--folder", str(folder), "--cells", "lenet-1gbit-2bit-peers", *words]
    return subprocess.run(
        [sys.executable, str(RUN), *chosen], capture_output=True, text=True, timeout=_SECONDS, check=False
    )


@needs_hosts
def test_the_whole_chain_of_one_cell(tmp_path: Path, files: dict[str, Any]) -> None:
    done = command(tmp_path, "--steps", "4")
    assert done.returncode == 0, done.stderr
    run = files["run"]
    (found,) = run.read(tmp_path / "results.csv").values()
    assert (found.name, found.steps) == ("lenet-1gbit-2bit-peers", 4)
    assert 0 < found.low <= found.predicted <= found.high
    assert 0 < found.fast <= found.measured <= found.slow
    assert done.stdout.startswith("1 cells measured")
    profile = json.loads((tmp_path / "profiles" / "lenet.json").read_text())
    assert profile["machine"]["workers"] == 2
    assert json.loads((tmp_path / "calibration.json").read_text())["byte_seconds"] > 0
    assert json.loads((tmp_path / "machine.json").read_text())["seed"] == 0

    again = command(tmp_path)
    assert again.stdout == done.stdout
    assert again.stderr == "", "nothing is missing, so nothing is measured"
    asked = run.Run(tmp_path, 0, None, tmp_path / "calibration.json")
    predicted = run.predict_with(asked, found, files["summary"].Factors())
    assert predicted == pytest.approx(found.predicted, rel=1e-5), "the fit begins at what plan says"
    slower = run.predict_with(asked, found, files["summary"].Factors(costs=3.0))
    assert slower >= predicted
    assert command(tmp_path, "--fit").returncode == 0


def test_what_is_measured_again_is_forgotten_with_a_profile_that_no_other_cell_has(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    run = files["run"]
    asked = run.Run(tmp_path, 0, None, tmp_path / "calibration.json")
    names = [name for name in run.NAMES if str(name).startswith(("mlp-1gbit-2bit-peers", "lenet-1gbit-2bit"))]
    cells = {str(name): cell(files, **vars(name)) for name in names}
    for model in ("mlp", "lenet"):
        asked.profile(model).parent.mkdir(exist_ok=True)
        asked.profile(model).touch()
    run.write(tmp_path, cells, 0)
    run.forget(asked, [name for name in names if name.placement == "peers"], cells)
    assert list(run.read(tmp_path / "results.csv")) == list(cells) == ["lenet-1gbit-2bit-servers"]
    assert not asked.profile("mlp").exists()
    assert asked.profile("lenet").exists(), "the other cell was predicted from it"


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    none = command(tmp_path, "--tables")
    assert none.returncode == 1
    assert "has no results.csv yet" in none.stderr
    few = command(tmp_path, "--steps", "1")
    assert few.returncode == 2
    assert "expected 2 or more" in few.stderr
    unknown = subprocess.run(
        [sys.executable, str(RUN), "--cells", "vgg"],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert unknown.returncode == 2
    assert "no cell begins so" in unknown.stderr


@pytest.mark.parametrize(
    ("model", "elements"), [("lenet", 431_080), ("mlp", 10_020_874), ("transformer", 7_963_264)]
)
def test_the_networks_have_the_parameters_that_they_say(model: str, elements: int) -> None:
    torch = pytest.importorskip("torch")
    with imported(FOLDER, ("train",)) as modules:
        chosen = modules["train"].MODELS[model]
        network = chosen.make()
        assert sum(parameter.numel() for parameter in network.parameters()) == elements
        inputs, targets = chosen.batch(2)
        assert torch.nn.functional.cross_entropy(network(inputs).flatten(0, -2), targets.flatten()).isfinite()


def test_the_page_has_the_tables_of_the_committed_results(files: dict[str, Any]) -> None:
    cells = list(files["run"].read(FOLDER / "results.csv").values())
    answer = files["summary"].markdown(cells) if cells else "Not measured yet."
    assert answer in (FOLDER / "README.md").read_text()
