"""Jobs by every launcher: ssh to hosts with a real sshd, mpirun, torchrun, srun's environment; and all sum alike."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from gradwire.timeline.command import load
from integration import launched
from integration.mpi_jobs import mpirun
from integration.own_tmp import own_tmp
from integration.processes import (
    NOTICE_SECONDS,
    PROGRAMS,
    START_SECONDS,
    Ended,
    Job,
    agreed,
    assert_gone,
    names,
    python,
    run_to_the_end,
    wait_until,
)
from integration.ssh_hosts import SshLab, processes_with, ssh_lab, why_not
from integration.torch_jobs import torchrun

WORKERS = 4
ARGUMENTS = ("steps=3", "codecs=2bit:threshold=auto;none")
ENDLESS = ("steps=100000", "codecs=2bit:threshold=0.5", "pause=0.01")
needs_sshd = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> object:
    command = python("sums_worker.py", "store=dist_sync", *ARGUMENTS)
    return agreed(run_to_the_end(tmp_path_factory.mktemp("here") / "job", command, workers=WORKERS), WORKERS)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshLab]:
    with ssh_lab(2, tmp_path_factory.mktemp("ssh")) as lab:
        yield lab


def run_by(
    lab: SshLab,
    job: Job,
    command: list[str],
    *options: str,
    launcher: str = "ssh",
    servers: str = "2",
    through: Sequence[str] = (),
) -> None:
    job.start(
        ("run", 0),
        [
            *through,
            *(str(PROGRAMS / "gradwire"), "run", "-n", str(WORKERS), "-s", servers),
            *("--launcher", launcher, "--ssh", lab.client, "-H", ",".join(f"{name}:2" for name in lab.hosts)),
            *("--env", f"TEST_FOLDER={job.folder}", *options, *command),
        ],
    )


def end(job: Job, seconds: float = 90) -> Ended:
    return job.members["run", 0].ended(seconds)


@needs_sshd
def test_workers_and_servers_on_hosts_behind_ssh(hosts: SshLab, reference: object, tmp_path: Path) -> None:
    before = [host.counters().sent_bytes for host in hosts.lab.hosts]
    with Job(tmp_path, {}) as job:
        run_by(hosts, job, python("sums_worker.py", "store=dist_sync", *ARGUMENTS))
        assert agreed(end(job), WORKERS) == reference
    sent = [host.counters().sent_bytes - old for host, old in zip(hosts.lab.hosts, before, strict=True)]
    assert min(sent) > 100_000, f"hosts sent {sent} bytes: the job did not run there"


@needs_sshd
def test_a_hostfile_and_no_servers(hosts: SshLab, reference: object, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("".join(f"{name} slots=2\n" for name in hosts.hosts))
    command = python("sums_worker.py", "store=allreduce", *ARGUMENTS)
    with Job(tmp_path, {}) as job:
        run_by(hosts, job, command, "--hostfile", str(tmp_path / "hosts"), servers="0")
        assert agreed(end(job), WORKERS) == reference


@needs_sshd
def test_the_folder_is_copied_variables_arrive_and_output_is_kept(hosts: SshLab, tmp_path: Path) -> None:
    here, there, kept = tmp_path / "here", tmp_path / "there", tmp_path / "kept"
    here.mkdir()
    (here / "words.txt").write_text("as it was here")
    program = "import os; e = os.environ; print(os.getcwd(), open('words.txt').read(), e['SAYING'], e['GRADWIRE_RANK'])"
    with Job(tmp_path, {}) as job:
        started = [
            *("--sync-dst-dir", str(there), "--env", "SAYING=a 'b' $c", "--output-dir", str(kept)),
            *(sys.executable, "-c", program),
        ]
        words = [str(PROGRAMS / "gradwire"), "run", "-n", "2", "-s", "0", "--launcher", "ssh"]
        words += ["--ssh", hosts.client, "-H", ",".join(hosts.hosts), *started]
        ended = job.start(("run", 0), words, cwd=str(here)).ended(60)
    assert ended.code == 0, str(ended)
    for rank in range(2):
        line = f"{there} as it was here a 'b' $c {rank}"
        assert f"[worker {rank}] {line}\n" in ended.out
        assert (kept / f"worker-{rank}.stdout").read_text() == f"{line}\n"


@needs_sshd
def test_the_failing_workers_own_code_comes_back(hosts: SshLab, tmp_path: Path) -> None:
    program = "import os, sys, time; sys.exit(7) if os.environ['GRADWIRE_RANK'] == '3' else time.sleep(60)"
    token = secrets.token_hex(8)
    with Job(tmp_path, {"GRADWIRE_LIVENESS_TIMEOUT": "1s"}) as job:
        run_by(hosts, job, [sys.executable, "-c", program], "--env", f"TOKEN={token}", servers="0")
        ended = end(job, 40)
    assert ended.code == 7, str(ended)
    assert names(ended.err, ("worker", 3)), str(ended)
    wait_until(lambda: not processes_with(f"TOKEN={token}"), 2, "what ran on the hosts to end")


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder for ssh's control sockets: under a short name, of which the system allows some 100 letters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def shared_by(lab: SshLab, sockets: Path, folder: Path) -> SshLab:
    """lab, for a user whose configuration of ssh shares connections."""
    config = folder / "shared.conf"
    own = Path(lab.client.removeprefix("ssh -F ")).read_text()
    config.write_text(f"{own}  ControlMaster auto\n  ControlPath {sockets}/%C\n")
    return replace(lab, client=f"ssh -F {config}")


@needs_sshd
def test_no_worker_becomes_the_master_of_the_others_connection(
    hosts: SshLab, sockets: Path, tmp_path: Path
) -> None:
    """It would seem to run until they have ended."""
    program = "import os, pathlib, sys, time\n"
    program += "f = pathlib.Path(os.environ['TEST_FOLDER']); r = os.environ['GRADWIRE_RANK']\n"
    program += "(f / f'worker{r}.running').touch()\n"
    program += "while not (f / 'go on').exists(): time.sleep(0.05)\n"
    program += "sys.exit(7 if r == '0' else time.sleep(600))"
    with Job(tmp_path, {"GRADWIRE_LIVENESS_TIMEOUT": "1s"}) as job:
        lab = shared_by(hosts, sockets, tmp_path)
        run_by(lab, job, [sys.executable, "-c", program], servers="0")
        job.wait_until_training(WORKERS)
        assert not list(sockets.iterdir())
        (tmp_path / "go on").touch()
        ended = end(job)
    assert ended.code == 7, str(ended)
    assert names(ended.err, ("worker", 0)), str(ended)


@needs_sshd
def test_a_connection_that_the_user_has_opened_is_used(hosts: SshLab, sockets: Path, tmp_path: Path) -> None:
    """By as many processes as sshd takes on it (MaxSessions, 10); the rest have connections of their own."""
    lab, name, count = shared_by(hosts, sockets, tmp_path), hosts.hosts[0], 12
    log = Path(hosts.client.removeprefix("ssh -F ")).parent / "sshd0.log"
    ssh = lab.client.split()
    subprocess.run(
        [*ssh, "-M", "-N", "-f", name], check=True, timeout=START_SECONDS, stderr=subprocess.DEVNULL
    )
    try:
        before = log.read_text().count("Accepted publickey")
        words = [str(PROGRAMS / "gradwire"), "run", "-n", str(count), "-s", "0", "--launcher", "ssh"]
        program = "import os, time; print(os.environ['GRADWIRE_RANK'], 'is here'); time.sleep(5)"
        with Job(tmp_path, {}) as job:
            command = ["--ssh", lab.client, "-H", f"{name}:{count}", sys.executable, "-c", program]
            ended = job.start(("run", 0), [*words, *command]).ended(START_SECONDS)
        accepted = log.read_text().count("Accepted publickey") - before
    finally:
        subprocess.run([*ssh, "-O", "exit", name], check=True, timeout=START_SECONDS, capture_output=True)
    assert ended.code == 0, str(ended)
    assert ended.out.count("is here") == count, str(ended)
    assert accepted < count, str(ended)


@needs_sshd
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launcher_ends_all_on_every_host(
    number: signal.Signals, hosts: SshLab, tmp_path: Path
) -> None:
    token = secrets.token_hex(8)
    with Job(tmp_path, {}) as job:
        run_by(hosts, job, python("sums_worker.py", "store=dist_sync", *ENDLESS), "--env", f"TOKEN={token}")
        job.wait_until_training(WORKERS)
        there = processes_with(f"TOKEN={token}")
        assert len(there) >= WORKERS
        job.members["run", 0].process.send_signal(number)
        ended = end(job, NOTICE_SECONDS)
        assert_gone(there, 4.0)
    assert ended.code == (-number if number == signal.SIGKILL else 128 + number), str(ended)


def key_of(pid: int) -> str | None:
    """The job key in a process's environment."""
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return next((word.partition("=")[2] for word in words if word.startswith("GRADWIRE_JOB_KEY=")), None)


