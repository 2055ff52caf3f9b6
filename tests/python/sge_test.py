"""`gradwire run --launcher sge`: what qsub is told, and what is made of what it says. Without Grid Engine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from gradwire.launch.clusters import agent, sge_agent
from python.prepared_jobs import prepared, request


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"Job 3.2 exited with exit code 7.\n", (1, 7)),
        (b"Job 3.11 exited with exit code 0.\n", (10, 0)),
        (b"Job 3.1 exited because of signal SIGKILL\n", (0, 137)),
        (b'Your job-array 3.1-3:1 ("x") has been submitted\n', None),
        (b"Unable to run job 4.3\n", None),
    ],
)
def test_what_qsub_says_of_a_task_that_ended(line: bytes, told: tuple[int, int] | None) -> None:
    assert sge_agent.code_of(line) == told


def test_words_and_variables_reach_a_program_as_they_were_given() -> None:
    words = ["a b", "'", '"', "$HOME", "`x`", "line\nend", ""]
    program = "import json, os, sys; e = os.environ; print(json.dumps([sys.argv[1:], e['GIVEN'], e['GRADWIRE_RANK']]))"
    text = agent.script({"GIVEN": words[3], "OTHER": "x"}, ["GIVEN"], ["python3", "-c", program, *words])
    ran = subprocess.run(["sh"], input=f"rank=4\n{text}", capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == [words, words[3], "4"]


def test_who_has_heard_of_another_s_failure_does_not_count_if_that_is_heard_of(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    failure = agent.Failure(notice_seconds=0)
    failure.hear(0, 0)
    assert (failure.code, failure.is_over) == (0, False)
    failure.hear(1, 1)
    assert failure.code == 1
    failure.hear(2, 137, "killed")
    failure.hear(0, 3)
    assert (failure.code, failure.is_over) == (137, True)
    assert b"rank 2 ended with exit code 137: killed\n" in capfdbinary.readouterr().err


def test_lines_come_as_they_are_written_and_the_rest_at_the_end(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    files = sge_agent.GrowingFiles(tmp_path)
    (tmp_path / "task").write_text("no output")
    with (tmp_path / "out.11").open("wb", buffering=0) as file:
        file.write(b"one\ntw")
        files.hand_on()
        assert capfdbinary.readouterr().out == b"11: one\n"
        file.write(b"o\nrest")
        (tmp_path / "err.0").write_bytes(b"wrong\n")
        files.hand_on()
        files.finish()
    assert capfdbinary.readouterr() == (b"11: two\n11: rest\n", b"0: wrong\n")


def test_an_array_is_all_of_a_role_and_only_what_a_job_needs_goes_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("GRADWIRE_HOST_ID", "here")
    asked = request("sge", workers=3, queue="gpu.q", env={"MINE": "m"})
    job = prepared(asked, monkeypatch)
    assert job.host("scheduler", 0).address == "10.0.0.9"
    server, worker = job.processes("tcp://10.0.0.9:1")
    for process, tasks in ((worker, 3), (server, 1)):
        order = json.loads(process.command[3])
        assert (order["tasks"], order["queue"]) == (tasks, "gpu.q")
        assert {"MINE", "GRADWIRE_JOB_KEY", "PATH"} <= set(order["variables"])
        assert not {"SECRET", "GRADWIRE_HOST_ID"} & set(order["variables"])
        assert job.environment["GRADWIRE_JOB_KEY"] not in " ".join(process.command)
    assert worker.environment["GRADWIRE_SCHEDULER"] == "tcp://10.0.0.9:1"
    assert 'trap \'\' USR1 USR2 QUIT; exec "$0" "$@" --rank "$GRADWIRE_RANK"' in server.command
    assert "--bind-host" not in server.command
