"""`gradwire bench`: a system that fails, or a signal, leaves the other results; many tensors through servers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gradwire.bench import launches
from gradwire.bench.launches import BenchFailed, Interrupted, Launch, records_of, take_turns
from gradwire.bench.plan import ServersPlan
from gradwire.bench.system import System

PLAN = ServersPlan(ranks=1, servers=1, gradient_bytes=400, repeat=2, launches=2)


def system(name: str) -> System:
    return System(name, "none", "none", "none", 400, 400, start=None)  # type: ignore[arg-type]


def turns_of(
    monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, list[BaseException | None]]
) -> launches.Turns:
    """Lets each system's launches end as told, one after the other."""

    def run(plan: Any, row: System, network: Any, count: int) -> Launch:
        if (failure := outcomes[row.name].pop(0)) is not None:
            raise failure
        return Launch([1.0] * count, None, 1.0, 0.0, 1.0, None, 0, True)

    monkeypatch.setattr(launches, "_run", run)
    rows = [system(name) for name in outcomes]
    return take_turns(PLAN, rows, None, lambda text: None, lambda row, launch: None)  # type: ignore[arg-type]


def test_a_system_that_fails_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = BenchFailed("bench ps: b: worker 0 ended with exit code 3")
    outcomes: dict[str, list[BaseException | None]] = {
        "a": [None, None],
        "b": [None, failure],
        "c": [None, None],
    }
    turns = turns_of(monkeypatch, outcomes)
    assert [len(done) for done in turns.launches] == [2, 0, 2]
    assert turns.troubles == [failure]
    rows = records_of(turns, [system(name) for name in "abc"], lambda row, done: {"launches": len(done)})
    assert [row["failure"] for row in rows] == [None, str(failure), None]
    assert [row.get("launches") for row in rows] == [2, None, 2]


def test_a_system_that_failed_is_not_launched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: dict[str, list[BaseException | None]] = {"a": [BenchFailed("no"), None], "b": [None, None]}
    turns_of(monkeypatch, outcomes)
    assert outcomes == {"a": [None], "b": []}


def test_a_signal_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Interrupted("bench ps: stopped by SIGINT", 130)
    turns = turns_of(monkeypatch, {"a": [None, stopped], "b": [None, None]})
    assert [len(done) for done in turns.launches] == [1, 1]
    assert turns.troubles == [stopped]
    turns = turns_of(monkeypatch, {"a": [None, None], "b": [stopped, None]})
    rows = records_of(turns, [system(name) for name in "ab"], lambda row, done: {})
    assert [row["label"] for row in rows] == ["a"]


def test_ctrl_c_between_two_jobs_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turns_of(monkeypatch, {"a": [None, KeyboardInterrupt()], "b": [None, None]})
    assert [len(done) for done in turns.launches] == [1, 1]
    (trouble,) = turns.troubles
    assert str(trouble) == "bench ps: stopped by SIGINT"
    assert trouble.exit_code == 130


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradwire.cli", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_many_tensors_go_through_servers_fused_and_not_in_as_many_launches_as_asked(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    words = ("--ranks", "2", "--servers", "1", "--bytes", "1MB", "--tensors", "50", "--codec", "2bit")
    done = bench("ps", *words, "--repeat", "2", "--launches", "2", "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert [(row["fused"], row["tensors"]) for row in rows] == [(True, 50), (False, 50)]
    assert all(row["checksum"] and len(row["launch_medians"]) == 2 for row in rows)
    assert rows[0]["bytes_sent_per_rank"] < rows[1]["bytes_sent_per_rank"]  # fewer headers
    assert "in 50 tensors" in done.stdout
    assert "not fused" in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--tensors", "3"), "--tensors 3 is not valid: expected a divisor of the 25000000 floats"),
        (("--tensors", "2", "--peer", "mxnet"), "--tensors 2 with --peer mxnet is not valid"),
    ],
)
def test_tensors_that_cannot_be_are_refused(words: tuple[str, ...], text: str) -> None:
    done = bench("ps", "--ranks", "2", *words)
    assert done.returncode == 2
    assert f"bench ps: {text}" in done.stderr


def test_a_misspelt_codec_is_found_before_any_is_measured() -> None:
    done = bench("codec", "--codec", "none", "--codec", "2bti", "--elements", "1000", "--repeat", "1")
    assert done.returncode == 2
    assert "2bit" in done.stderr
    assert "memcpy" not in done.stdout
