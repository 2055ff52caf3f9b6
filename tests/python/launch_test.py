"""The launcher: real child processes, stood in for by small programs; nothing may be left behind."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest
from gradwire.launch import supervisor as launch
from gradwire.launch.child import Line
from gradwire.launch.job import make_job
from gradwire.launch.remote.ssh import SshHost, forwarded
from gradwire.launch.supervisor import JobResult, LocalHost, run_job
from integration.processes import is_alive
from python.small_jobs import (
    LONGER_AND_LONGER,
    SECONDS,
    assert_none_left,
    folder_of_a_job,
    noted_pids,
    python,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folder_of_a_job(tmp_path, monkeypatch)


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
    program = f"print(*(os.environ[n] for n in {names!r}.split()))\n"
    program += "await_start('server0', 'server1', 'server2')\nif rank: (folder / 'done').touch()"
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
    env |= {"GRADWIRE_CREDIT_BYTES": "64KiB", "GRADWIRE_FUSION_BYTES": "0", "GRADWIRE_FAULTS": "drop=1%"}
    recorder.run(python("await_start('server0')\n(folder / 'done').touch()"), workers=1, servers=1, env=env)
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
        "--faults": "drop=1%",
        "--threads": "2",
    }
    scheduler = eval((folder / "scheduler.flags").read_text())
    assert scheduler["--scheduler"] == "tcp://127.0.0.1:0"
    assert scheduler["--faults"] == "drop=1%"


def test_job_variables_of_an_outer_job_are_not_inherited(
    folder: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_SCHEDULER", "tcp://outer:1")
    monkeypatch.setenv("GRADWIRE_RANK", "7")
    monkeypatch.setenv("DMLC_SERVER_ID", "7")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # or rank 0 would serve no store
    others = "'DMLC_SERVER_ID', 'TORCHELASTIC_USE_AGENT_STORE'"
    recorder.run(python(f"print(*(os.environ.get(n) for n in ('GRADWIRE_SCHEDULER', {others})))"))
    assert recorder.texts("worker", 1) == ["tcp://127.0.0.1:4242 None None"]


PRINT_TORCHS = python(
    "names = 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT'\n"
    "print(*(os.environ.get(n) for n in names.split()))"
)


@pytest.mark.parametrize("outer", [None, "GRADWIRE_ROLE", "TORCHELASTIC_RUN_ID"])
def test_a_worker_learns_who_it_is_as_torch_distributed_asks(
    outer: str | None, folder: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts with DDP or FSDP had not started under `gradwire run`."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "GRADWIRE_ROLE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    if outer is not None:
        monkeypatch.setenv(outer, "worker")
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
            monkeypatch.setenv(name, "7")
        monkeypatch.setenv("MASTER_ADDR", "outer")
    recorder.run(PRINT_TORCHS)
    told = [recorder.texts("worker", rank)[0].split() for rank in (0, 1)]
    assert [each[:5] for each in told] == [[str(rank), "2", str(rank), "2", "127.0.0.1"] for rank in (0, 1)]
    assert told[0][5] == told[1][5] != "7"
    assert int(told[0][5]) > 0


def test_a_place_for_torchs_ranks_that_was_given_counts(folder: Path, recorder: Recorder) -> None:
    recorder.run(PRINT_TORCHS, env={"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "7"})
    assert recorder.texts("worker", 1) == ["1 2 1 2 10.0.0.9 7"]


def test_torchs_ranks_meet_on_the_host_of_rank_0() -> None:
    hosts = [
        SshHost(name, address, ("ssh",), "/tmp") for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2"))
    ]
    job = make_job(
        ["true"], 4, 0, {}, placement=lambda role, rank: hosts[rank // 2] if role == "worker" else None
    )
    found = [forwarded(job.worker(rank, "tcp://10.0.0.9:1").environment, ()) for rank in range(4)]
    assert [each["RANK"] for each in found] == ["0", "1", "2", "3"]
    assert [each["LOCAL_RANK"] for each in found] == ["0", "1", "0", "1"]
    assert {(each["WORLD_SIZE"], each["LOCAL_WORLD_SIZE"], each["MASTER_ADDR"]) for each in found} == {
        ("4", "2", "10.0.0.1")
    }
    assert len({each["MASTER_PORT"] for each in found}) == 1


def test_torchs_ranks_are_not_told_where_workers_come_and_go() -> None:
    job = make_job(["true"], 2, 0, {"GRADWIRE_ON_FAILURE": "continue"})
    assert "RANK" not in job.worker(1, "tcp://10.0.0.9:1").environment


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--nproc-per-node", "2", "train.py"],
        ["/usr/bin/mpirun", "-n", "2", "train"],
        ["python", "-u", "-m", "torch.distributed.run", "train.py"],
    ],
)
def test_what_starts_workers_itself_is_no_worker(command: list[str]) -> None:
    """Under `gradwire ab` it hung without a word."""
    with pytest.raises(
        ValueError, match=r"starts workers, and so does gradwire: give the command of one worker"
    ):
        make_job(command, 2, 0, {})
    elsewhere = SshHost("a", "10.0.0.1", ("ssh",), "/tmp")
    with pytest.raises(ValueError, match="starts workers"):
        make_job(command, 2, 0, {}, placement=lambda role, rank: elsewhere if role == "worker" else None)
    make_job([sys.executable, "-m", "torch.distributed.elastic"], 2, 0, {})


def test_failing_worker_gives_its_own_exit_code(folder: Path, recorder: Recorder) -> None:
    result = recorder.run(python("if rank == 1: sys.exit(7)\ntime.sleep(600)"))
    assert (result.exit_code, result.failed_role, result.failed_rank) == (7, "worker", 1)
    pid = noted_pids(folder)["worker1"]
    assert recorder.said[0] == f"worker 1 (pid {pid}) ended with exit code 7"
    assert re.fullmatch(r"waiting \d s more for worker 0 to end", recorder.said[1])
    assert "did not end by itself, it still runs" in recorder.said[2]
    assert 3.0 < result.wall_seconds < SECONDS
    assert_none_left(folder, {"worker0", "worker1"})


@pytest.fixture
def time_to_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have time to end by themselves, also on a busy machine."""
    monkeypatch.setattr(launch, "_NOTICE_SECONDS", SECONDS)


