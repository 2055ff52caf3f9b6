"""`gradwire ab` where arms diverge, runs fail, or somebody presses Ctrl-C: the rest is kept, and the page tells."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from gradwire.ab import report, summary
from gradwire.ab.experiment import Run, RunFailed
from gradwire.result import RunResult

TRAIN = """
import os, sys, time
import gradwire.result
arm, seed = os.environ["GRADWIRE_COMPRESSION"], int(os.environ["GRADWIRE_SEED"])
rank = int(os.environ["GRADWIRE_RANK"])
losses = [2.3, 1.1 + 0.01 * seed]
{body}
gradwire.result.write(loss_per_epoch=losses, images_per_second=100, bytes_per_step=1e6, steps=4, took_compression=True)
"""


def command(folder: Path, *words: str, body: str) -> list[str]:
    script = folder / "train.py"
    script.write_text(TRAIN.format(body=body))
    own = [
        "ab",
        "-n",
        "2",
        "-s",
        "0",
        "--report",
        str(folder / "report"),
        "--json",
        str(folder / "record.json"),
    ]
    return [sys.executable, "-m", "gradwire.cli", *own, *words, "--", sys.executable, str(script)]


def run(folder: Path, *words: str, body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *words, body=body), capture_output=True, text=True, timeout=300, check=False
    )


def record_of(folder: Path) -> dict[str, Any]:
    """The record, which has to be JSON as the standard has it: no NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found: dict[str, Any] = json.loads((folder / "record.json").read_text(), parse_constant=refuse)
    return found


ARMS = ("--arm", "none", "--arm", "fp16", "--arm", "int8")
TWO_ARMS = ("--arm", "none", "--arm", "fp16", "--seeds", "1")


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_an_arm_that_diverges_is_worse_and_the_others_survive(tmp_path: Path, value: str) -> None:
    done = run(tmp_path, *ARMS, "--seeds", "2", body=f"if arm == 'int8': losses[1] = float('{value}')")
    assert done.returncode == 0, done.stderr
    record = record_of(tmp_path)
    none, half, bytes_ = record["arms"]
    assert (none["diverged"], half["diverged"], bytes_["diverged"]) == (False, False, True)
    assert (bytes_["loss"], bytes_["difference"], bytes_["judgement"]) == (None, None, "diverged: worse")
    assert [row["loss_per_epoch"] for row in bytes_["per_seed"]] == [[2.3, None]] * 2
    assert none["loss"] == pytest.approx(1.105)
    assert half["judgement"] == "no difference seen"
    assert "int8 diverged in 2 of 2 runs" in record["verdict"]
    assert "diverged in 2 of 2 runs" in (tmp_path / "report/index.html").read_text()
    assert "int8 diverged in 2 of 2 runs: worse." in " ".join(done.stdout.split())


def test_an_arm_with_a_failed_run_is_failed_and_the_others_survive(tmp_path: Path) -> None:
    body = "if (arm, seed, rank) == ('int8', 0, 1): print('out of memory', file=sys.stderr); sys.exit(23)"
    done = run(tmp_path, *ARMS, "--seeds", "2", body=body)
    assert done.returncode == 23
    assert "| out of memory" in done.stdout
    assert "int8, seed 0: worker 1" in done.stderr
    record = record_of(tmp_path)
    assert [arm["judgement"] for arm in record["arms"]] == [None, "no difference seen", "failed"]
    [failure] = record["arms"][2]["failures"]
    assert (failure["seed"], failure["exit_code"], failure["last_lines"]) == (0, 23, ["out of memory"])
    assert record["arms"][2]["loss"] == pytest.approx(1.11)  # of the seed that ended
    assert record["arms"][2]["difference"]["count"] == 1
    page = (tmp_path / "report/index.html").read_text()
    assert "out of memory" in page
    assert "int8 failed in 1 of 2 runs" in page


def test_ctrl_c_leaves_the_page_and_the_record_of_what_has_ended(tmp_path: Path) -> None:
    waiting = tmp_path / "waiting"
    body = f"if arm == 'fp16': open({str(waiting)!r}, 'w').close(); time.sleep(600)"
    words = command(tmp_path, *ARMS, "--seeds", "3", body=body)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not waiting.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    under_way = record_of(tmp_path)  # written as the run ended
    assert (under_way["runs"], under_way["expected_runs"]) == (1, 9)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped by SIGINT" in err
    record = record_of(tmp_path)
    assert [len(arm["per_seed"]) for arm in record["arms"]] == [1, 0, 0]
    assert record["verdict"].startswith("After 1 of 9 runs: ")
    assert "After 1 of 9 runs." in (tmp_path / "report/index.html").read_text()


def test_files_that_cannot_be_written_for_a_while_cost_no_run_and_no_result(tmp_path: Path) -> None:
    page = str(tmp_path / "report/index.html")
    body = (
        f"if rank == 0: os.mkdir({page!r}) if arm == 'none' else os.rmdir({page!r})\n"
        "for line in range(2000): print('a line of so many characters that all together are too long')"
    )
    words = ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh"]  # as on a full disk, a log cannot grow any more
    words += command(tmp_path, *TWO_ARMS, body=body)
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "gradwire: ab: " in done.stderr
    assert "none-seed0.log cannot be written (File too large): the run goes on" in done.stderr
    assert " ".join(done.stdout.split()).count("cannot be written (Is a directory); the runs go on") == 1
    assert [len(arm["per_seed"]) for arm in record_of(tmp_path)["arms"]] == [1, 1]
    assert "After 1 of 2 runs" not in (tmp_path / "report/index.html").read_text()


