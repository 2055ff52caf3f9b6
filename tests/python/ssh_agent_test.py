"""The program that keeps a process on another host: run here, by a pipe in ssh's place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gradwire.launch.remote import bundle, ssh_agent
from integration.processes import is_alive, wait_until

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"


def start(folder: Path, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
    agent = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", bundle.program(ssh_agent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert agent.stdin is not None
    order = {"folder": str(folder), "environment": environment, "command": command}
    agent.stdin.write(json.dumps(order).encode() + b"\n")
    agent.stdin.flush()
    return agent


def ended(agent: subprocess.Popen[bytes], seconds: float = 10) -> tuple[int, str, str]:
    code = agent.wait(seconds)
    assert agent.stdout is not None
    assert agent.stderr is not None
    return code, agent.stdout.read().decode(), agent.stderr.read().decode()


def test_folder_variables_and_exit_code_are_the_orders(tmp_path: Path) -> None:
    program = "import os, sys; print(os.getcwd(), os.environ['SAYING']); sys.exit(7)"
    assert ended(start(tmp_path, [sys.executable, "-c", program], SAYING="a 'b' $c")) == (
        7,
        f"{tmp_path} a 'b' $c\n",
        "",
    )


def test_a_signal_is_told_as_a_shell_tells_it(tmp_path: Path) -> None:
    program = "import os; os.kill(os.getpid(), 9)"
    assert ended(start(tmp_path, [sys.executable, "-c", program]))[0] == 128 + 9


@pytest.mark.parametrize("program", [SLEEPER, STUBBORN])
def test_the_end_of_the_connection_is_the_end_of_all(program: str, tmp_path: Path) -> None:
    family = (
        f"import os, subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {program!r}]); p.wait()"
    )
    agent = start(tmp_path, [sys.executable, "-c", family], TOKEN=str(tmp_path))
    assert agent.stdin is not None
    assert agent.stdout is not None
    assert agent.stdout.readline() == b"up\n"
    agent.stdin.close()
    agent.wait(300)
    assert agent.stdout.read() == b""  # ends when nobody is left who holds the pipe


FAMILY = """
import os, subprocess, sys, time
here = subprocess.Popen(["sleep", "60"])
own_group = subprocess.Popen(["sleep", "60"], preexec_fn=os.setpgrp)
print(os.getpid(), here.pid, own_group.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_agent_takes_with_it_all_that_was_started(tmp_path: Path) -> None:
    agent = start(tmp_path, [sys.executable, "-c", FAMILY])
    assert agent.stdin is not None
    assert agent.stdout is not None
    pids = [int(word) for word in agent.stdout.readline().split()]
    try:
        agent.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)), 5, f"{pids} to end")
    finally:
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)
        agent.wait()
        for pipe in (agent.stdin, agent.stdout, agent.stderr):
            assert pipe is not None
            pipe.close()


def test_one_that_has_ended_leaves_no_guard(tmp_path: Path) -> None:
    agent = start(tmp_path, ["sh", "-c", "ps -o pid= --ppid $PPID"])
    code, out, _ = ended(agent)
    assert code == 0
    assert len(out.split()) == 2, "the process, and the guard"
    wait_until(lambda: not any(is_alive(int(pid)) for pid in out.split()), 5, f"{out} to end")


def test_what_cannot_be_started_is_told(tmp_path: Path) -> None:
    code, _, err = ended(start(tmp_path, ["no-such-program"]))
    assert code == 127
    assert f"gradwire: {os.uname().nodename}: " in err
    assert "no-such-program" in err
    code, _, err = ended(start(tmp_path / "nowhere", ["true"]))
    assert code == 127
    assert "nowhere" in err


HANDLER = """
import signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: print(number, child.poll(), flush=True))
print("up", flush=True)
while True:
    time.sleep(0.01)
"""


def test_a_line_is_a_signal_for_the_program_alone(tmp_path: Path) -> None:
    agent = start(tmp_path, [sys.executable, "-c", HANDLER])
    assert agent.stdin is not None
    assert agent.stdout is not None
    assert agent.stdout.readline() == b"up\n"
    for number in (signal.SIGUSR1, signal.SIGTERM):
        agent.stdin.write(b"%d\n" % number)
        agent.stdin.flush()
        assert agent.stdout.readline() == b"%d None\n" % number
    agent.stdin.close()
    agent.wait(300)