@pytest.mark.usefixtures("time_to_notice")
def test_the_first_failure_counts_and_later_ones_are_told(folder: Path, recorder: Recorder) -> None:
    program = "if rank == 1: sys.exit(7)\nawait_end('worker1'); sys.exit(9)"
    result = recorder.run(python(program))
    assert result.exit_code == 7
    assert len(recorder.said) == 3
    assert recorder.said[1].endswith("ended with exit code 9")
    assert recorder.said[2] == "worker 1 failed first: it ended with exit code 7"


@pytest.mark.usefixtures("time_to_notice")
def test_who_has_heard_of_a_failure_is_not_first_though_it_ends_first(
    folder: Path, recorder: Recorder
) -> None:
    heard = "import gradwire\nif rank == 0: raise gradwire.TransportError('worker 1 failed')\n"
    fails = "await_end('worker0'); raise ValueError('no such image')"
    result = recorder.run(python(heard + fails))
    assert (result.exit_code, result.failed_role, result.failed_rank) == (1, "worker", 1), recorder.said
    told = "worker 1 failed first: ValueError: no such image; see its traceback above"
    assert recorder.said[-1] == told, recorder.said


@pytest.mark.usefixtures("time_to_notice")
@pytest.mark.parametrize("end", ["raise ValueError('no such image')", "sys.exit(3)"])
def test_a_server_that_has_heard_of_a_failure_is_not_first_though_it_ends_first(
    folder: Path, recorder: Recorder, end: str
) -> None:
    program = f"if rank == 0: (folder / 'done').touch()\nawait_end('server1'); {end}"
    result = recorder.run(python(program), workers=1, servers=2, env={"FAKE_END_server1": "1"})
    assert (result.failed_role, result.failed_rank) == ("worker", 0), recorder.said
    assert recorder.said[-1].startswith("worker 0 failed first: "), recorder.said


def test_signal_is_named_and_is_128_plus_n(folder: Path, recorder: Recorder) -> None:
    result = recorder.run(python("if rank == 0: os.kill(os.getpid(), signal.SIGKILL)\nawait_end('worker0')"))
    assert (result.exit_code, result.failed_rank) == (128 + 9, 0)
    assert recorder.said[0].endswith("was killed by SIGKILL")


def test_the_result_says_whether_who_asks_can_go_on() -> None:
    JobResult(0, None, None, 1.0).require_success("bench")
    with pytest.raises(RuntimeError, match=r"^bench: it ended\n  \| so\n  \| it went$"):
        JobResult(7, "worker", 1, 1.0, "it ended").require_success("bench", ["so", "it went"])
    with pytest.raises(KeyboardInterrupt):
        JobResult(130, None, None, 1.0, "stopped", signal.SIGINT).require_success("bench")