def command_lines() -> str:
    """Those of all processes, as everybody on the machine can read them."""
    lines = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            lines.append((entry / "cmdline").read_bytes().decode(errors="replace"))
    return "\n".join(lines)


@needs_sshd
def test_a_job_on_other_hosts_has_a_key_and_nobody_is_shown_it(hosts: SshLab, tmp_path: Path) -> None:
    token, kept = secrets.token_hex(8), tmp_path / "kept"
    command = python("sums_worker.py", "store=dist_sync", *ENDLESS)
    with Job(tmp_path, {"GRADWIRE_LOG_LEVEL": "debug"}) as job:
        record = ["--json", str(tmp_path / "record.json")]
        run_by(hosts, job, command, "--env", f"TOKEN={token}", "--output-dir", str(kept), *record)
        job.wait_until_training(WORKERS)
        there = processes_with(f"TOKEN={token}")
        keys = {key_of(pid) for pid in there}
        visible = command_lines()
        job.members["run", 0].process.send_signal(signal.SIGINT)
        ended = end(job, NOTICE_SECONDS)
    (key,) = keys
    assert key is not None, "a job that other machines reach has a key by itself"
    assert visible.count("--key-variable\0GRADWIRE_JOB_KEY") >= 3, (
        "scheduler and servers are told where it is"
    )
    written = "".join(path.read_text() for path in [*kept.rglob("*.std*"), tmp_path / "record.json"])
    assert list(kept.rglob("*.std*"))
    for text in (visible, ended.out, ended.err, written):
        assert key[:16] not in text
        assert key[64:80] not in text


