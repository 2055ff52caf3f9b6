"""The launcher: real child processes, stood in for by small programs; nothing may be left behind."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gradwire.child import Line
from gradwire.launch import JobResult, LocalHost, run_job

ROOT = Path(__file__).resolve().parents[2]
# Announces an endpoint, leaves pid and flags in a folder, ends after FAKE_SECONDS or once "done" is there.
FAKE_SERVER = """\
#!{python}
import os, pathlib, sys, time
words = [word for word in sys.argv[1:] if word != "--servers-optional"]
flags = dict(zip(words[::2], words[1::2]))
name = flags["--role"] + flags.get("--rank", "")
folder = pathlib.Path(os.environ["FAKE_FOLDER"])
(folder / (name + ".flags")).write_text(repr(flags))
(folder / (name + ".pid")).write_text(str(os.getpid()))
if "--announce" in flags and "FAKE_MUTE" not in os.environ:
    os.write(int(flags["--announce"]), b"tcp://127.0.0.1:4242\\n")
    os.close(int(flags["--announce"]))
if "--servers-optional" not in sys.argv:
    print(name, "is up", flush=True)
end = time.monotonic() + float(os.environ.get("FAKE_SECONDS", "60"))
while time.monotonic() < end and not (folder / "done").exists():
    time.sleep(0.01)
sys.exit(int(os.environ.get("FAKE_CODE_" + name, "0")))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the fake server program lives and where the processes of a job leave their pids."""
    program = tmp_path / "fake-server"
    program.write_text(FAKE_SERVER.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("GRADWIRE_SERVER_PROGRAM", str(program))
    monkeypatch.setenv("FAKE_FOLDER", str(tmp_path))
    monkeypatch.setenv("GRADWIRE_LIVENESS_TIMEOUT", "1ms")  # the grace after a failure is then 3 s
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    return tmp_path


def test_a_timeout_beyond_what_the_system_can_wait_is_no_error(folder: Path) -> None:
    (folder / "done").touch()
    assert run_job(["true"], 1, 0, timeout=1e300).exit_code == 0


def python(program: str) -> list[str]:
    """A worker; rank is its rank, folder the fixture's, note(name) leaves its pid there."""
    head = (
        "import os, pathlib, signal, subprocess, sys, time\n"
        "rank = int(os.environ['GRADWIRE_RANK'])\n"
        "folder = pathlib.Path(os.environ['FAKE_FOLDER'])\n"
        "def note(name, pid=None):\n"
        "    (folder / (name + '.tmp')).write_text(str(pid or os.getpid()))\n"
        "    (folder / (name + '.tmp')).rename(folder / (name + '.pid'))\n"
        "note(f'worker{rank}')\n"
    )
    return [sys.executable, "-c", head + program]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie, which only waits to be collected, does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def noted_pids(folder: Path) -> dict[str, int]:
    return {path.stem: int(path.read_text()) for path in folder.glob("*.pid")}


