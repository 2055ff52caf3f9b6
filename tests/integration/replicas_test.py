"""Servers of real processes are killed, and their mirrors go on for them: the bits of an undisturbed job."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.processes import (
    SERVER,
    START_SECONDS,
    Run,
    agreed,
    member_of,
    names,
    python,
    run_to_the_end,
    wait_until,
)

REPLICAS = {"GRADWIRE_REPLICAS": "1", "GRADWIRE_LIVENESS_TIMEOUT": "3s"}
CODECS = "none;fp16;2bit:threshold=auto;2bit:threshold=auto,reply=2bit;topk"
END_SECONDS = 180.0
COMMANDS = {
    "sums": python("sums_worker.py", "steps=8", "sizes=large", "pause=0.02", f"codecs={CODECS}"),
    "weights": python(
        "sums_worker.py", "steps=30", "mode=push", "pause=0.02", "optimizer=adam", "codecs=2bit:threshold=0.5"
    ),
}
Moment = Callable[[Run], None]


@pytest.fixture(scope="module", params=COMMANDS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, object]:
    """What a job does, and what it gives undisturbed and without replicas."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, agreed(run_to_the_end(folder, COMMANDS[request.param], seconds=END_SECONDS), 2)


def while_it_begins(job: Run) -> None:
    """Workers have connected, or are about to; first values are on their way."""
    begun = [job.folder / f"worker{rank}.pid" for rank in range(job.workers)]
    wait_until(lambda: all(file.exists() for file in begun), START_SECONDS, "the workers to begin")


def in_training(job: Run) -> None:
    job.wait_until_training(job.workers)


def some_rounds_later(job: Run) -> None:
    job.wait_until_training(job.workers)
    seed = random.SystemRandom().randrange(1 << 32)
    delay = random.Random(seed).uniform(0, 0.5)
    print(f"seed {seed}: {delay:.3f} s after the third step")
    time.sleep(delay)


@pytest.mark.parametrize(
    ("victim", "moment"),
    [(0, while_it_begins), (1, in_training), (0, some_rounds_later), (1, some_rounds_later)],
)
def test_a_killed_server_takes_no_update_along(
    trained: tuple[str, object], victim: int, moment: Moment, tmp_path: Path
) -> None:
    what, expected = trained
    with Run(tmp_path, REPLICAS) as job:
        job.launch(COMMANDS[what])
        wait_until(lambda: ("server", victim) in _servers(job), START_SECONDS, "the servers to start")
        moment(job)
        os.kill(_servers(job)["server", victim], signal.SIGKILL)
        ended = job.end(END_SECONDS)
    assert agreed(ended, 2) == expected
    assert names(ended.err, ("server", victim)), str(ended)
    assert "mirror" in ended.err, str(ended)


def _servers(job: Run) -> dict[tuple[str, int], int]:
    return {member: pid for pid in job.all_pids() if (member := member_of(pid)) is not None}


def test_the_death_of_both_copies_ends_the_job_and_names_them(tmp_path: Path) -> None:
    with Run(tmp_path, REPLICAS) as job:
        job.launch(python("sums_worker.py", "steps=100000", "pause=0.01"))
        job.wait_until_training(2)
        servers = _servers(job)
        os.kill(servers["server", 0], signal.SIGKILL)
        os.kill(servers["server", 1], signal.SIGKILL)
        ended = job.end(30.0)
    assert ended.code not in (0, 128 + signal.SIGINT), str(ended)
    assert "have both died" in ended.err, str(ended)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--replicas", "1", "-n", "2", "-s", "1"], id="one server"),
        pytest.param(["--replicas", "1", "-n", "2", "-s", "2", "--placement", "auto"], id="placement auto"),
    ],
)
def test_what_cannot_be_mirrored_is_refused_at_once(words: list[str], tmp_path: Path) -> None:
    gradwire = str(Path(SERVER).with_name("gradwire"))
    done = subprocess.run(
        [gradwire, "run", *words, "true"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode not in (0, 1), done
    assert "--replicas 1" in done.stderr, done
    assert "leave" in done.stderr, done


def test_a_store_without_servers_of_its_own_says_so(tmp_path: Path) -> None:
    ended = run_to_the_end(
        tmp_path, python("sums_worker.py", "store=allreduce"), servers=None, GRADWIRE_REPLICAS="1"
    )
    assert ended.code != 0
    assert "GRADWIRE_REPLICAS=1 mirrors servers" in ended.err, str(ended)
