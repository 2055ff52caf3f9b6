"""The local process of `gradwire run --launcher sge` for an array job: qsub, with output, exit code and clean-up.

qsub writes output to files only, so they are followed as they grow. Its exit code is not that of the first failing
task, and the array survives when qsub is killed. The agent corrects both.

    python -m gradwire.launch.clusters.sge_agent '{"name": ..., "tasks": ...}' CMD...
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.launch.child import shell_code
from gradwire.launch.clusters import agent

_LOOK_SECONDS = 0.2  # between two looks at what tasks have written
_ASK_SECONDS = 20
_ENDED = re.compile(
    rb"Job \d+\.(\d+) (?:exited with exit code (\d+)\.?|exited because of signal (?:SIG)?(\w+))"
)


def code_of(line: bytes) -> tuple[int, int] | None:
    """Returns rank and shell exit code of the task whose end a line of qsub reports; None if it reports none."""
    told = _ENDED.match(line)
    if told is None:
        return None
    rank = int(told[1]) - 1
    if told[2] is not None:
        return rank, int(told[2])
    number = getattr(signal, f"SIG{told[3].decode()}", None)
    return rank, 128 + number if isinstance(number, int) else 1


class GrowingFiles:
    """The files that tasks write: out.RANK and err.RANK in a folder. Passes on whole lines, with their rank."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}  # bytes
        self._pending: dict[Path, bytes] = {}

    def hand_on(self) -> None:
        """Passes on what has come since the last call.

        Each file is opened again: over NFS, only a reader that opens a file after its writer closed it is sure to see
        all.
        """
        for path in sorted(self._folder.glob("*.[0-9]*")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                *lines, self._pending[path] = (self._pending.get(path, b"") + file.read()).split(b"\n")
                self._read[path] = file.tell()
            for line in lines:
                self._write(path, line)

    def finish(self) -> None:
        """Passes on the rest, also lines without an end."""
        self.hand_on()
        for path, line in self._pending.items():
            if line:
                self._write(path, line)

    def _write(self, path: Path, line: bytes) -> None:
        agent.write_line(1 if path.stem == "out" else 2, int(path.suffix[1:]), line)


def cancel(name: str, folder: Path) -> None:
    """Deletes the array job of a name, in whatever state it is, and its files."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(["qdel", name], capture_output=True, timeout=_ASK_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


def write_script(folder: Path, variables: Sequence[str], words: Sequence[str]) -> None:
    """Writes the script of every task.

    It holds the job's key. Only the owner can read the folder, and qsub's own copy, which others may read, only names
    this file.
    """
    into = shlex.quote(str(folder))
    head = f"rank=$((SGE_TASK_ID - 1))\nexec >{into}/out.$rank 2>{into}/err.$rank\n"
    (folder / "task").write_text(head + agent.script(os.environ, variables, ["exec", *words]))


def submit(order: Mapping[str, Any], folder: Path) -> subprocess.Popen[bytes]:
    queue = [] if order["queue"] is None else ["-q", order["queue"]]
    words = ["qsub", "-sync", "y", "-t", f"1-{order['tasks']}", "-N", order["name"], "-wd", order["folder"]]
    words += ["-S", "/bin/sh", "-o", f":{folder}/said", "-j", "y", *queue]
    # Unbuffered: what a buffer holds, select() does not know of.
    qsub = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
    )
    assert qsub.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        qsub.stdin.write(f". {shlex.quote(str(folder / 'task'))}\n".encode())
        qsub.stdin.close()
    return qsub


def follow(qsub: subprocess.Popen[bytes], files: GrowingFiles, notice_seconds: float) -> int:
    """Passes on the tasks' output until all have ended, or the others have had their time after the first failure.

    Returns: the exit code of the first failure, else qsub's.
    """
    assert qsub.stdout is not None
    failure = agent.Failure(notice_seconds)
    while not failure.is_over:
        if select.select([qsub.stdout], [], [], _LOOK_SECONDS)[0]:
            line = qsub.stdout.readline()
            if not line:
                break
            if told := code_of(line):
                failure.hear(*told, line.decode(errors="replace").strip())
            else:
                agent.write_line(2, None, line)
        files.hand_on()
    if failure.code:
        return failure.code
    return shell_code(qsub.wait())


def main(order: Mapping[str, Any], words: Sequence[str]) -> int:
    folder = Path(tempfile.mkdtemp(prefix=".gradwire-sge-", dir=order["folder"]))
    with agent.cancelled_at_the_end(lambda: cancel(order["name"], folder)):
        write_script(folder, order["variables"], words)
        files = GrowingFiles(folder)
        code = follow(submit(order, folder), files, order["notice_seconds"])
        if code and not any(folder.glob("out.*")):
            said = folder / "said"
            agent.say(
                f"no task has written to {folder}: do all machines of the queue share that folder? Grid Engine says: "
                f"{said.read_text(errors='replace').strip() if said.exists() else 'nothing'}"
            )
        files.finish()
        return code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