def wait_for(condition, seconds: float = 10.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def assert_none_left(folder: Path, names: set[str]) -> None:
    pids = noted_pids(folder)
    assert set(pids) >= names, "a process of the job never came up, so the test would prove nothing"
    wait_for(
        lambda: not any(alive(pid) for pid in pids.values()), 1.0
    )  # the kernel ends what was killed a bit later


class Recorder:
    """Collects what a job writes and what the launcher says of it."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.said: list[str] = []

    def run(
        self, command: list[str], workers: int = 2, servers: int | None = 0, **options: object
    ) -> JobResult:
        return run_job(
            command,
            workers,
            servers,
            output=self.lines.append,
            report=self.said.append,
            **options,  # type: ignore[arg-type]
        )

    def texts(self, role: str, rank: int | None, stream: str = "stdout") -> list[str]:
        return [li.text for li in self.lines if (li.role, li.rank, li.stream) == (role, rank, stream)]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_worker_learns_who_it_is_in_both_dialects(folder: Path, recorder: Recorder) -> None:
    names = (
        "GRADWIRE_ROLE GRADWIRE_RANK GRADWIRE_NUM_WORKERS GRADWIRE_NUM_SERVERS GRADWIRE_SCHEDULER DMLC_ROLE "
        "DMLC_RANK DMLC_WORKER_ID DMLC_NUM_WORKER DMLC_NUM_SERVER DMLC_PS_ROOT_URI DMLC_PS_ROOT_PORT EXTRA"
    )
    program = f"print(*(os.environ[n] for n in {names!r}.split()))\nif rank: (folder / 'done').touch()"
    result = recorder.run(python(program), servers=3, env={"EXTRA": "e"})
    assert (result.exit_code, result.failed_role, result.cause) == (0, None, None)
    for rank in (0, 1):
        expected = f"worker {rank} 2 3 tcp://127.0.0.1:4242 worker {rank} {rank} 2 3 127.0.0.1 4242 e"
        assert recorder.texts("worker", rank) == [expected]
    assert recorder.texts("scheduler", None) == ["scheduler is up"]
    assert recorder.texts("server", 2) == ["server2 is up"]
    assert_none_left(folder, {"worker0", "worker1", "scheduler", "server0", "server1", "server2"})


def test_servers_are_told_by_flags(folder: Path, recorder: Recorder) -> None:
    env = {"GRADWIRE_RENDEZVOUS_TIMEOUT": "2min", "GRADWIRE_HOST_ID": "here", "PS_VERBOSE": "1"}
    env |= {"GRADWIRE_STREAMS": "3", "GRADWIRE_SERVER_THREADS": "2", "GRADWIRE_CHECKSUM": "off"}
    env |= {"GRADWIRE_CREDIT_BYTES": "64KiB", "GRADWIRE_FUSION_BYTES": "0"}
    recorder.run(python("(folder / 'done').touch()"), workers=1, servers=1, env=env)
    flags = eval((folder / "server0.flags").read_text())
    assert flags == {
        "--role": "server",
        "--scheduler": "tcp://127.0.0.1:4242",
        "--workers": "1",
        "--servers": "1",
        "--rank": "0",
        "--bind-host": "127.0.0.1",
        "--host-id": "here",
        "--log-level": "info",
        "--rendezvous-timeout": "120",
        "--liveness-timeout": "0.001",
        "--streams": "3",
        "--checksum": "off",
        "--log-format": "text",
        "--credit-bytes": "65536",
        "--fusion-bytes": "0",
        "--threads": "2",
    }
    scheduler = eval((folder / "scheduler.flags").read_text())
    assert scheduler["--scheduler"] == "tcp://127.0.0.1:0"


def test_job_variables_of_an_outer_job_are_not_inherited(
    folder: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_SCHEDULER", "tcp://outer:1")
    monkeypatch.setenv("GRADWIRE_RANK", "7")
    monkeypatch.setenv("DMLC_SERVER_ID", "7")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "7")
    others = "'DMLC_SERVER_ID', 'RANK', 'WORLD_SIZE', 'LOCAL_RANK'"
    recorder.run(python(f"print(*(os.environ.get(n) for n in ('GRADWIRE_SCHEDULER', {others})))"))
    assert recorder.texts("worker", 1) == ["tcp://127.0.0.1:4242 None None None None"]


def test_failing_worker_gives_its_own_exit_code(folder: Path, recorder: Recorder) -> None:
    result = recorder.run(python("if rank == 1: sys.exit(7)\ntime.sleep(60)"))
    assert (result.exit_code, result.failed_role, result.failed_rank) == (7, "worker", 1)
    pid = noted_pids(folder)["worker1"]
    assert recorder.said[0] == f"worker 1 (pid {pid}) ended with exit code 7"
    assert "did not end by itself, it still runs" in recorder.said[1]
    assert 3.0 < result.wall_seconds < 6.0
    assert_none_left(folder, {"worker0", "worker1"})


def test_the_first_failure_counts_and_later_ones_are_told(folder: Path, recorder: Recorder) -> None:
    program = "if rank == 1: sys.exit(7)\ntime.sleep(0.5); sys.exit(9)"
    result = recorder.run(python(program))
    assert result.exit_code == 7
    assert len(recorder.said) == 2
    assert recorder.said[1].endswith("ended with exit code 9")


def test_signal_is_named_and_is_128_plus_n(folder: Path, recorder: Recorder) -> None:
    result = recorder.run(python("if rank == 0: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1)"))
    assert (result.exit_code, result.failed_rank) == (128 + 9, 0)
    assert recorder.said[0].endswith("was killed by SIGKILL")


def test_a_worker_may_end_well_before_the_others(folder: Path, recorder: Recorder) -> None:
    result = recorder.run(python("if rank == 1: time.sleep(0.5); print('still here')"))
    assert result.exit_code == 0
    assert recorder.texts("worker", 1) == ["still here"]


def test_stopped_process_is_removed_and_named(folder: Path, recorder: Recorder) -> None:
    program = "if rank == 0: os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(0.3); sys.exit(3)"
    result = recorder.run(python("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + program))
    assert (result.exit_code, result.failed_rank) == (3, 1)
    assert "did not end by itself, it is stopped (SIGSTOP)" in recorder.said[1]
    assert (
        result.wall_seconds < 3.0
    )  # 0.3 s, and 2 s from SIGTERM to SIGKILL: nobody waits for what cannot end
    assert_none_left(folder, {"worker0", "worker1"})


def test_what_a_worker_started_ends_with_it(folder: Path, recorder: Recorder) -> None:
    program = "note(f'child{rank}', subprocess.Popen(['sleep', '60']).pid)"
    result = recorder.run(python(program))
    assert result.exit_code == 0
    assert result.wall_seconds < 10  # the children held the pipes open
    assert_none_left(folder, {"child0", "child1"})


def test_failing_server_fails_the_job(folder: Path, recorder: Recorder) -> None:
    env = {"FAKE_CODE_server1": "5", "FAKE_SECONDS": "0.2"}
    result = recorder.run(python("time.sleep(60)"), servers=2, env=env)
    assert (result.exit_code, result.failed_role, result.failed_rank) == (5, "server", 1)
    assert_none_left(folder, {"worker0", "scheduler", "server0", "server1"})


def test_server_failing_after_the_workers_counts(folder: Path, recorder: Recorder) -> None:
    env = {"FAKE_CODE_server0": "6"}
    result = recorder.run(python("(folder / 'done').touch()"), workers=1, servers=1, env=env)
    assert (result.exit_code, result.failed_role) == (6, "server")


def test_unused_servers_end_without_fuss(folder: Path, recorder: Recorder) -> None:
    result = recorder.run(python("pass"), servers=None)
    assert result.exit_code == 0
    assert recorder.said == []
    assert result.wall_seconds < 3
    assert eval((folder / "server1.flags").read_text())["--rendezvous-timeout"] == "604800"
    assert_none_left(folder, {"scheduler", "server0", "server1"})


def test_scheduler_that_dies_at_once_is_named(folder: Path, recorder: Recorder) -> None:
    env = {"FAKE_MUTE": "1", "FAKE_SECONDS": "0", "FAKE_CODE_scheduler": "4"}
    result = recorder.run(python("pass"), servers=1, env=env)
    assert (result.exit_code, result.failed_role) == (4, "scheduler")
    assert "worker0" not in noted_pids(folder)


def test_scheduler_that_never_announces_is_named(
    folder: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.launch._ANNOUNCE_SECONDS", 0.5)
    result = recorder.run(python("pass"), servers=1, env={"FAKE_MUTE": "1"})
    assert result.exit_code == 1
    assert "did not say within 0.5 s where it listens" in str(result.cause)
    assert_none_left(folder, {"scheduler"})


def test_timeout_stops_the_job(folder: Path, recorder: Recorder) -> None:
    result = recorder.run(python("time.sleep(60)"), timeout=0.5)
    assert result.exit_code == 124
    assert result.wall_seconds < 3
    assert_none_left(folder, {"worker0", "worker1"})


def test_an_output_that_raises_leaves_nothing(folder: Path) -> None:
    def fail(line: Line) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_job(python("print('x'); time.sleep(60)"), 2, 0, output=fail)
    assert not [name for name, pid in noted_pids(folder).items() if alive(pid)]


def test_placement_decides_host_and_addresses(folder: Path, recorder: Recorder) -> None:
    hosts = {
        "worker": LocalHost("127.0.0.5", "host5"),
        "server": LocalHost("127.0.0.6", "host6"),
        "scheduler": LocalHost("127.0.0.7"),
    }
    program = "print(os.environ['GRADWIRE_HOST_ID']); (folder / 'done').touch()"
    recorder.run(python(program), workers=1, servers=1, placement=lambda role, rank: hosts[role])
    assert recorder.texts("worker", 0) == ["host5"]
    server = eval((folder / "server0.flags").read_text())
    assert (server["--bind-host"], server["--host-id"]) == ("127.0.0.6", "host6")
    assert eval((folder / "scheduler.flags").read_text())["--scheduler"] == "tcp://127.0.0.7:0"


def test_a_long_output_arrives_whole(folder: Path, recorder: Recorder) -> None:
    count = 20_000
    recorder.run(python(f"for i in range({count}): print(i, 'x' * 50)"))
    for rank in (0, 1):
        assert [int(text.split()[0]) for text in recorder.texts("worker", rank)] == list(range(count))


@pytest.mark.parametrize(
    ("workers", "servers", "command", "text"),
    [
        (0, 0, ["true"], "run: 0 workers and 0 servers: expected at least 1 worker"),
        (1, -1, ["true"], "run: 1 workers and -1 servers"),
        (1, 0, [], "run: no command"),
    ],
)
def test_misuse(folder: Path, workers: int, servers: int, command: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        run_job(command, workers, servers)


def test_missing_programs_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="run: no-such-program is not a program"):
        run_job(["no-such-program"], 1, 0)
    monkeypatch.setenv("GRADWIRE_SERVER_PROGRAM", "/nowhere/gradwire-server")
    with pytest.raises(
        FileNotFoundError, match="GRADWIRE_SERVER_PROGRAM=/nowhere/gradwire-server is not a program"
    ):
        run_job(["true"], 1, 1)


# The launcher as a process of its own: what signals to it, and its death, do to the job.


def start_launcher(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gradwire.cli", "run", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


SLEEPER = "note(f'child{rank}', subprocess.Popen(['sleep', '60']).pid)\nprint('up')\ntime.sleep(60)"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER
EVERYONE = {"worker0", "worker1", "child0", "child1", "scheduler", "server0"}


@pytest.mark.parametrize(
    ("number", "program", "seconds"),
    [
        (signal.SIGINT, SLEEPER, 6.0),
        (signal.SIGTERM, SLEEPER, 6.0),
        (signal.SIGINT, STUBBORN, 12.0),
    ],
)
def test_signal_to_the_launcher_ends_all(
    folder: Path, number: signal.Signals, program: str, seconds: float
) -> None:
    launcher = start_launcher("-n", "2", "-s", "1", "--", *python(program))
    wait_for(lambda: set(noted_pids(folder)) >= EVERYONE)
    launcher.send_signal(number)
    start = time.monotonic()
    launcher.communicate(timeout=20)
    assert launcher.returncode == 128 + number
    assert time.monotonic() - start < seconds
    assert_none_left(folder, EVERYONE)


def test_second_ctrl_c_does_not_wait(folder: Path) -> None:
    launcher = start_launcher("-n", "2", "-s", "1", "--", *python(STUBBORN))
    wait_for(lambda: set(noted_pids(folder)) >= EVERYONE)
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.3)
    launcher.send_signal(signal.SIGINT)
    start = time.monotonic()
    launcher.communicate(timeout=20)
    assert launcher.returncode == 130
    assert time.monotonic() - start < 1.2


def test_killing_the_launcher_leaves_nothing(folder: Path) -> None:
    launcher = start_launcher("-n", "2", "-s", "1", "--", *python(STUBBORN))
    wait_for(lambda: set(noted_pids(folder)) >= EVERYONE)
    launcher.kill()
    launcher.wait()
    wait_for(lambda: not any(alive(pid) for pid in noted_pids(folder).values()), 3.0)


def test_stopped_worker_ends_with_ctrl_c(folder: Path) -> None:
    launcher = start_launcher("-n", "2", "-s", "1", "--", *python(STUBBORN))
    wait_for(lambda: set(noted_pids(folder)) >= EVERYONE)
    os.kill(noted_pids(folder)["worker1"], signal.SIGSTOP)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=20)
    assert launcher.returncode == 130
    assert_none_left(folder, EVERYONE)


def test_command_line_prefixes_lines_by_stream(folder: Path) -> None:
    program = "print('to', 'out'); print('to err', file=sys.stderr)"
    launcher = start_launcher("-n", "2", "-s", "0", *python(program))
    out, err = launcher.communicate(timeout=20)
    assert launcher.returncode == 0
    assert sorted(out.splitlines()) == ["[worker 0] to out", "[worker 1] to out"]
    assert sorted(err.splitlines()) == ["[worker 0] to err", "[worker 1] to err"]


def test_own_options_end_at_the_command(folder: Path) -> None:
    launcher = start_launcher(
        "-n", "1", "-s", "0", "sh", "-c", 'printf "%s " "$@"; echo', "sh", "-n", "9", "--help", "--json", "x"
    )
    out, _ = launcher.communicate(timeout=20)
    assert out == "[worker 0] -n 9 --help --json x \n"


def test_double_dash_and_failing_code(folder: Path) -> None:
    launcher = start_launcher("-n", "2", "-s", "0", "--", sys.executable, "-c", "import sys; sys.exit(23)")
    _, err = launcher.communicate(timeout=20)
    assert launcher.returncode == 23
    assert "ended with exit code 23" in err


def test_json_record_to_stdout_is_alone_there(folder: Path) -> None:
    launcher = start_launcher(
        "-n", "1", "-s", "0", "--json", "-", "--", *python("print('noise'); sys.exit(5)")
    )
    out, err = launcher.communicate(timeout=20)
    record = json.loads(out)
    assert (record["exit_code"], record["failed_role"], record["failed_rank"]) == (5, "worker", 0)
    assert "[worker 0] noise" in err