def test_a_worker_may_end_well_before_the_others(folder: Path, recorder: Recorder) -> None:
    result = recorder.run(python("if rank == 1: await_end('worker0'); print('still here')"))
    assert result.exit_code == 0
    assert recorder.texts("worker", 1) == ["still here"]


@pytest.mark.usefixtures("time_to_notice")
def test_stopped_process_is_removed_and_named(folder: Path, recorder: Recorder) -> None:
    program = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if rank == 0: os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)\n"
        "await_start('worker0')\n"
        "state = pathlib.Path('/proc') / (folder / 'worker0.pid').read_text() / 'stat'\n"
        "while state.read_text().rpartition(')')[2].split()[0] != 'T': time.sleep(0.01)\n"
        "sys.exit(3)\n"
    )
    result = recorder.run(python(program))
    assert (result.exit_code, result.failed_rank) == (3, 1)
    assert "did not end by itself, it is stopped (SIGSTOP)" in recorder.said[1]
    assert result.wall_seconds < SECONDS, "nobody waits for what cannot end"
    assert_none_left(folder, {"worker0", "worker1"})


def test_what_a_worker_started_ends_with_it(folder: Path, recorder: Recorder) -> None:
    program = "note(f'child{rank}', subprocess.Popen(['sleep', '600']).pid)"
    result = recorder.run(python(program))
    assert result.exit_code == 0
    assert result.wall_seconds < SECONDS  # the children held the pipes open
    assert_none_left(folder, {"child0", "child1"})


def test_failing_server_fails_the_job(folder: Path, recorder: Recorder) -> None:
    program = "if rank == 0: await_start('server0', 'server1'); (folder / 'done').touch()\ntime.sleep(600)"
    result = recorder.run(python(program), servers=2, env={"FAKE_END_server1": "5"})
    assert (result.exit_code, result.failed_role, result.failed_rank) == (5, "server", 1)
    assert_none_left(folder, {"worker0", "scheduler", "server0", "server1"})


def test_server_failing_after_the_workers_counts(folder: Path, recorder: Recorder) -> None:
    env = {"FAKE_END_server0": "6"}
    program = "await_start('server0')\n(folder / 'done').touch()"
    result = recorder.run(python(program), workers=1, servers=1, env=env)
    assert (result.exit_code, result.failed_role) == (6, "server")


