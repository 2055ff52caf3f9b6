"""A program that the fork server runs is like one that the interpreter has started (tests/fork_server)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.processes import is_alive, wait_until

FOLDER = Path(__file__).resolve().parents[1] / "fork_server"
PROGRAM = """
# It says torch, so that it is served; __main__ of the server has imported it.
import os, pathlib, signal, sys, time
if __name__ == "__main__":
    served = "torch" in sys.modules
    print(served, sys.argv[1:], os.getcwd(), os.environ.get("GIVEN"), sys.stdin.read(), flush=True)
    pathlib.Path("pid").write_text(str(os.getpid()))
    exec(os.environ.get("THEN", ""))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which programs are served."""
    path = str(tmp_path_factory.mktemp("server") / "socket")
    process = subprocess.Popen(
        [sys.executable, FOLDER / "server.py", path],
        stdin=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    wait_until(lambda: Path(path).exists(), 60, "the server to listen")
    yield os.environ | {"TEST_FORK_SERVER": path, "PYTHONPATH": str(FOLDER)}
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0


def start(folder: Path, environment: dict[str, str], *words: str, **variables: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, "program.py", *words],
        cwd=folder,
        env=environment | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def begun(
    folder: Path, environment: dict[str, str], then: str
) -> tuple[subprocess.Popen[str], Iterator[str]]:
    """A served program that has come to `then`, and the lines that it writes there."""
    process = start(folder, environment, THEN=then)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    assert process.stdout.readline().startswith("True")
    return process, iter(process.stdout)


def test_it_has_the_folder_the_words_the_variables_and_the_streams(
    tmp_path: Path, server: dict[str, str]
) -> None:
    out, err = start(tmp_path, server, "a", "b c", GIVEN="d").communicate("typed")
    assert (out, err) == (f"True ['a', 'b c'] {tmp_path} d typed\n", "")


@pytest.mark.parametrize(
    ("then", "code", "said"),
    [
        ("", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('bad')", 1, "bad\n"),
        ("raise ValueError('bad')", 1, "ValueError: bad\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("os.kill(os.getppid(), 0); os.abort()", -signal.SIGABRT, ""),
        ("import atexit; atexit.register(os._exit, 9)", 9, ""),
    ],
)
def test_it_ends_as_it_would(tmp_path: Path, server: dict[str, str], then: str, code: int, said: str) -> None:
    process = start(tmp_path, server, THEN=then)
    _, err = process.communicate("")
    assert (process.returncode, err.endswith(said)) == (code, True), err


def test_signals_reach_it(tmp_path: Path, server: dict[str, str]) -> None:
    # Short sleeps: Python runs no handler of a signal that comes just before a long one.
    then = """signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); print('ready', flush=True)
for _ in range(12_000): time.sleep(0.05)"""
    process, lines = begun(tmp_path, server, then)
    assert next(lines) == "ready\n"
    process.terminate()
    assert process.wait(60) == 3


def test_it_dies_with_the_process_that_stands_for_it_and_so_does_what_it_started(
    tmp_path: Path, server: dict[str, str]
) -> None:
    then = (
        "import subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); time.sleep(600)"
    )
    process, lines = begun(tmp_path, server, then)
    started = int(next(lines))
    process.kill()
    pids = [int((tmp_path / "pid").read_text()), started]
    wait_until(lambda: not any(map(is_alive, pids)), 60, "them to end")
    process.wait()


def test_an_ignored_signal_stays_ignored(tmp_path: Path, server: dict[str, str]) -> None:
    words = ["env", "--ignore-signal=INT", sys.executable, "program.py"]
    start(tmp_path, server).communicate("")  # writes the program
    then = "print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    done = subprocess.run(
        words, cwd=tmp_path, env=server | {"THEN": then}, input="", capture_output=True, text=True
    )
    assert done.stdout.splitlines()[1:] == ["True"], done


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "LD_PRELOAD", "TORCH_LOGS", "PYTHONHASHSEED"])
def test_what_would_be_read_at_the_start_is_not_served(
    tmp_path: Path, server: dict[str, str], variable: str
) -> None:
    value = {"LD_PRELOAD": "libm.so.6", "TORCH_LOGS": ""}.get(variable, "3")
    process = start(tmp_path, server, **{variable: value})
    out, err = process.communicate("")
    assert (process.returncode, out.split()[0]) == (0, "False"), err


def test_a_program_without_torch_is_not_served(tmp_path: Path, server: dict[str, str]) -> None:
    (tmp_path / "plain.py").write_text("import sys; print('to' + 'rch' in sys.modules)")
    done = subprocess.run(
        [sys.executable, "plain.py"], cwd=tmp_path, env=server, capture_output=True, text=True
    )
    assert done.stdout == "False\n"


def test_it_has_the_network_of_the_process_that_stands_for_it(tmp_path: Path, server: dict[str, str]) -> None:
    start(tmp_path, server).communicate("")  # writes the program
    then = "print(os.readlink('/proc/self/ns/net'), os.readlink(f'/proc/{os.environ[\"OUTER\"]}/ns/net'))"
    words = ["unshare", "--net", "sh", "-c", f"OUTER=$$ {sys.executable} program.py"]
    done = subprocess.run(
        words, cwd=tmp_path, env=server | {"THEN": then}, input="", capture_output=True, text=True
    )
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr)
    served, line = done.stdout.splitlines()
    assert served.startswith("True"), done
    assert len(set(line.split())) == 1, done
    assert line.split()[0] != os.readlink("/proc/self/ns/net")


def test_a_program_that_begins_with_a_module_of_another_is_not_served(
    tmp_path: Path, server: dict[str, str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('first')")
    for path in (f"{tmp_path}:{FOLDER}", f"{FOLDER}:{tmp_path}"):
        out, err = start(tmp_path, server, PYTHONPATH=path).communicate("")
        assert ("True" in out, "False" in out) == (False, True), err