def test_results_are_shown_where_the_page_cannot_be_written_at_all(tmp_path: Path) -> None:
    page = str(tmp_path / "report/index.html")
    body = f"if rank == 0: os.makedirs({page!r}, exist_ok=True)"
    done = run(tmp_path, *TWO_ARMS, body=body)
    assert (done.returncode, done.stderr) == (
        1,
        f"gradwire: ab: --report: {page} cannot be written (Is a directory)\n",
    )
    assert "final losses 1.1 and 1.1" in " ".join(done.stdout.split())
    assert [len(arm["per_seed"]) for arm in record_of(tmp_path)["arms"]] == [1, 1]


def test_a_target_in_per_cent_ends_the_experiment_once_runs_write_accuracies(tmp_path: Path) -> None:
    body = "gradwire.result.write(accuracy_per_epoch=[0.5, 0.7], took_compression=True); sys.exit()"
    done = run(tmp_path, *ARMS, "--target", "90", body=body)
    assert done.returncode == 2
    assert done.stderr == (
        "gradwire: ab: --target 90 is outside 0 to 1, and the command writes accuracies: give a fraction, such as "
        "0.9. The report keeps what has run\n"
    )
    record = record_of(tmp_path)
    assert (record["runs"], record["arms"][0]["accuracy"], record["target"]) == (1, 0.7, 0.7)
    assert (tmp_path / "report/index.html").exists()
    assert "9000" not in done.stdout


def test_a_loss_may_have_any_target(tmp_path: Path) -> None:
    done = run(tmp_path, "--arm", "none", "--seeds", "1", "--target", "1.5", body="")
    assert (done.returncode, done.stderr) == (0, "")
    assert record_of(tmp_path)["target"] == 1.5


def test_a_result_is_confirmed_on_fresh_seeds(tmp_path: Path) -> None:
    done = run(tmp_path, "--arm", "none", "--seeds", "2", "--first-seed", "3", body="")
    assert done.returncode == 0, done.stderr
    [arm] = record_of(tmp_path)["arms"]
    assert [row["seed"] for row in arm["per_seed"]] == [3, 4]
    assert [row["loss"] for row in arm["per_seed"]] == pytest.approx([1.13, 1.14])
    assert "seeds 3, 4" in (tmp_path / "report/index.html").read_text()


# What is said of runs that have ended, be it little.


def ended(arm: str, seed: int, *losses: float) -> Run:
    record = RunResult("loss", losses, tuple(float(epoch + 1) for epoch in range(len(losses))), steps=4)
    return Run(arm, seed, record, 9.0)


class Closed(HTMLParser):
    """Refuses a page whose elements are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


NAN = math.nan
FAILED = RunFailed("int8", 0, "worker 1 <ended>", 9, ["a & b"])


@pytest.mark.parametrize(
    ("runs", "judged"),
    [
        ([], "no run has ended"),
        ([ended("none", 0, 1.0)], "no run has ended"),
        ([ended("int8", 0, 1.0)], "nothing of no compression to compare it with"),
        ([FAILED], "failed"),
        ([ended("none", 0, 1.0), ended("int8", 1, 1.0), FAILED], "failed"),
        ([ended("none", 0, 1.0), ended("int8", 0, 1.0, NAN)], "diverged: worse"),
        ([ended("none", 0, 1.0), ended("int8", 0, math.inf, 1.0)], "diverged: worse"),
        ([ended("none", 0, NAN), ended("int8", 0, NAN)], "diverged, as no compression did"),
        ([ended("none", 0, NAN), ended("int8", 0, 1.0)], "nothing of no compression to compare it with"),
        (
            [ended("none", 0, NAN), ended("int8", 0, 1.0), ended("none", 1, 1.0), ended("int8", 1, 1.0)],
            "inconclusive, one seed has no spread: run 3 seeds or more",
        ),
    ],
)
def test_what_is_said_of_an_arm(runs: list[Run | RunFailed], judged: str) -> None:
    found = summary.summarise(runs, ["none", "int8"], None, "unshaped", 8)
    assert found.judge(found.arms[1]) == judged
    json.dumps(found.record(), allow_nan=False)
    checker = Closed()
    checker.feed(report.page(found, {"command": "gradwire ab"}))
    checker.close()
    assert checker.open == []


def test_only_seeds_that_both_arms_have_ended_are_compared() -> None:
    runs = [ended("none", seed, 1.0 + seed) for seed in range(3)]
    runs += [ended("int8", 2, 3.5), ended("int8", 1, 2.25)]
    difference = summary.summarise(runs, ["none", "int8"], None, "unshaped").arms[1].difference
    assert difference is not None
    assert (difference.count, difference.mean) == (2, pytest.approx(0.375))


def test_times_to_the_target_too_are_compared_over_seeds_that_both_have() -> None:
    """The first arm's third seed is slow: while the other's is under way, that says nothing of it."""
    runs = [timed("none", 0, 10.0), timed("none", 1, 12.0), timed("none", 2, 98.0)]
    runs += [timed("int8", 0, 5.0), timed("int8", 1, 6.0)]
    found = summary.summarise(runs, ["none", "int8"], None, "100mbit", 6)
    sooner = found.arms[1].sooner
    assert sooner is not None
    assert (found.times_sooner(found.arms[1]), sooner.low) == (pytest.approx(2.0), pytest.approx(2.0))
    assert "int8 reached loss 1 2.0 times sooner than no compression [2, 2]." in found.verdict


def timed(arm: str, seed: int, seconds: float) -> Run:
    return Run(arm, seed, RunResult("loss", (2.0, 1.0), (0.5 * seconds, seconds)), seconds)