def test_unused_servers_end_without_fuss(
    folder: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.launch.supervisor._DRAIN_SECONDS", 600.0)  # of servers that were asked for
    result = recorder.run(python("await_start('server0', 'server1')"), servers=None)
    assert result.exit_code == 0
    assert recorder.said == []
    assert result.wall_seconds < SECONDS
    assert eval((folder / "server1.flags").read_text())["--rendezvous-timeout"] == "604800"
    assert_none_left(folder, {"scheduler", "server0", "server1"})


def test_scheduler_that_dies_at_once_is_named(folder: Path, recorder: Recorder) -> None:
    env = {"FAKE_MUTE": "1", "FAKE_SECONDS": "0", "FAKE_END_scheduler": "4"}
    result = recorder.run(python("pass"), servers=1, env=env)
    assert (result.exit_code, result.failed_role) == (4, "scheduler")
    assert "worker0" not in noted_pids(folder)


def test_scheduler_that_never_announces_is_named(
    folder: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in LONGER_AND_LONGER:
        monkeypatch.setattr("gradwire.launch.supervisor._ANNOUNCE_SECONDS", seconds)
        result = recorder.run(python("pass"), servers=1, env={"FAKE_MUTE": "1"})
        assert result.exit_code == 1
        assert f"did not say within {seconds:g} s where it listens" in str(result.cause)
        if "scheduler" in noted_pids(folder):
            break
    assert_none_left(folder, {"scheduler"})


def test_timeout_stops_the_job(folder: Path, recorder: Recorder) -> None:
    for seconds in LONGER_AND_LONGER:
        result = recorder.run(python("time.sleep(600)"), timeout=seconds)
        assert result.exit_code == 124
        assert seconds <= result.wall_seconds < seconds + SECONDS
        if {"worker0", "worker1"} <= set(noted_pids(folder)):
            break
    assert_none_left(folder, {"worker0", "worker1"})


def test_a_timeout_beyond_what_the_system_can_wait_is_no_error(folder: Path) -> None:
    (folder / "done").touch()
    assert run_job(["true"], 1, 0, timeout=1e300).exit_code == 0


def test_an_output_that_raises_leaves_nothing(folder: Path) -> None:
    def fail(line: Line) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_job(python("print('x'); time.sleep(600)"), 2, 0, output=fail)
    assert not [name for name, pid in noted_pids(folder).items() if is_alive(pid)]


def test_placement_decides_host_and_addresses(folder: Path, recorder: Recorder) -> None:
    hosts = {
        "worker": LocalHost("127.0.0.5", "host5"),
        "server": LocalHost("127.0.0.6", "host6"),
        "scheduler": LocalHost("127.0.0.7"),
    }
    program = "print(os.environ['GRADWIRE_HOST_ID']); await_start('server0'); (folder / 'done').touch()"
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
        (10**12, None, ["true"], "run: 1000000000000 workers .* and at most 65536 of each"),
        (1, 10**12, ["true"], "run: 1 workers and 1000000000000 servers: .* and at most 65536 of each"),
        (1, 0, [], "run: no command"),
    ],
)
def test_misuse(folder: Path, workers: int, servers: int | None, command: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        run_job(command, workers, servers)


@pytest.mark.parametrize("role", ["all", "worker", "server"])
def test_an_address_that_is_not_this_machines_is_refused(role: str, folder: Path) -> None:
    """Processes failed one after the other, and a server was called the first."""
    given = {"GRADWIRE_BIND_HOST": "192.0.2.1"}
    options = {"env": given} if role == "all" else {"role_env": {role: given}}
    with pytest.raises(
        ValueError, match=r"^run: GRADWIRE_BIND_HOST=192\.0\.2\.1: .* expected one of its own, or \*$"
    ):
        run_job(["true"], 1, 1, **options)  # type: ignore[arg-type]
    assert noted_pids(folder) == {}


def test_a_python_whose_environment_is_not_active_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "train.py").touch()
    monkeypatch.setenv("PATH", str(folder))
    own = rf"; the Python of this gradwire is {re.escape(sys.executable)}: activate its environment, or name it$"
    for name in ("python", "python3.11", Path(sys.executable).name):
        with pytest.raises(FileNotFoundError, match=f"run: {name} is not a program: expected .*{own}"):
            run_job([name, "train.py"], 1, 0)
    for other in ("no-such-program", str(folder / "no-such-program")):
        with pytest.raises(FileNotFoundError, match=r"or a program on PATH$"):
            run_job([other], 1, 0)


def test_missing_programs_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="run: no-such-program is not a program"):
        run_job(["no-such-program"], 1, 0)
    monkeypatch.setenv("GRADWIRE_SERVER_PROGRAM", "/nowhere/gradwire-server")
    with pytest.raises(
        FileNotFoundError, match="GRADWIRE_SERVER_PROGRAM=/nowhere/gradwire-server is not a program"
    ):
        run_job(["true"], 1, 1)


LASTING = {"GRADWIRE_ON_FAILURE": "continue"}
_END = "(folder / 'done').touch()\n"  # has the scheduler end
_OUTLIVES = "await_end('worker1')\n" + _END


def test_a_worker_that_fails_does_not_end_a_job_that_goes_on(folder: Path) -> None:
    said = Recorder()
    result = said.run(
        python("sys.exit(3) if rank == 1 else None\n" + _OUTLIVES), 3, env=LASTING, timeout=SECONDS
    )
    assert result.exit_code == 0
    assert result.failed_role is None
    assert len(result.lost) == 1
    assert "worker 1 (pid" in result.lost[0]
    assert "ended with exit code 3" in result.lost[0]
    assert any(text.endswith("the job goes on without it") for text in said.said), said.said
    assert any("gradwire run --join tcp://127.0.0.1:4242" in text for text in said.said), said.said
    assert_none_left(folder, {"worker0", "worker1", "worker2", "scheduler"})


def test_another_worker_is_started_in_its_place_so_often(folder: Path) -> None:
    fails_twice = (
        "if rank == 1:\n"
        "    count = len(list(folder.glob('tries.*')))\n"
        "    (folder / f'tries.{count}').touch()\n"
        "    sys.exit(4)\n"
        "while len(list(folder.glob('tries.*'))) < 3: time.sleep(0.01)\n"
    )
    result = Recorder().run(python(fails_twice + _END), 2, env=LASTING, restarts=2, timeout=SECONDS)
    assert (result.exit_code, result.restarted, len(result.lost)) == (0, 2, 3)


