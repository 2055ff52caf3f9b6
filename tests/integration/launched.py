"""Jobs that `gradwire run --launcher NAME` starts, and what must be so whatever the launcher.

Processes of these jobs would go on for ten minutes by themselves: one that has ended before has been ended.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gradwire.timeline.command import load
from integration.own_tmp import own_tmp
from integration.processes import (
    PROGRAMS,
    Ended,
    Job,
    agreed,
    assert_gone,
    descendants,
    python,
    run_to_the_end,
    wait_until,
)
from integration.ssh_hosts import processes_with

JOB_SECONDS = 120.0  # for a short job, from start to end, on a loaded machine
NOTICE_SECONDS = 300.0  # in which everybody must have ended; clusters tell late what happens there
ARGUMENTS = ("steps=3", "codecs=2bit:threshold=auto;none")
ENDLESS = python(
    "sums_worker.py", "store=dist_sync", "steps=100000", "codecs=2bit:threshold=0.5", "pause=0.01"
)


@dataclass(frozen=True)
class Bed:
    """Where a launcher can run: its options, and the variables that its programs need."""

    launcher: str
    options: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def job(self, folder: Path, **variables: str) -> Job:
        """A job without processes; variables are those of its launcher, over the bed's own."""
        return Job(folder, {**self.variables, **variables})


def start(
    job: Job, bed: Bed, command: Sequence[str], *options: str, workers: int = 2, through: Sequence[str] = ()
) -> None:
    """Starts the launcher. through: the command that it is run by, as salloc."""
    words = [str(PROGRAMS / "gradwire"), "run", "-n", str(workers), "--launcher", bed.launcher, *bed.options]
    words += ["--env", f"TEST_FOLDER={job.folder}", *options, "--", *command]
    job.start(("run", 0), [*through, *words], cwd=str(job.folder))


def end(job: Job, seconds: float = JOB_SECONDS) -> Ended:
    return job.members["run", 0].ended(seconds)


@contextmanager
def token() -> Iterator[str]:
    """A variable, as NAME=VALUE, for all processes of a job to have. Kills what is left of them, after all."""
    word = f"TOKEN={secrets.token_hex(8)}"
    try:
        yield word
    finally:
        for pid in processes_with(word):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def running(
    job: Job, bed: Bed, command: Sequence[str], *, workers: int = 2, through: Sequence[str] = ()
) -> Iterator[list[int]]:
    """Starts a job with one server. Yields all its processes but the launcher's, in the middle of its training."""
    with token() as word, job:
        start(job, bed, command, "-s", "1", "--env", word, workers=workers, through=through)
        job.wait_until_training(workers)
        yield processes_with(word)


def sums_here(folder: Path, *, workers: int = 2) -> object:
    """What every launcher's job must come to: hashes of the sums of a job that has none."""
    command = python("sums_worker.py", "store=dist_sync", *ARGUMENTS)
    return agreed(run_to_the_end(folder, command, workers=workers), workers)


def sums(
    bed: Bed,
    folder: Path,
    *options: str,
    store: str = "dist_sync",
    workers: int = 2,
    through: Sequence[str] = (),
) -> object:
    with bed.job(folder) as job:
        command = python("sums_worker.py", f"store={store}", *ARGUMENTS)
        start(job, bed, command, *options, workers=workers, through=through)
        return agreed(end(job), workers)


def expect_the_failing_workers_code(
    bed: Bed, folder: Path, said: str, *, workers: int = 2, rank_variable: str = "GRADWIRE_RANK"
) -> None:
    """The last worker ends with 7, the others would sleep: 7 comes back, it is said whose it is, and all have ended."""
    fails = f"os.environ['{rank_variable}'] == '{workers - 1}'"
    program = f"import os, sys, time; sys.exit(7) if {fails} else time.sleep(600)"
    with token() as word, bed.job(folder, GRADWIRE_LIVENESS_TIMEOUT="1s") as job:
        start(job, bed, [sys.executable, "-c", program], "-s", "1", "--env", word, workers=workers)
        ended = end(job)
        wait_until(lambda: not processes_with(word), NOTICE_SECONDS, "what the cluster started to end")
    assert ended.code == 7, str(ended)
    assert said in ended.err, str(ended)


