"""experiments/time_to_accuracy: its arms, its verdict, and DDP's hooks in the training loop, as real jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from gradwire.ab.experiment import Run
from gradwire.ab.summary import summarise
from gradwire.result import RunResult
from gradwire.terminal.machine import netlab_reason
from python.experiment_files import imported
from python.tiny_transformer import TRAIN, train

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "time_to_accuracy"
ADAMW = ("--optimizer", "adamw", "--lr", "0.002", "--wd", "0.01", "--warmup-steps", "5")


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    with imported(FOLDER, ("arm", "verdict", "run")) as modules:
        yield modules


def runs(arm: str, *times: tuple[float, float]) -> list[Run]:
    """A run a seed, which has loss 4, then 2; times: when its epochs ended."""
    return [
        Run(arm, seed, RunResult("loss", (4.0, 2.0), ends, bytes_per_step=1e6, steps=10), ends[-1])
        for seed, ends in enumerate(times)
    ]


def test_an_arm_is_a_codec_or_a_hook(modules: dict[str, ModuleType]) -> None:
    command = modules["arm"].command
    environment = {"GRADWIRE_COMPRESSION": "2bit:reply=2bit"}
    assert command(["t.py", "--lr", "1"], environment)[1:] == ["t.py", "--lr", "1", "--kv-store", "allreduce"]
    assert environment == {"GRADWIRE_COMPRESSION": "2bit:reply=2bit"}
    environment = {"GRADWIRE_COMPRESSION": "DDP PowerSGD"}
    assert command(["t.py"], environment)[-2:] == ["--ddp-hook", "powersgd"]
    assert environment == {}


def test_the_verdict_is_paired_by_seed(modules: dict[str, ModuleType]) -> None:
    run, verdict = modules["run"], modules["verdict"]
    base = runs("DDP", (10.0, 20.0), (20.0, 40.0), (15.0, 30.0))
    half = runs("int8", (5.0, 10.0), (10.0, 20.1), (7.5, 15.0))
    late = runs("2bit", (20.0, 30.0), (40.0, 61.0), (30.0, 45.0))
    never = [
        Run("topk", r.seed, RunResult("loss", (4.0, 3.9), (1.0, 2.0), bytes_per_step=1e4, steps=10), 2.0)
        for r in base
    ]
    outcome = summarise([*base, *half, *late, *never], ["DDP", "int8", "2bit", "topk"], 3.0, "100mbit")
    record = run.record_of("char_lm-100mbit", outcome)
    ratios = [arm["time_ratio"] for arm in record["arms"]]
    assert ratios[0]["mean"] == 1
    assert ratios[1]["mean"] == pytest.approx(0.5, rel=0.01)
    assert ratios[3] is None
    assert [arm["reached"] for arm in record["arms"]] == [3, 3, 3, 0]
    said = verdict.answer(record)
    assert "sooner than DDP: `int8` (0.50 times)" in said
    assert "later than DDP: `2bit` (1.6" in said
    assert "not there in every seed: `topk`" in said
    table = verdict.markdown(record)
    assert "| `topk` | 3.9 | +1.9 |" in table
    assert "| not by 3 of 3 |" in table


def test_an_arm_of_which_most_runs_are_there_has_a_median(modules: dict[str, ModuleType]) -> None:
    run, verdict = modules["run"], modules["verdict"]
    base = runs("DDP", (10.0, 20.0), (20.0, 40.0), (15.0, 30.0))  # loss 3 after 15, 30 and 22.5 s
    most = runs("2bit", (5.0, 10.0), (10.0, 20.0), (7.5, 15.0))
    most[0] = Run("2bit", 0, RunResult("loss", (4.0, 3.9), (5.0, 10.0), bytes_per_step=1e4, steps=10), 10.0)
    record = run.record_of("char_lm-100mbit", summarise([*base, *most], ["DDP", "2bit"], 3.0, "100mbit"))
    assert "| median 15.0 s, not by 1 of 3 | medians 0.67 |" in verdict.markdown(record)


@pytest.mark.parametrize("flags", [(), ADAMW], ids=["SGD", "AdamW"])
def test_ddp_in_the_loop_gives_the_weights_of_gradwire_uncompressed(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    """Two ranks: a sum of two has one value. So nothing but the exchange differs between arms."""
    theirs = train(tmp_path, "--ddp-hook", "none", *flags)
    ours = train(tmp_path, *flags)
    assert theirs["weights_sha256"] == ours["weights_sha256"]
    assert theirs["loss_per_epoch"] == ours["loss_per_epoch"]
    assert theirs["bytes_per_step"] is None  # on loopback nobody can tell whose they are
    assert theirs["codec_seconds"] is None
    assert theirs["compression"] == "DDP's hook none"


def test_adamw_learns_sooner_than_sgd_and_warms_up(tmp_path: Path) -> None:
    sgd, adamw = train(tmp_path), train(tmp_path, "--gc-type", "int8", *ADAMW)
    assert adamw["loss"] < sgd["loss"]
    assert train(tmp_path, *ADAMW, "--warmup-steps", "40")["loss"] > adamw["loss"]


def test_rows_have_arms_of_their_own(modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    run = modules["run"]

    def arms(*flags: str) -> list[tuple[str, ...]]:
        monkeypatch.setattr(sys, "argv", ["run.py", *flags])
        given = run.parse_arguments()
        return [run.plan_of(given, f"{task}-1gbit").arms for task in ("char_lm", "char_lm_adamw")]

    sgd, adamw = arms()
    assert ("topk" in sgd, "nf4" in sgd) == (True, False)
    assert ("topk" in adamw, "nf4" in adamw) == (False, True)
    assert arms("--arm", "DDP", "--arm", "nf2") == [("DDP", "nf2")] * 2


@pytest.mark.parametrize("hook", ["fp16", "powersgd"])
def test_ddps_hooks_learn(hook: str, tmp_path: Path) -> None:
    record = train(tmp_path, "--ddp-hook", hook)
    assert record["steps"] == 40
    assert record["loss"] < 4.3  # nats; 96 equal characters are 4.56


def test_a_hook_with_a_codec_is_refused() -> None:
    def refused(*flags: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, str(TRAIN), "--ddp-hook", "fp16", *flags],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **environment},
        )
        assert done.returncode != 0
        return done.stderr

    assert "--gc-type 2bit was given with --ddp-hook fp16" in refused("--gc-type", "2bit")
    assert "GRADWIRE_COMPRESSION=int8 is set with --ddp-hook fp16" in refused(GRADWIRE_COMPRESSION="int8")
    assert "GRADWIRE_OVERLAP_STEP=on is set with --ddp-hook fp16" in refused(GRADWIRE_OVERLAP_STEP="on")


def test_misspelt_arms_are_found_before_anything_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "--arm", "DDP", "--arm", "2bits"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert "--arm 2bits" in done.stderr
    assert "DDP PowerSGD" in done.stderr


@pytest.mark.soak
@pytest.mark.skipif(netlab_reason() is not None, reason=str(netlab_reason()))
def test_a_row_behind_shaped_links(tmp_path: Path) -> None:
    arms = [word for arm in ("DDP", "DDP PowerSGD", "2bit") for word in ("--arm", arm)]
    chosen = ["--quick", "--row", "char_lm-100mbit", "--seeds", "1", "--report", str(tmp_path), *arms]
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), *chosen, "--json", "-"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "char_lm-100mbit" / "index.html").exists()
    (record,) = json.loads(done.stdout)
    dense, power, two_bit = (arm["bytes_per_step"] for arm in record["arms"])
    assert dense == pytest.approx(2 * 4 * 429_664, rel=0.1)  # headers and acknowledgements among them
    assert power < dense / 2
    assert two_bit < dense / 8
    assert json.loads((tmp_path / "results.json").read_text()) == [record]