def test_who_is_started_in_the_place_of_another_is_not_killed_as_that_was(folder: Path) -> None:
    program = (
        "print(os.environ['GRADWIRE_FAULTS'])\n"
        "if rank == 1: (folder / f\"try.{len(list(folder.glob('try.*')))}\").touch()\n"
        "if rank == 1 and not (folder / 'try.1').exists(): sys.exit(4)\n"
        "while not (folder / 'try.1').exists(): time.sleep(0.01)\n"
    )
    said = Recorder()
    variables = LASTING | {"GRADWIRE_FAULTS": "seed=7,kill=worker:1@push:40,kill=worker:*@pull,drop=1%"}
    result = said.run(python(program + _END), 2, env=variables, restarts=1, timeout=SECONDS)
    assert (result.exit_code, result.restarted) == (0, 1)
    assert said.texts("worker", 0) == [variables["GRADWIRE_FAULTS"]]
    assert said.texts("worker", 1) == [variables["GRADWIRE_FAULTS"], "seed=7,drop=1%"]


@pytest.mark.parametrize("workers", [2, 3])
def test_who_fails_when_others_have_come_to_the_end_is_not_replaced(folder: Path, workers: int) -> None:
    """A worker that waits to be taken in hears that the job is over, or one dies as it leaves; others linger."""
    program = "if rank == 0: sys.exit(0)\nawait_end('worker0')\nif rank == 1: sys.exit(5)\n"
    said = Recorder()
    variables = LASTING | {"FAKE_SECONDS": "3"}
    result = said.run(python(program + _OUTLIVES), workers, env=variables, restarts=2, timeout=SECONDS)
    assert (result.exit_code, result.failed_role, result.restarted, len(result.lost)) == (0, None, 0, 1)
    assert any("exit code 5; other workers have finished the job" in text for text in said.said), said.said


def test_a_job_of_which_nobody_is_left_ends_with_a_workers_own_code(folder: Path) -> None:
    """Whoever fails before it has met the others is nobody's loss: no scheduler says anything of it."""
    result = Recorder().run(
        python("sys.exit(3)\n"), 2, env=LASTING | {"GRADWIRE_LIVENESS_TIMEOUT": "0.2s"}, timeout=SECONDS
    )
    assert (result.exit_code, result.failed_role, len(result.lost)) == (3, "worker", 2)
    assert_none_left(folder, {"worker0", "worker1", "scheduler"})


def test_a_job_that_all_leave_with_errors_has_failed(folder: Path) -> None:
    """Each says goodbye as it ends, and so the scheduler ends well, before the launcher has heard of any error."""
    program = "if rank == 0: (folder / 'done').touch()\nawait_end('scheduler')\nsys.exit(3)\n"
    said = Recorder()
    result = said.run(python(program), 2, env=LASTING, restarts=1, timeout=SECONDS)
    assert (result.exit_code, result.failed_role, result.restarted, len(result.lost)) == (3, "worker", 0, 2)
    assert any("ended with exit code 3; all have left the job" in text for text in said.said), said.said


def test_the_schedulers_verdict_ends_a_job_that_goes_on(folder: Path) -> None:
    program = "if rank == 1: await_start('worker0'); (folder / 'done').touch()\ntime.sleep(600)\n"
    variables = LASTING | {"FAKE_END_scheduler": "1"}
    result = Recorder().run(python(program), 2, env=variables, timeout=SECONDS)
    assert (result.exit_code, result.failed_role) == (1, "scheduler")
    assert_none_left(folder, {"worker0", "worker1", "scheduler"})


def test_workers_that_join_a_job_are_all_that_is_started(folder: Path) -> None:
    program = "import os\nassert 'GRADWIRE_RANK' not in os.environ\nprint(os.environ['GRADWIRE_SCHEDULER'])\n"
    said = Recorder()
    result = said.run(
        [sys.executable, "-c", program], 2, env=LASTING, joins="tcp://10.0.0.9:7", timeout=SECONDS
    )
    assert result.exit_code == 0
    assert [line.text for line in said.lines] == ["tcp://10.0.0.9:7"] * 2
    assert noted_pids(folder) == {}