def expect_a_timeline(bed: Bed, folder: Path, *, workers: int = 2) -> None:
    with bed.job(folder) as job:
        command = python("sums_worker.py", "store=dist_sync", *ARGUMENTS)
        start(job, bed, command, "-s", "1", "--timeline", "out.json", workers=workers)
        agreed(end(job), workers)
    timeline = load(folder / "out.json")
    assert (timeline.workers, timeline.servers, timeline.missing) == (workers, 1, [])
    assert not (folder / "out.json.parts").exists()


def expect_a_timeline_to_be_refused_that_no_machine_sees(
    bed: Bed, folder: Path, shared: Sequence[Path], *, workers: int = 2
) -> None:
    """The launcher has a /tmp of its own, but for some folders; so its machines do not see what it makes there."""
    command = [sys.executable, "-c", "print('begun')"]
    with bed.job(folder) as job:
        through = own_tmp([folder, *shared], "out.json", folder / "out.json")
        start(job, bed, command, "-s", "0", "--timeline", "/tmp/out.json", workers=workers, through=through)
        ended = end(job)
    assert ended.code == 1, str(ended)
    assert "does not see /tmp/out.json.parts, where parts are gathered" in ended.err, str(ended)
    assert "begun" not in ended.out, str(ended)


SAVER = """
import os, pathlib, signal, sys, time
rank = os.environ[os.environ["RANK_VARIABLE"]]
folder = pathlib.Path(os.environ["TEST_FOLDER"])
def save(number, _):
    (folder / f"worker{rank}.saving").touch()
    time.sleep(3)  # longer than what is left between SIGTERM and SIGKILL elsewhere
    print("saved", rank, "after", number, flush=True)
    (folder / f"worker{rank}.saved").touch()
    if number == signal.SIGTERM:
        sys.exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
    signal.signal(number, save)
(folder / f"worker{rank}.running").touch()
while not (folder / "end").exists():
    time.sleep(0.05)
"""


def await_saved(folder: Path, workers: int) -> None:
    saved = [folder / f"worker{rank}.saved" for rank in range(workers)]
    wait_until(lambda: all(path.exists() for path in saved), NOTICE_SECONDS, "all workers to have saved")
    for path in saved:
        path.unlink()


def expect_workers_to_save(
    bed: Bed,
    folder: Path,
    rank_variable: str,
    signals: Sequence[signal.Signals] = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT),
    *,
    workers: int = 2,
    through: Sequence[str] = (),
) -> Ended:
    """Workers get the signals, one after the other, and go on; then SIGTERM, after which they save for 3 s and end."""
    job = bed.job(folder, RANK_VARIABLE=rank_variable)
    command = [sys.executable, "-c", SAVER]
    rank_of = ("--env", f"RANK_VARIABLE={rank_variable}")
    with token() as word, job:
        start(job, bed, command, "-s", "1", "--env", word, *rank_of, workers=workers, through=through)
        job.wait_until_training(workers)
        first = job.members["run", 0].process.pid
        launcher = next(pid for pid in [first, *descendants(first)] if is_launcher(pid))
        for number in signals:
            os.kill(launcher, number)
            await_saved(folder, workers)
        os.kill(launcher, signal.SIGTERM)
        ended = end(job, NOTICE_SECONDS)
        wait_until(lambda: not processes_with(word), NOTICE_SECONDS, "what was started to end")
    assert ended.code == 128 + signal.SIGTERM, str(ended)
    for rank in range(workers):
        for number in (*signals, signal.SIGTERM):
            assert f"saved {rank} after {int(number)}\n" in ended.out, str(ended)
    return ended


def signal_the_launcher(job: Job, number: signal.Signals, started: Sequence[int]) -> Ended:
    """How a job ends whose launcher gets a signal, and with it all processes started."""
    first = job.members["run", 0].process.pid
    os.kill(next(pid for pid in [first, *descendants(first)] if is_launcher(pid)), number)
    ended = end(job, NOTICE_SECONDS)
    assert_gone(started, NOTICE_SECONDS)
    return ended


def is_launcher(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return any(word.endswith(b"/gradwire") for word in words[:2])  # its interpreter may come first


def shell_code(number: signal.Signals) -> int:
    """The exit code of a launcher that a signal has ended: its own, or Popen's where it cannot have one."""
    return -number if number == signal.SIGKILL else 128 + number