@needs_sshd
def test_a_host_that_nobody_reaches_is_named(hosts: SshLab, tmp_path: Path) -> None:
    with Job(tmp_path, {}) as job:
        wrong = f"{hosts.client} -p 1"
        words = [str(PROGRAMS / "gradwire"), "run", "-n", "1", "-s", "0", "--launcher", "ssh", "--ssh", wrong]
        ended = job.start(("run", 0), [*words, "-H", hosts.hosts[0], "true"]).ended(60)
    assert ended.code == 255, str(ended)
    assert f"connect to host {hosts.hosts[0]} port 1" in ended.err, str(ended)


@needs_sshd
def test_mpirun_over_ssh(hosts: SshLab, reference: object, tmp_path: Path) -> None:
    command = python("sums_worker.py", "store=dist_sync_mpi", *ARGUMENTS)
    subnet = f"{hosts.hosts[0].rpartition('.')[0]}.0/24"
    links = {f"OMPI_MCA_{layer}_tcp_if_include": subnet for layer in ("oob", "btl")}
    with Job(tmp_path, links) as job:
        run_by(hosts, job, command, launcher="mpi", servers="0")
        assert agreed(end(job), WORKERS) == reference


@needs_sshd
@pytest.mark.parametrize("second", ["another", "localhost"])
def test_mpirun_over_ssh_where_workers_choose_a_placement(second: str, hosts: SshLab, tmp_path: Path) -> None:
    names = [hosts.hosts[0], hosts.hosts[1] if second == "another" else second]
    subnet = f"{hosts.hosts[0].rpartition('.')[0]}.0/24"
    links = {f"OMPI_MCA_{layer}_tcp_if_include": subnet for layer in ("oob", "btl")}
    with Job(tmp_path, links) as job:
        words = [str(PROGRAMS / "gradwire"), "run", "-n", "2", "-s", "0", "--launcher", "mpi"]
        words += ["--ssh", hosts.client, "-H", ",".join(names), "--env", f"TEST_FOLDER={job.folder}"]
        words += ["--placement", "auto", *python("sums_worker.py", "store=dist_sync", *ARGUMENTS)]
        agreed(job.start(("run", 0), words).ended(90), 2)


