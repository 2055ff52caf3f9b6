"""experiments/codec_accuracy: what is run, what is kept of it, and what the tables make of it."""

from __future__ import annotations

import csv
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from gradwire import compress
from python.experiment_files import imported

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "codec_accuracy"
NAMES = (
    *("arms", "runs", "simulated", "accuracy_table", "multiples", "relative_error", "sensitivity"),
    "run",
)
RECORDER = """
import os, gradwire.result
arm, seed = os.environ["GRADWIRE_COMPRESSION"], int(os.environ["GRADWIRE_SEED"])
if arm == "fp16":
    raise SystemExit("fp16 was told to fail")
gradwire.result.write(accuracy_per_epoch=[0.5, 0.6 + seed / 100], bytes_per_step=1000, steps=7, codec_seconds=0.25,
    took_compression=True)
"""


@pytest.fixture
def modules() -> Iterator[dict[str, ModuleType]]:
    """The experiment's files, which are no package and import each other by their names."""
    with imported(FOLDER, NAMES) as modules:
        yield modules


@pytest.fixture
def one_task(modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task that only writes a record, in place of the three; logs go to tmp_path."""
    runs = modules["runs"]
    script = tmp_path / "record.py"
    script.write_text(RECORDER)
    monkeypatch.setattr(runs, "TASKS", {"task": runs.Task(str(script), "--of this")})
    monkeypatch.setattr(runs, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(runs, "WORKERS", 1)
    for name in ("run", "accuracy_table", "simulated"):
        monkeypatch.setattr(modules[name], "TASKS", runs.TASKS)
    return tmp_path


def row(runs: Any, arm: str, seed: int, score: float, **more: Any) -> Any:
    whole = runs.Row(
        *("task", arm, seed, "accuracy", score, 2000, 0.5, 7, 10.0, 3.0, 1.0, "abc", "0.5 0.6", "--of this")
    )
    return dataclasses.replace(whole, **more)


# ---------------------------------------------------------------- what is compared


def test_every_codec_of_the_table_is_an_arm(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = modules["arms"]
    every = arms.every_arm()
    assert every[:2] == ["none", "bf16"]
    assert set(every) >= {*compress.list(), "2bit:reply=2bit", "powersgd:rank=4"}
    assert len(every) == len(set(every))
    arms.check(every)
    monkeypatch.setattr(compress, "list", lambda: ["fp16", "none", "bf16", "of tomorrow"])
    assert arms.every_arm() == ["none", "bf16", "fp16", "of tomorrow", "powersgd:rank=4"]


@pytest.mark.parametrize("arm", ["3bit", "topk:rate=1", "powersgd", "powersgd:rank=0", "powersgd:rank=x"])
def test_a_misspelt_arm_is_named(modules: dict[str, ModuleType], arm: str) -> None:
    with pytest.raises(ValueError, match=rf"--arm {arm}: "):
        modules["arms"].check(["none", arm])


# ---------------------------------------------------------------- what is kept, and goes on


def test_a_run_that_is_kept_is_not_done_again(modules: dict[str, ModuleType], one_task: Path) -> None:
    runs, file = modules["runs"], one_task / "results.csv"
    kept = row(runs, "none", 0, 0.5)
    runs.append(file, kept)
    runs.append(file, row(runs, "2bit", 0, 0.5, flags="--of old"))
    assert runs.read(file, runs.Row) == [kept]
    left = [
        (run.arm, run.seed) for run in runs.missing(["task"], ["none", "2bit"], 2, runs.read(file, runs.Row))
    ]
    assert left == [("2bit", 0), ("2bit", 1), ("none", 1)]


def test_a_line_that_is_no_run_is_named(modules: dict[str, ModuleType], one_task: Path) -> None:
    runs, file = modules["runs"], one_task / "results.csv"
    runs.append(file, row(runs, "none", 0, 0.5))
    with file.open("a") as lines:
        lines.write("task,2bit,\n")
    with pytest.raises(ValueError, match=r"results\.csv:3 is not a run .* delete the line"):
        runs.read(file, runs.Row)


def test_runs_are_kept_one_by_one_and_a_failure_is_no_end(
    modules: dict[str, ModuleType], one_task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, run, file = modules["runs"], modules["run"], one_task / "results.csv"
    to_do = list(runs.missing(["task"], ["none", "fp16", "2bit"], 1, []))
    assert run.measure(to_do, file, None) == [runs.Run("task", "fp16", 0)]
    assert [(kept.arm, kept.score, kept.score_per_epoch) for kept in runs.read(file, runs.Row)] == [
        ("none", 0.6, "0.5 0.6"),
        ("2bit", 0.6, "0.5 0.6"),
    ]
    assert "fp16 was told to fail" in capsys.readouterr().err
    assert "fp16 was told to fail" in (one_task / "logs" / "task" / "fp16-seed0.log").read_text()
    left = list(runs.missing(["task"], ["none", "fp16", "2bit"], 1, runs.read(file, runs.Row)))
    assert run.measure(left, file, 0.0) == []
    assert "1 runs are left" in capsys.readouterr().err


# ---------------------------------------------------------------- tables


def test_the_table_pairs_by_seed(modules: dict[str, ModuleType], one_task: Path) -> None:
    runs, table = modules["runs"], modules["accuracy_table"]
    rows = [row(runs, "none", seed, 0.80 + seed / 100, bytes_per_step=4000) for seed in range(3)]
    rows += [row(runs, "bf16", seed, 0.80 + seed / 100) for seed in range(3)]
    rows += [
        row(runs, "1bit", seed, 0.70 + seed / 100 + seed % 2 / 1000, bytes_per_step=125) for seed in range(3)
    ]
    rows += [row(runs, "2bit", 2, 0.81)]
    (measured,) = table.by_task(rows, [])
    arms = {arm.name: arm for arm in table.summarise(measured)}
    assert list(arms) == ["none", "bf16", "2bit", "1bit"]
    assert arms["none"].to_base is None
    assert arms["2bit"].to_base.mean == pytest.approx(-0.01)  # seed 2 alone, not the mean of all
    assert arms["2bit"].to_base.low is None
    assert arms["1bit"].to_sixteen_bit.mean == pytest.approx(-0.1 + 0.001 / 3)
    assert (arms["bf16"].bits, arms["1bit"].bits) == (32, 2)
    text = table.markdown(measured)
    assert "Behind `none`, by an interval that leaves 0 out: `1bit` by 9.97 (points)." in text
    assert "Not seen to be behind: `bf16`." in text
    assert ElementTree.fromstring(table.draw([measured])).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_higher_loss_is_worse(modules: dict[str, ModuleType], one_task: Path) -> None:
    runs, table = modules["runs"], modules["accuracy_table"]
    scores = {"none": 2.0, "int8": 1.9, "1bit": 2.4}
    rows = [
        row(runs, arm, seed, score + seed / 10, metric="loss")
        for arm, score in scores.items()
        for seed in range(3)
    ]
    (measured,) = table.by_task(rows, [])
    text = table.markdown(measured)
    assert "leaves 0 out: `1bit` by 0.40 (nats). Not seen to be behind: `int8`." in text


def test_scores_are_of_simulated_workers_where_there_are_any(
    modules: dict[str, ModuleType], one_task: Path
) -> None:
    runs, table, simulated = modules["runs"], modules["accuracy_table"], modules["simulated"]
    jobs = [
        row(runs, "none", 0, 0.10, bytes_per_step=4000),
        row(runs, "int8", 0, 0.20, bytes_per_step=1000),
        row(runs, "qsgd", 0, 0.30, weights="def"),
    ]
    own = [
        simulated.Simulated("task", arm, seed, "accuracy", 0.8 - seed / 100, "abc", 10.0, "--of this")
        for arm in ("none", "int8", "qsgd", "fp8")
        for seed in range(2)
    ]
    file = one_task / "simulated.csv"
    for run in own:
        runs.append(file, run)
    (measured,) = table.by_task(jobs, runs.read(file, simulated.Simulated))
    arms = {arm.name: arm for arm in table.summarise(measured)}
    assert {name: (arm.score, arm.seeds, arm.same_weights) for name, arm in arms.items()} == {
        "none": (pytest.approx(0.795), 2, True),
        "int8": (pytest.approx(0.795), 2, True),
        "qsgd": (pytest.approx(0.795), 2, False),
        "fp8": (pytest.approx(0.795), 2, None),
    }
    assert (arms["int8"].bits, arms["fp8"].bits, arms["fp8"].codec_seconds) == (16, None, None)
    assert "3 jobs of 7 steps" in table.markdown(measured)
    assert "8 simulated runs" in table.markdown(measured)


def test_no_simulated_run_starts_when_the_minutes_are_over(
    modules: dict[str, ModuleType], one_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated, kept = modules["simulated"], []
    monkeypatch.setattr(simulated, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    monkeypatch.setattr(simulated, "processors", lambda: 2)
    monkeypatch.setattr(simulated, "carry_out", lambda run: run)
    to_do = list(modules["runs"].missing(["task"], ["none", "int8", "2bit"], 1, []))
    assert simulated.measure(to_do, 0.0, kept.append) == 1
    assert set(kept) == set(to_do[:2])
    kept.clear()
    assert simulated.measure(to_do, None, kept.append) == 0
    assert set(kept) == set(to_do)


def test_only_what_stands_between_the_marks_is_replaced(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    file = tmp_path / "README.md"
    file.write_text("a\n<!-- x -->\nold\n<!-- end x -->\nb\n")
    fill = modules["run"].readme.fill
    fill("x", "new\nlines", file)
    assert file.read_text() == "a\n<!-- x -->\nnew\nlines\n<!-- end x -->\nb\n"
    with pytest.raises(ValueError, match="lacks the lines <!-- y -->"):
        fill("y", "", file)


def test_the_readme_has_all_marks(modules: dict[str, ModuleType]) -> None:
    page = (FOLDER / "README.md").read_text()
    for name in ("accuracy", "relative error", "sensitivity"):
        assert f"<!-- {name} -->\n" in page
        assert f"<!-- end {name} -->" in page


# ---------------------------------------------------------------- relative error


def test_errors_of_a_step_and_of_all_steps(modules: dict[str, ModuleType]) -> None:
    errors = modules["relative_error"]
    recorder = errors.Recorder("arm", errors.Length(640, 1), {1: ("layer", 2)}, every=2)
    given = [np.float32([3, 0]), np.float32([3, 8])]  # mean (3, 4), of length 5
    for step, received in enumerate(([3, 4], [3, 4 + 5], [0, 0], [6, 3])):
        recorder(step, 0, given, np.float32(received))  # no layer that is asked about
        recorder(step, 1, given, np.float32(received))
    first, second = recorder.points
    assert (first.arm, first.layer, first.step, second.step) == ("arm", "layer", 2, 4)
    assert first.relative_error == pytest.approx((0 + 1) / 2)
    assert first.owed_so_far == pytest.approx((0 + 5 / 10) / 2)
    assert second.relative_error == pytest.approx((1 + 10**0.5 / 5) / 2)
    assert second.owed_so_far == pytest.approx((10**0.5 / 15 + 0) / 2)


def test_nothing_of_nothing_is_no_error(modules: dict[str, ModuleType]) -> None:
    ratio = modules["relative_error"].ratio
    assert ratio(np.zeros(2), np.zeros(2)) == 0
    assert ratio(np.ones(2), np.zeros(2)) == float("inf")


def test_an_arm_that_is_measured_again_replaces_its_points(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    errors, file = modules["relative_error"], tmp_path / "relative_error.csv"
    layer = ("fc.weight", errors.Length(640, 1))
    errors.write(
        file, [errors.Point(arm, *layer, step, 0.5, 0.25) for arm in ("2bit", "int8") for step in (5, 10)]
    )
    errors.write(file, [errors.Point("2bit", *layer, step, 0.75, 0.125) for step in (5, 10)])
    points = errors.read(file)
    assert [(p.arm, p.relative_error) for p in points] == [*[("int8", 0.5)] * 2, *[("2bit", 0.75)] * 2]
    text = errors.markdown(points)
    assert text.index("| `2bit` | 0.75 | 0.12 |") < text.index("| `int8` | 0.5 | 0.25 |")
    assert ElementTree.fromstring(errors.figure(points)).tag == "{http://www.w3.org/2000/svg}svg"


def test_arms_trained_for_another_time_are_not_mixed(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    errors, file = modules["relative_error"], tmp_path / "relative_error.csv"
    short, long = errors.Length(640, 1), errors.Length(1280, 2)
    errors.check_length(file, long, ["2bit"])
    errors.write(file, [errors.Point(arm, "fc.weight", short, 5, 0.5, 0.25) for arm in ("2bit", "int8")])
    errors.check_length(file, short, ["fp8"])
    errors.check_length(file, long, ["int8", "2bit"])  # all that was there is replaced
    with pytest.raises(
        ValueError, match="trained with --limit 640 --num-epochs 1, and --limit 1280 --num-epochs 2"
    ):
        errors.check_length(file, long, ["2bit"])


@pytest.mark.parametrize("seeds", ["0", "-1"])
def test_no_seeds_are_refused(tmp_path: Path, seeds: str) -> None:
    command = [
        sys.executable,
        str(FOLDER / "run.py"),
        "--folder",
        str(tmp_path),
        "--tables",
        "--seeds",
        seeds,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert f"--seeds {seeds} was given, expected 1 or more" in done.stderr


# ---------------------------------------------------------------- sensitivity


def test_every_point_is_planned_once_and_is_not_measured_twice(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    sensitivity, file = modules["sensitivity"], tmp_path / "sensitivity.csv"
    points = list(sensitivity.plan(["none", "2bit"], 2, 640, 1))
    assert len(points) == len(set(points)) == 2 * (5 + 6 + 2 * 5)
    for point in points:
        assert sensitivity.Point.parse({k: str(v) for k, v in dataclasses.asdict(point).items()}) == point
    sensitivity.append(file, points[0], 0.5)
    sensitivity.append(file, points[1], 0.25)
    assert sensitivity.read(file) == {points[0]: 0.5, points[1]: 0.25}


def test_the_sweep_is_of_the_longest_training(modules: dict[str, ModuleType]) -> None:
    sensitivity = modules["sensitivity"]
    results = dict.fromkeys(sensitivity.plan(["none", "2bit"], 1, 640, 1), 0.5)
    results |= {
        point: {1.0: 0.75}.get(point.lr_factor, 0.5) + point.seed / 10
        for point in sensitivity.plan(["none", "2bit"], 2, 6400, 1)
    }
    sweep = sensitivity.summarise(results)
    assert list(sweep.by_factor) == ["none", "2bit"]
    assert sweep.by_factor["2bit"] == pytest.approx({0.25: 55, 0.5: 55, 1.0: 80, 2.0: 55, 4.0: 55})
    assert list(sweep.by_threshold) == [0.01, 0.03, 0.1, 0.3, 1.0]
    assert sweep.by_scale[1.5] == pytest.approx(80)
    assert "| `2bit` | 55.0 | 55.0 | 80.0 | 55.0 | 55.0 | +0.0 |" in sensitivity.markdown(sweep)
    assert "6400 images, 1 epochs, 2 seeds" in sweep.conditions
    for chart in sensitivity.figures(sweep).values():
        assert ElementTree.fromstring(chart).tag == "{http://www.w3.org/2000/svg}svg"


# ---------------------------------------------------------------- the command


def test_refused_arguments_are_one_line() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "--arm", "3bit"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "--arm 3bit: unknown codec 3bit" in done.stderr


@pytest.mark.parametrize("arm", ["powersgd:rank=2", "int8"])
def test_a_real_run(
    modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    runs = modules["runs"]
    monkeypatch.setattr(runs, "LOGS", tmp_path)
    monkeypatch.setattr(runs, "WORKERS", 2)
    flags = "--network lenet --limit 320 --num-epochs 1 --batch-size 16"
    monkeypatch.setitem(runs.TASKS, "lenet", dataclasses.replace(runs.TASKS["lenet"], flags=flags))
    done = runs.carry_out(runs.Run("lenet", arm, 3))
    dense = 431_080 * 4 * 2
    assert (done.arm, done.seed, done.metric, done.steps, done.flags) == (arm, 3, "accuracy", 10, flags)
    assert 0.02 < done.score < 0.9
    assert dense / 100 < done.bytes_per_step < dense / 3
    assert done.codec_seconds > 0
    assert len(done.weights) == 12


# ---------------------------------------------------------------- simulated workers

SIMULATE = """
import sys
sys.path.insert(0, sys.argv[1])
import dataclasses
import runs
runs.WORKERS = 2
task, flags, *arms = sys.argv[2:]
runs.TASKS[task] = dataclasses.replace(runs.TASKS[task], flags=flags)
import simulated
for arm in arms:
    print(simulated.carry_out(runs.Run(task, arm, 3)).weights)
"""


@pytest.mark.parametrize(
    ("task", "network", "arms"),
    [
        ("lenet", "lenet", ("int8", "2bit:reply=2bit")),
        ("resnet8", "resnet8", ("2bit",)),  # batch norms
        ("char_lm", "tiny", ("1bit",)),
    ],
)
def test_simulated_workers_end_with_the_bits_of_a_real_job(
    modules: dict[str, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    network: str,
    arms: tuple[str, ...],
) -> None:
    runs = modules["runs"]
    monkeypatch.setattr(runs, "LOGS", tmp_path)
    monkeypatch.setattr(runs, "WORKERS", 2)
    flags = f"--network {network} --limit 320 --num-epochs 1 --batch-size 16 --threads 1"
    monkeypatch.setitem(runs.TASKS, task, dataclasses.replace(runs.TASKS[task], flags=flags))
    done = subprocess.run(
        [sys.executable, "-c", SIMULATE, str(FOLDER), task, flags, *arms],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [runs.carry_out(runs.Run(task, arm, 3)).weights for arm in arms]


def command(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "--folder", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_relative_error_of_real_training(tmp_path: Path) -> None:
    arms = ("none", "bf16", "topk", "powersgd:rank=4")
    given = [part for arm in arms for part in ("--arm", arm)]
    text = command(tmp_path, "--relative-error", "--limit", "640", "--num-epochs", "1", *given)
    with (tmp_path / "relative_error.csv").open() as file:
        rows = list(csv.DictReader(file))
    layers = {row["layer"] for row in rows}
    assert len(layers) == 4
    assert {(row["arm"], int(row["step"])) for row in rows} == {
        (arm, step) for arm in arms for step in (5, 10)
    }
    last = {(row["arm"], row["layer"]): float(row["relative_error"]) for row in rows if row["step"] == "10"}
    for layer in layers:
        assert last["none", layer] < 1e-6 < last["bf16", layer] < 1e-2 < 0.05 < last["powersgd:rank=4", layer]
        assert last["topk", layer] > 0.5
    assert "| `topk` |" in text
    assert (tmp_path / "relative_error.svg").exists()


def test_a_sensitivity_run_goes_on_with_what_is_left(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    sensitivity, file = modules["sensitivity"], tmp_path / "sensitivity.csv"
    *done, left = sensitivity.plan(["none"], 1, 320, 1)
    for point in done:
        sensitivity.append(file, point, 0.5)
    text = command(tmp_path, "--sensitivity", "--arm", "none", "--limit", "320", "--num-epochs", "1")
    results = sensitivity.read(file)
    assert set(results) == {*done, left}
    assert 0.02 < results[left] < 0.9
    assert "| `none` | 50.0 | 50.0 | 50.0 | 50.0 |" in text
