"""What `gradwire run --launcher slurm` runs in place of srun: srun, with three additions.

A step outlives its srun if that is killed; this wrapper cancels it, from a process in another session that waits for
the wrapper's end. srun's exit code is the largest of all tasks, including tasks that it ended after a failure; the
wrapper's is that of the first failure. On SIGTERM srun kills the step; the wrapper passes SIGTERM, and other signals
that ask workers to save, on to the tasks.

    python srun_wrapper.py NAME srun --job-name=NAME ...

It needs only the standard library, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading

ASK_SECONDS = 20
_FAILED = re.compile(
    rb"srun: error: .*tasks? [\d,-]+: (?:Exited with exit code (\d+)|(.+?)(?: \(core dumped\))?)\n"
)
_UNKNOWN = 1  # how a task failed of which srun says nothing that is known here
# As srun names what ends a task.
_SIGNALS = {str(signal.strsignal(number)).encode(): number for number in signal.valid_signals()} | {
    b"Out Of Memory": signal.SIGKILL  # the kernel's, for which Slurm has a word of its own
}


def code_of(line: bytes) -> int | None:
    """Returns the shell exit code of the tasks whose failure a line of srun reports; None if it reports none."""
    told = _FAILED.match(line)
    if told is None:
        return None
    if told[1] is not None:
        return int(told[1])
    return 128 + _SIGNALS[told[2]] if told[2] in _SIGNALS else _UNKNOWN


def steps_named(name: str) -> list[str]:
    """Returns the ids of the running steps of a name."""
    listed = subprocess.run(
        ["squeue", "--noheader", "--me", "--steps", "--format=%i %j"],
        capture_output=True,
        text=True,
        timeout=ASK_SECONDS,
    )
    return [line.split()[0] for line in listed.stdout.splitlines() if line.split()[1:] == [name]]


def cancel(name: str) -> None:
    """Cancels the step or job of a name, in whatever state it is."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        for of in ([[step] for step in steps_named(name)], [["--me", f"--name={name}"]]):
            for words in of:
                subprocess.run(["scancel", *words], capture_output=True, timeout=ASK_SECONDS)


def signal_tasks(name: str, number: int) -> None:
    """Sends a signal to the tasks of the step of a name."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        for step in steps_named(name):
            words = ["scancel", f"--signal={number}", step]
            subprocess.run(words, capture_output=True, timeout=ASK_SECONDS)


def watch(name: str) -> int:
    """Starts a process that cancels this name if this process ends without a message. Returns where to write it."""
    ours, its = os.pipe()[::-1]
    if os.fork() == 0:
        os.setsid()
        os.close(ours)
        for stream in range(3):  # the launcher reads until all ends of its pipes are closed
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        if not os.read(its, 1):
            cancel(name)
        os._exit(0)
    os.close(its)
    return ours


def main(name: str, command: list[str]) -> int:
    ours = watch(name)
    try:
        srun = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error}\n")
        return 127

    def hand_on(number: int, _: object) -> None:
        threading.Thread(target=signal_tasks, args=(name, number), daemon=True).start()

    for number in (signal.SIGINT, signal.SIGHUP):  # srun has had it too; what it says of it is awaited
        signal.signal(number, lambda *_: None)
    # Where all is to end at once, srun has had SIGTERM too, and kills the step.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        signal.signal(number, hand_on)
    first = None
    assert srun.stderr is not None
    for line in srun.stderr:
        os.write(2, line)
        first = code_of(line) if first is None else first
    code = srun.wait()
    os.write(ours, b"0")
    if code < 0:
        return 128 - code
    return code if first is None or code == 0 else first


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