@needs_sshd
@pytest.mark.parametrize(("launcher", "servers"), [("ssh", "2"), ("mpi", "2")])
def test_a_timeline_of_hosts_that_share_no_disk_with_the_launcher(
    launcher: str, servers: str, hosts: SshLab, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    subnet = f"{hosts.hosts[0].rpartition('.')[0]}.0/24"
    links = {f"OMPI_MCA_{layer}_tcp_if_include": subnet for layer in ("oob", "btl")}
    command = python("sums_worker.py", "store=dist_sync", *ARGUMENTS)
    through = own_tmp([tmp_path_factory.getbasetemp()], "out.json", tmp_path / "out.json")
    with Job(tmp_path, links) as job:
        options = ("--timeline", "/tmp/out.json")
        run_by(hosts, job, command, *options, launcher=launcher, servers=servers, through=through)
        agreed(end(job), WORKERS)
    timeline = load(tmp_path / "out.json")
    assert (timeline.workers, timeline.servers, timeline.missing) == (WORKERS, 2, [])
    assert not list(Path("/tmp").glob("gradwire-*.parts")), "what was brought here is left there"


@pytest.mark.parametrize(
    ("store", "servers"), [("dist_sync_mpi", "0"), ("allreduce", "0"), ("dist_sync", "2")]
)
def test_the_launcher_mpi_here(store: str, servers: str, reference: object, tmp_path: Path) -> None:
    words = [str(PROGRAMS / "gradwire"), "run", "-n", str(WORKERS), "-s", servers, "--launcher", "mpi"]
    with Job(tmp_path, {}) as job:
        job.start(("run", 0), [*words, *python("sums_worker.py", f"store={store}", *ARGUMENTS)])
        ended = end(job)
    assert agreed(ended, WORKERS) == reference
    assert all(f"[worker {rank}] {{" in ended.out for rank in range(WORKERS)), str(ended)
    assert "started by" not in ended.err, str(ended)


def test_the_launcher_mpi_returns_the_failing_workers_code(tmp_path: Path) -> None:
    program = (
        "import os, sys, time; sys.exit(7) if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else time.sleep(60)"
    )
    words = [str(PROGRAMS / "gradwire"), "run", "-n", "2", "-s", "0", "--launcher", "mpi"]
    with Job(tmp_path, {}) as job:
        ended = job.start(("run", 0), [*words, sys.executable, "-c", program]).ended(40)
    assert ended.code == 7, str(ended)


def test_the_launcher_mpi_shows_lines_as_ranks_wrote_them(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "for _ in range(5):\n"
        "    for piece in ('  two', ' pieces\\n', 'and'):\n"
        "        print(piece, end='', flush=True)\n"
        "        time.sleep(0.03)\n"
        "print(' end', end='')\n"
    )
    words = [str(PROGRAMS / "gradwire"), "run", "-n", "3", "-s", "0", "--launcher", "mpi"]
    with Job(tmp_path, {}) as job:
        ended = job.start(("run", 0), [*words, sys.executable, "-c", program]).ended(40)
    for rank in range(3):
        expected = ["  two pieces", *["and  two pieces"] * 4, "and end"]
        shown = [line for line in ended.out.splitlines() if line.startswith(f"[worker {rank}] ")]
        assert shown == [f"[worker {rank}] {text}" for text in expected], str(ended)


# Rank 0 ignores SIGTERM; nobody ever calls MPI_Init, so that mpirun's death is nothing that they notice.
STUBBORN = """\
import os, pathlib, signal, time
rank = os.environ["OMPI_COMM_WORLD_RANK"]
if rank == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
(pathlib.Path(os.environ["TEST_FOLDER"]) / f"worker{rank}.running").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launcher_mpi_ends_all(number: signal.Signals, tmp_path: Path) -> None:
    token = f"TOKEN={secrets.token_hex(8)}"
    words = [str(PROGRAMS / "gradwire"), "run", "-n", "2", "-s", "0", "--launcher", "mpi", "--env", token]
    with Job(tmp_path, {}) as job:
        job.start(("run", 0), [*words, sys.executable, "-c", STUBBORN])
        job.wait_until_training(2)
        workers = processes_with(token)
        assert len(workers) >= 2
        job.members["run", 0].process.send_signal(number)
        ended = end(job, NOTICE_SECONDS)
        try:
            assert_gone(workers, 4.0)
        finally:
            for pid in processes_with(token):
                os.kill(pid, signal.SIGKILL)
    assert ended.code == (-number if number == signal.SIGKILL else 128 + number), str(ended)


def test_workers_of_mpirun_save(tmp_path: Path) -> None:
    launched.expect_workers_to_save(launched.Bed("mpi"), tmp_path, "OMPI_COMM_WORLD_RANK")


@needs_sshd
def test_many_workers_on_one_host(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """sshd refuses whoever comes while 10 others connect; its default is to refuse some from then on."""
    with (
        ssh_lab(1, tmp_path_factory.mktemp("one"), max_startups="10:100:10") as lab,
        Job(tmp_path, {}) as job,
    ):
        words = [str(PROGRAMS / "gradwire"), "run", "-n", "24", "-s", "0", "--launcher", "ssh"]
        words += ["--ssh", lab.client, "-H", f"{lab.hosts[0]}:24", "sh", "-c", "echo is here"]
        ended = job.start(("run", 0), words).ended(120)
    assert ended.code == 0, str(ended)
    assert ended.out.count("is here") == 24, str(ended)
    assert "trying once more" not in ended.err, str(ended)


@needs_sshd
def test_workers_behind_ssh_save(hosts: SshLab, tmp_path: Path) -> None:
    options = ("--ssh", hosts.client, "-H", ",".join(hosts.hosts))
    launched.expect_workers_to_save(launched.Bed("ssh", options), tmp_path, "GRADWIRE_RANK")


def test_torchrun(reference: object, tmp_path: Path) -> None:
    command = torchrun("sums_worker.py", "store=allreduce", *ARGUMENTS, workers=WORKERS)
    with Job(tmp_path, {}) as job:
        ended = job.start(("run", 0), command).ended(90)
    assert agreed(ended, WORKERS) == reference
    assert (
        "store 'allreduce' of 4 workers, started by torchrun (TORCHELASTIC_RUN_ID, RANK, WORLD_SIZE)"
        in ended.err
    )


@pytest.mark.parametrize("store", ["allreduce", "dist_sync_mpi"])
def test_mpirun(store: str, reference: object, tmp_path: Path) -> None:
    ended = mpirun(tmp_path / "job", python("sums_worker.py", f"store={store}", *ARGUMENTS), ranks=WORKERS)
    assert agreed(ended, WORKERS) == reference
    assert f"store '{store}' of 4 workers, started by mpirun (OMPI_COMM_WORLD_RANK" in ended.err, str(ended)


def test_srun_by_its_environment(reference: object, tmp_path: Path) -> None:
    step = {
        "SLURM_JOB_ID": str(int.from_bytes(os.urandom(3), "big")),
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": str(WORKERS),
        "SLURM_STEP_NODELIST": "localhost",
    }
    command = python("sums_worker.py", "store=allreduce", *ARGUMENTS)
    with Job(tmp_path, step) as job:
        for rank in range(WORKERS):
            job.start(("worker", rank), command, {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
        ended = [job.members["worker", rank].ended(60) for rank in range(WORKERS)]
    for process in ended:
        assert process.code == 0, str(process)
        assert process.records()[0]["hashes"] == reference
    assert "started by srun (SLURM_STEP_ID, SLURM_PROCID, SLURM_NTASKS)" in ended[0].err
