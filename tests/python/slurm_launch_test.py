"""`gradwire run --launcher slurm`: what srun is told, and what is made of what it says. Without Slurm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gradwire.launch import launchers, srun_wrapper
from gradwire.launch.child import Line
from gradwire.launch.slurm import LabelledSplitter
from python.prepared_jobs import prepared, request


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"srun: error: n1: task 2: Exited with exit code 7\n", 7),
        (b"srun: error: n[1-2]: tasks 0-1,5: Terminated\n", 143),
        (b"srun: error: n1: task 0: Killed\n", 137),
        (b"srun: error: n1: task 11: Segmentation fault (core dumped)\n", 139),
        (b"srun: error: n1: task 1: Quit (core dumped)\n", 131),
        (b"srun: error: n1: task 1: User defined signal 1\n", 138),
        (b"srun: error: n1: task 1: Broken pipe\n", 141),
        (b"srun: error: n1: task 1: Real-time signal 3\n", 165),
        (b"srun: error: n1: task 1: Out Of Memory\n", 137),
        (b"srun: error: n1: task 1: Something new\n", 1),
        (b"srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n", None),
        (b"3: srun: error: n1: task 2: Exited with exit code 7\n", None),
    ],
)
def test_what_srun_says_of_a_task_that_failed(line: bytes, code: int | None) -> None:
    assert srun_wrapper.code_of(line) == code


@pytest.mark.parametrize(("first", "code"), [("Exited with exit code 7", 7), ("Something new", 1)])
def test_the_first_failure_counts_and_not_the_largest(first: str, code: int, tmp_path: Path) -> None:
    said = f"srun: error: n1: task 2: {first}\\nsrun: error: n1: tasks 0-1: Terminated\\n"
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\nprintf '{said}' >&2\nexit 143\n")
    srun.chmod(0o755)
    assert srun_wrapper.main("name", [str(srun)]) == code


def test_lines_are_their_ranks_and_a_bar_shows_its_last_state() -> None:
    splitter = LabelledSplitter("worker", None, "stdout")
    lines = splitter.feed(b" 0: one\n11: tw", 0.0) + splitter.feed(
        b"o: 2\nsrun: own words\n1: 10%\r20%\n2: ", 0.1
    )
    lines += splitter.feed(b"", 0.2)
    assert [(line.rank, line.text) for line in lines] == [
        (0, "one"),
        (11, "two: 2"),
        (None, "srun: own words"),
        (1, "20%"),
        (2, ""),
    ]
    assert all(isinstance(line, Line) and line.role == "worker" for line in lines)


def test_srun_is_told_where_and_every_process_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    job = prepared(request("slurm", workers=3, hosts="n1:2,n2:1"), monkeypatch)
    assert job.host("scheduler", 0).address == "10.0.0.9"
    server, worker = job.processes("tcp://10.0.0.9:1")
    assert worker.command[0] == server.command[0] == sys.executable
    for process, tasks, nodes in ((worker, 3, "n1,n1,n2"), (server, 1, "n1")):
        assert {f"--ntasks={tasks}", f"--nodelist={nodes}", "--distribution=arbitrary"} <= set(
            process.command
        )
    run = """trap '' TERM USR1 USR2 QUIT; exec "$0" "$@" --rank "$SLURM_PROCID\""""
    assert run in server.command
    assert worker.environment["GRADWIRE_SCHEDULER"] == "tcp://10.0.0.9:1"


def test_nothing_that_says_which_host_this_is_goes_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_HOST_ID", "here")
    monkeypatch.setenv("GRADWIRE_BIND_HOST", "10.0.0.9")
    server, worker = prepared(request("slurm"), monkeypatch).processes("tcp://10.0.0.9:1")
    assert not {"GRADWIRE_HOST_ID", "GRADWIRE_BIND_HOST"} & set(worker.environment)
    assert not {"--host-id", "--bind-host", "--nodelist"} & set(server.command)
    asked = request("slurm", env={"GRADWIRE_HOST_ID": "all"})
    given = prepared(asked, monkeypatch).processes("tcp://10.0.0.9:1")
    assert given[1].environment["GRADWIRE_HOST_ID"] == "all"


def test_slurm_copies_nothing() -> None:
    with pytest.raises(ValueError, match="nodes of Slurm share a file system, or have sbcast"):
        launchers.run(request("slurm", copy_to="x"), lambda line: None, lambda text: None)
