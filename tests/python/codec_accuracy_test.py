"""experiments/codec_accuracy: what is run, what is kept of it, and what the tables make of it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from gradwire import compress

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "codec_accuracy"
NAMES = ("arms", "runs", "accuracy_table", "readme", "run")
RECORDER = """
import os, gradwire.result
arm, seed = os.environ["GRADWIRE_COMPRESSION"], int(os.environ["GRADWIRE_SEED"])
if arm == "fp16":
    raise SystemExit("fp16 was told to fail")
gradwire.result.write(accuracy_per_epoch=[0.5, 0.6 + seed / 100], bytes_per_step=1000, steps=7, codec_seconds=0.25)
"""


@pytest.fixture
def modules() -> Iterator[dict[str, ModuleType]]:
    """The experiment's files, which are no package and import each other by their names."""
    before = {name: sys.modules.pop(name, None) for name in NAMES}
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: __import__(name) for name in NAMES}
    finally:
        sys.path.remove(str(FOLDER))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


@pytest.fixture
def one_task(modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task that only writes a record, in place of the three; logs go to tmp_path."""
    runs = modules["runs"]
    script = tmp_path / "record.py"
    script.write_text(RECORDER)
    monkeypatch.setattr(runs, "TASKS", {"task": runs.Task(str(script), "--of this")})
    monkeypatch.setattr(runs, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(runs, "WORKERS", 1)
    for name in ("run", "accuracy_table"):
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
    assert runs.read(file) == [kept]
    left = [(run.arm, run.seed) for run in runs.missing(["task"], ["none", "2bit"], 2, runs.read(file))]
    assert left == [("2bit", 0), ("2bit", 1), ("none", 1)]


def test_a_line_that_is_no_run_is_named(modules: dict[str, ModuleType], one_task: Path) -> None:
    runs, file = modules["runs"], one_task / "results.csv"
    runs.append(file, row(runs, "none", 0, 0.5))
    with file.open("a") as lines:
        lines.write("task,2bit,\n")
    with pytest.raises(ValueError, match=r"results\.csv:3 is not a run .* delete the line"):
        runs.read(file)


def test_runs_are_kept_one_by_one_and_a_failure_is_no_end(
    modules: dict[str, ModuleType], one_task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, run, file = modules["runs"], modules["run"], one_task / "results.csv"
    to_do = list(runs.missing(["task"], ["none", "fp16", "2bit"], 1, []))
    assert run.measure(to_do, file, None) == [runs.Run("task", "fp16", 0)]
    assert [(kept.arm, kept.score, kept.score_per_epoch) for kept in runs.read(file)] == [
        ("none", 0.6, "0.5 0.6"),
        ("2bit", 0.6, "0.5 0.6"),
    ]
    assert "fp16 was told to fail" in capsys.readouterr().err
    assert "fp16 was told to fail" in (one_task / "logs" / "task" / "fp16-seed0.log").read_text()
    left = list(runs.missing(["task"], ["none", "fp16", "2bit"], 1, runs.read(file)))
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
    arms = {arm.name: arm for arm in table.summarise(rows)}
    assert list(arms) == ["none", "bf16", "2bit", "1bit"]
    assert arms["none"].to_base is None
    assert arms["2bit"].to_base.mean == pytest.approx(-0.01)  # seed 2 alone, not the mean of all
    assert arms["2bit"].to_base.low is None
    assert arms["1bit"].to_sixteen_bit.mean == pytest.approx(-0.1 + 0.001 / 3)
    assert (arms["bf16"].bits, arms["1bit"].bits) == (32, 2)
    text = table.markdown("task", rows)
    assert "Behind `none`, by an interval that leaves 0 out: `1bit` by 9.97 (points)." in text
    assert "Not seen to be behind: `bf16`." in text
    assert ElementTree.fromstring(table.draw(rows)).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_higher_loss_is_worse(modules: dict[str, ModuleType], one_task: Path) -> None:
    runs, table = modules["runs"], modules["accuracy_table"]
    scores = {"none": 2.0, "int8": 1.9, "1bit": 2.4}
    rows = [
        row(runs, arm, seed, score + seed / 10, metric="loss")
        for arm, score in scores.items()
        for seed in range(3)
    ]
    text = table.markdown("task", rows)
    assert "leaves 0 out: `1bit` by 0.40 (nats). Not seen to be behind: `int8`." in text


def test_only_what_stands_between_the_marks_is_replaced(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    file = tmp_path / "README.md"
    file.write_text("a\n<!-- x -->\nold\n<!-- end x -->\nb\n")
    modules["readme"].fill("x", "new\nlines", file)
    assert file.read_text() == "a\n<!-- x -->\nnew\nlines\n<!-- end x -->\nb\n"
    with pytest.raises(ValueError, match="lacks the lines <!-- y -->"):
        modules["readme"].fill("y", "", file)


def test_the_readme_has_all_marks(modules: dict[str, ModuleType]) -> None:
    page = (FOLDER / "README.md").read_text()
    for name in ("accuracy",):
        assert f"<!-- {name} -->\n" in page
        assert f"<!-- end {name} -->" in page


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
