"""`kill -9` of any process of a job at any moment of it: nobody hangs, nobody stays behind, everybody names the dead.

The moment is an event of the victim's own (`gradwire run --faults kill=...`), so a case can be run again.
"""

from __future__ import annotations

import os
import random
import re
import signal
from pathlib import Path

import pytest
from integration.processes import SCHEDULER, Ended, Member, Run, is_alive, names, python, wait_until

DEADLINE_SECONDS = 90.0  # for a job to begin, to lose a process and to end, on a loaded machine
TIMES = {"GRADWIRE_RENDEZVOUS_TIMEOUT": "4s"}  # the launcher's patience is twice that
MEMBERS: list[Member] = [SCHEDULER, ("server", 0), ("server", 1), ("worker", 0), ("worker", 1)]
ENDLESS = python("kills_worker.py", "steps=100000")
SHORT = python("kills_worker.py", "steps=8")

# What a process of each role does or hears in each part of a job, and the most of it that a case waits for.
MOMENTS: dict[str, dict[str, tuple[str, int]]] = {
    "worker": {
        "before start": ("start", 1),
        "in init": ("init", 1),
        "mid-round": ("push", 60),
        "in barrier": ("barrier", 60),
        "in collective": ("blob", 12),
        "in checkpoint": ("checkpoint", 2),
        "at exit": ("leave", 1),
    },
    "server": {
        "before start": ("start", 1),
        "in init": ("init", 1),
        "mid-round": ("reply", 60),
        "in collective": ("blob", 12),
        "in checkpoint": ("checkpoint", 2),
        "at exit": ("leave", 1),
    },
    "scheduler": {
        "before start": ("start", 1),
        "in init": ("barrier", 4),
        "mid-round": ("heartbeat", 80),
        "in barrier": ("barrier", 120),
        "at exit": ("leave", 2),
    },
}
# Only one worker does these.
ONLY = {("worker", "in init"): 0, ("worker", "in checkpoint"): 0}


def of_member(text: str, member: Member) -> str:
    """The lines of one process in the launcher's output."""
    label = member[0] if member == SCHEDULER else f"{member[0]} {member[1]}"
    return "\n".join(line for line in text.splitlines() if line.startswith(f"[{label}]"))


def left_behind(folder: Path) -> list[int]:
    """Processes of the job, by the variable that each has in its environment."""
    mark = f"TEST_FOLDER={folder}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # it has ended, or is another user's
            continue
        if mark in environment and is_alive(int(entry.name)):
            found.append(int(entry.name))
    return found


def assert_told(ended: Ended, victim: Member, part: str) -> None:
    """Whoever survives names the dead, unless it had done all its work; and none was ended by the launcher, unless
    it had not come yet."""
    launcher = "\n".join(line for line in ended.err.splitlines() if line.startswith("gradwire: "))
    assert names(launcher, victim), str(ended)
    for member in MEMBERS:
        if member == victim:
            continue
        role, rank = member
        name = role if member == SCHEDULER else f"{role} {rank}"
        own = of_member(ended.err, member)
        if part != "before start" and "runs under faults" not in own:
            continue  # it had not joined, and met nobody whom it could name
        assert not re.search(f"{name} .* did not end by itself", launcher), str(ended)
        said = "\n".join(
            line for line in own.splitlines() if "runs under faults" not in line
        )  # the spec, too
        if names(said, victim):
            continue
        has_failed = f"gradwire: {name} (pid " in ended.err
        has_ended_well = part == "at exit" and not has_failed
        assert has_ended_well, f"{name} does not name {victim}:\n{ended}"


def kill_once(folder: Path, victim: Member, part: str, seed: int) -> None:
    event, most = MOMENTS[victim[0]][part]
    count = random.Random(seed).randint(1, most)
    who = victim[0] if victim == SCHEDULER else f"{victim[0]}:{victim[1]}"
    spec = f"seed={seed},kill={who}@{event}:{count}"
    with Run(folder, TIMES | {"GRADWIRE_FAULTS": spec}) as job:
        job.launch(SHORT if part == "at exit" else ENDLESS)
        ended = job.end(DEADLINE_SECONDS)
        wait_until(lambda: not left_behind(folder), 5, f"{spec}: {left_behind(folder)} to end")
    assert ended.code == 128 + signal.SIGKILL, f"{spec}\n{ended}"
    if part == "before start" and victim == SCHEDULER:
        return  # nobody else was started
    assert_told(ended, victim, part)


def cases() -> list[tuple[Member, str]]:
    """Every member in every part of a job in which it can be killed."""
    return [
        (member, part)
        for member in MEMBERS
        for part in MOMENTS[member[0]]
        if ONLY.get((member[0], part), member[1]) == member[1]
    ]


# Each part once for each role, the ranks in turns.
A_DOZEN: list[tuple[Member, str]] = [
    *((("worker", rank), part) for rank, part in [(1, "before start"), (0, "in init"), (1, "mid-round")]),
    *((("worker", rank), part) for rank, part in [(0, "in barrier"), (0, "in checkpoint"), (1, "at exit")]),
    *((("server", rank), part) for rank, part in [(1, "before start"), (1, "mid-round"), (0, "at exit")]),
    *((SCHEDULER, part) for part in ["in init", "in barrier", "at exit"]),
]


@pytest.mark.parametrize(("victim", "part"), A_DOZEN, ids=lambda value: str(value).replace(" ", "_"))
def test_a_killed_process_is_named_by_all_and_leaves_nothing(
    victim: Member, part: str, tmp_path: Path
) -> None:
    kill_once(tmp_path, victim, part, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_two_hundred_kills(seed: int, tmp_path: Path) -> None:
    all_cases = cases()
    victim, part = all_cases[seed % len(all_cases)]
    kill_once(tmp_path, victim, part, seed)
