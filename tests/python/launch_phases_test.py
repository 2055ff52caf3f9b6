"""What the end of a process means for a job: in every phase, every way to end, with and without replicas."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple

import pytest
from gradwire.launch.supervisor import run_job
from python.small_jobs import assert_none_left, folder_of_a_job, python

KILL, SEGV, TERM = -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGTERM
ENDS = (1, 7, KILL, SEGV, TERM)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folder_of_a_job(tmp_path, monkeypatch)


class Case(NamedTuple):
    phase: str
    victim: str
    end: int
    replicas: int
    code: int  # of the job

    def __str__(self) -> str:
        mirrored = "mirrored" if self.replicas else "alone"
        return f"{self.victim} ends with {self.end} while {self.phase}, {mirrored}"


def shell(end: int) -> int:
    return end if end >= 0 else 128 - end


def cases() -> list[Case]:
    found = []
    for replicas in (0, 1):
        for end in ENDS:
            # A server's mirror serves in its place; and once workers have ended, nobody needs it.
            needed = 0 if replicas else shell(end)
            found += [Case("running", "server0", end, replicas, needed)]
            found += [Case("draining", "server0", end, replicas, needed)]
            found += [Case("failing", "server0", end, replicas, 3)]
            for phase, code in (("running", shell(end)), ("draining", shell(end)), ("failing", 3)):
                found.append(Case(phase, "scheduler", end, replicas, code))
        found += [
            Case(phase, "server0", 0, replicas, 3 if phase == "failing" else 0)
            for phase in ("draining", "failing")
        ]
    return found


@pytest.mark.parametrize("case", cases(), ids=str)
def test_the_end_of_a_process(case: Case, folder: Path) -> None:
    # Ends are in the order that phases need: the victim's behind a worker's, or a worker's behind the victim's.
    behind = {"running": "", "draining": " after worker1", "failing": " after worker1"}[case.phase]
    others = [name for name in ("scheduler", "server0", "server1") if name != case.victim]
    env = {f"FAKE_END_{name}": "0 after worker1" for name in others}
    env[f"FAKE_END_{case.victim}"] = f"{case.end}{behind}"
    program = "await_start('server0', 'server1', 'worker0', 'worker1')\n(folder / 'done').touch()\n"
    if case.phase == "running":
        program += f"await_end({case.victim!r})\n"
        program += "if rank == 1: await_end('worker0')\n"
    if case.phase == "draining":
        program += "if rank == 1: await_end('worker0')\n"
    if case.phase == "failing":
        program += "if rank == 1: sys.exit(3)\nawait_end('worker1')\n"
        program += f"await_end({case.victim!r})\n"
    said: list[str] = []
    result = run_job(
        python(program),
        2,
        2,
        env=env | {"GRADWIRE_REPLICAS": str(case.replicas)},
        report=said.append,
    )
    assert result.exit_code == case.code, (result, said)
    if case.end != 0 and case.phase != "failing":
        named = case.victim.replace("server0", "server 0")
        assert any(line.startswith(named) for line in said), said
    assert_none_left(folder, {"worker0", "worker1", "scheduler", "server0", "server1"})
