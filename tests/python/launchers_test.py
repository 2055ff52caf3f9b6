"""What launchers put where; nothing is started here. Real jobs by each of them are in integration/launchers_test.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gradwire.launch import launchers
from gradwire.launch import mpi as mpi_launch
from gradwire.launch.child import Line, LocalHost
from gradwire.launch.external_launcher import StarterJob
from gradwire.launch.hosts import HostSlots
from gradwire.launch.job import Job, Process, make_job
from gradwire.launch.output_folder import OutputFolder
from gradwire.launch.remote.ssh import GREETING, HostUnreachable, SshHost, forwarded, own_address, resolve
from integration.processes import FOLDER_OF_MPIRUN
from python.prepared_jobs import prepared, request

HERE = LocalHost("10.0.0.9")


def host(number: int) -> LocalHost:
    return LocalHost(f"10.0.0.{number}")


def test_workers_fill_slots_and_servers_take_the_hosts_that_are_left() -> None:
    hosts = [host(number) for number in range(4)]
    rows = [HostSlots(str(number), 2) for number in range(4)]
    place = launchers.placed(rows, hosts, HERE, workers=3)
    assert [place("worker", rank) for rank in range(3)] == [hosts[0], hosts[0], hosts[1]]
    assert [place("server", rank) for rank in range(3)] == [hosts[2], hosts[3], hosts[2]]
    assert place("scheduler", 0) is HERE


def test_a_host_may_have_any_number_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of all slots filled the memory."""
    place = launchers.placed([HostSlots("1", 10**15)], [host(1)], HERE, workers=3)
    assert place("worker", 2) == host(1)
    job = prepared(request("slurm", hosts=f"n1,n2:{10**15}", workers=3), monkeypatch)
    assert isinstance(job, StarterJob)
    assert job.hosts == ["n1", "n2", "n2"]


def test_servers_share_the_hosts_of_workers_where_none_is_left() -> None:
    hosts = [host(number) for number in range(2)]
    place = launchers.placed([HostSlots("a", 1), HostSlots("b", 1)], hosts, HERE, workers=2)
    assert [place("server", rank) for rank in range(3)] == [hosts[0], hosts[1], hosts[0]]


def test_this_machine_among_other_hosts_goes_by_an_address_that_they_reach() -> None:
    mine, other = SshHost("localhost", "127.0.1.1", ("ssh",), "."), SshHost("n1", "10.0.0.1", ("ssh",), ".")
    assert launchers.first_remote([mine, other]) == "10.0.0.1"
    assert launchers.reachable(mine, HERE).address == HERE.address
    assert launchers.reachable(other, HERE) is other


def test_the_scheduler_is_where_other_hosts_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"localhost": "127.0.0.1", "n1": "10.0.0.1"}
    routes = {"10.0.0.1": HERE.address, "127.0.0.1": "127.0.0.1"}
    monkeypatch.setattr(launchers.ssh, "resolve", lambda name, ssh: addresses[name])
    monkeypatch.setattr(launchers.ssh, "own_address", routes.__getitem__)
    given: dict[str, object] = {}
    monkeypatch.setattr(launchers, "run_job", lambda *words, **options: given.update(options))
    launchers.run(request("ssh", servers=0, hosts="localhost,n1"), lambda line: None, lambda text: None)
    place = given["placement"]
    assert callable(place)
    assert place("scheduler", 0).address == HERE.address
    assert [place("worker", rank).address for rank in range(2)] == [HERE.address, "10.0.0.1"]


def test_this_machine_alone_stays_on_loopback() -> None:
    mine = SshHost("localhost", "127.0.1.1", ("ssh",), ".")
    assert launchers.first_remote([mine]) == "127.0.1.1"
    assert launchers.first_remote([]) == "127.0.0.1"
    assert launchers.reachable(mine, LocalHost()) is mine


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "--launcher ssh needs hosts: give -H node1:2,node2:2, or a file"),
        ({"hosts": "a:1"}, "-H has 1 slot for 2 workers"),
        ({"launcher": "local", "copy_to": "x"}, "--sync-dst-dir needs --launcher ssh or mpi"),
        ({"launcher": "mpi", "copy_to": "x"}, "--sync-dst-dir x copies to other hosts, but there is no -H"),
        ({"launcher": "mpi", "copy_to": "x", "hosts": "localhost:2"}, "names this machine only"),
        *(
            (
                {"launcher": launcher, **options},
                f"{named}.* with --launcher {launcher}, where all processes end",
            )
            for launcher in ("mpi", "slurm", "sge", "yarn", "kubernetes")
            for options, named in (
                ({"joins": "tcp://10.0.0.1:9"}, "--join tcp://10.0.0.1:9"),
                ({"restarts": 1}, "--restarts 1"),
                ({"env": {"GRADWIRE_ON_FAILURE": "continue"}}, "--on-failure continue"),
                ({"env": {"GRADWIRE_REPLICAS": "1"}}, "--replicas 1"),
            )
        ),
        (
            {"launcher": "pbs"},
            "--launcher pbs is not a launcher: expected one of local, ssh, mpi, slurm, sge",
        ),
        *(
            (
                {"launcher": launcher, "ssh": ("ssh", "-p", "2222")},
                f"'ssh -p 2222' .* needs --launcher ssh or mpi; {launcher} does not use ssh",
            )
            for launcher in ("local", "slurm", "sge", "yarn", "kubernetes")
        ),
        ({"queue": "all.q"}, "--queue all.q needs --launcher sge or yarn; ssh has no queues"),
        (
            {"cores": 2},
            "--cores needs --launcher yarn or kubernetes; ssh does not limit processes",
        ),
        ({"memory": 1 << 30}, "--memory needs --launcher yarn or kubernetes"),
        ({"launcher": "yarn", "memory": 5}, "--memory 5 bytes: expected 1MiB or more, such as 4GB"),
        (
            {"launcher": "sge", "hosts": "a:2"},
            "-H a:2 with --launcher sge, .* leave -H out; --queue all.q@node1",
        ),
        ({"launcher": "sge", "copy_to": "x"}, "--sync-dst-dir x needs --launcher ssh or mpi"),
        (
            {"launcher": "sge", "env": {"GRADWIRE_PLACEMENT": "auto"}},
            "--placement auto .* with --launcher sge: the machine of the rendezvous is not known yet",
        ),
        ({"image": "x"}, "--image x needs --launcher kubernetes"),
        ({"namespace": "x"}, "--namespace x needs --launcher kubernetes"),
        ({"launcher": "kubernetes"}, "--launcher kubernetes needs --image IMAGE: one with gradwire, python3"),
        ({"launcher": "kubernetes", "image": "x", "hosts": "a:2"}, "-H a:2 .* leave -H out$"),
        (
            {"launcher": "kubernetes", "image": "x", "env": {"GRADWIRE_TIMELINE": "f"}},
            "--timeline with --launcher kubernetes: files of pods are deleted with them",
        ),
    ],
)
def test_misuse(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        launchers.run(
            request(**({"launcher": "ssh", "servers": 0} | options)), lambda line: None, lambda text: None
        )


@pytest.mark.parametrize("launcher", ["mpi", "slurm", "sge", "yarn"])
def test_an_empty_variable_counts_as_unset(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was refused, as what such a launcher cannot have."""
    empty = ("GRADWIRE_REPLICAS", "GRADWIRE_ON_FAILURE", "GRADWIRE_PLACEMENT", "GRADWIRE_RENDEZVOUS_TIMEOUT")
    for variables in ({}, dict.fromkeys(empty, ""), {"GRADWIRE_ON_FAILURE": "Abort"}):
        for name, text in variables.items():
            monkeypatch.setenv(name, text)
        hosts = "n1:2" if launcher == "mpi" else None
        job = prepared(request(launcher, env=variables, hosts=hosts), monkeypatch)
        assert job.settings.rendezvous_timeout == (86400 if launcher in ("sge", "yarn") else 60)


def test_a_host_that_is_a_missing_file_is_called_so(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    with pytest.raises(
        ValueError, match=rf"-H has 1 slot for 2 workers \(there is no file {file}: it is taken as"
    ):
        request("ssh", hosts=str(file)).host_rows()
    file.write_text("node1\n")
    with pytest.raises(ValueError, match=r"-H has 1 slot for 2 workers: raise the slots or lower -n$"):
        request("ssh", hosts=str(file)).host_rows()


def test_only_what_a_job_needs_goes_to_other_hosts() -> None:
    given = {
        "GRADWIRE_RANK": "1",
        "DMLC_ROLE": "worker",
        "GLOO_SOCKET_IFNAME": "eth1",
        "PATH": "/p",
        "HOME": "/h",
        "SECRET": "s",
        "MINE": "m",
    }
    assert forwarded(given, {"MINE"}) == {
        "GRADWIRE_RANK": "1",
        "DMLC_ROLE": "worker",
        "GLOO_SOCKET_IFNAME": "eth1",
        "PATH": "/p",
        "MINE": "m",
    }


@pytest.mark.parametrize("name", ["GRADWIRE_HOST_ID", "GRADWIRE_BIND_HOST", "DMLC_NODE_HOST"])
def test_what_names_this_host_goes_to_others_only_by_request(name: str) -> None:
    assert forwarded({name: "here"}, ()) == {}
    assert forwarded({name: "here"}, {name}) == {name: "here"}


def flags(command: Sequence[str]) -> dict[str, str]:
    """The options of a server's command, whoever runs it."""
    words = list(command)[list(command).index("--role") :]
    return dict(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize("named", [False, True])
def test_servers_on_other_hosts_have_no_name_of_this_one(
    named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_HOST_ID", "here")
    other = SshHost("n1", "10.0.0.1", ("ssh",), ".", frozenset({"GRADWIRE_HOST_ID"} if named else ()))
    for place, known in ((None, True), (other, named)):
        job = make_job(["true"], 1, 1, placement=lambda role, rank, place=place: place)
        assert ("--host-id" in flags(job.server_command(0, "tcp://h:1"))) is known


SERVER_SETTINGS = {
    "GRADWIRE_STREAMS": "3",
    "GRADWIRE_CHECKSUM": "off",
    "GRADWIRE_SERVER_THREADS": "2",
    "GRADWIRE_HOST_ID": "here",
}
SERVER_FLAGS = {"--streams": "3", "--checksum": "off", "--threads": "2"}


def mpiruns(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], hosts: list[str]) -> list[Process]:
    """Returns the mpirun of the servers, and that of the workers."""
    jobs: list[Job] = []
    monkeypatch.setattr(mpi_launch, "run_prepared", lambda job, *others: jobs.append(job))
    run_mpi(hosts, env=env)
    return jobs[0].processes("tcp://h:1")


def mpi_server(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], env: dict[str, str], hosts: list[str]
) -> dict[str, str]:
    """Returns the flags with which mpirun starts a server."""
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    return flags(mpiruns(monkeypatch, env, hosts)[0].command)


@pytest.mark.parametrize("hosts", [[], ["10.0.0.1:2"]])
def test_the_two_mpiruns_of_a_job_do_not_make_one_folder_at_once(
    hosts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv(FOLDER_OF_MPIRUN, raising=False)
    servers, workers = mpiruns(monkeypatch, {}, hosts)
    assert FOLDER_OF_MPIRUN not in workers.environment  # Open MPI's own choice
    own = Path(servers.environment[FOLDER_OF_MPIRUN])
    assert own.parent == (Path("/tmp") if hosts else tmp_path)  # which other hosts have
    assert str(os.getuid()) in own.name  # others on the host have theirs


def test_servers_have_a_folder_below_the_one_that_a_user_gives_mpirun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers, workers = mpiruns(monkeypatch, {FOLDER_OF_MPIRUN: "/scratch"}, [])
    assert workers.environment[FOLDER_OF_MPIRUN] == "/scratch"
    assert Path(servers.environment[FOLDER_OF_MPIRUN]).parent == Path("/scratch")


@pytest.mark.parametrize("where", ["local", "remote"])
def test_folders_that_exclude_each_other_are_left_to_the_user(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER_OF_MPIRUN, raising=False)
    servers, _ = mpiruns(monkeypatch, {f"OMPI_MCA_orte_{where}_tmpdir_base": "/scratch"}, [])
    assert FOLDER_OF_MPIRUN not in servers.environment  # mpirun refuses both


def run_mpi(hosts: list[str], env: dict[str, str]) -> None:
    mpi_launch.run_mpi_job(
        ["true"],
        2,
        1,
        env=env,
        role_env={},
        hosts=hosts,
        agent="ssh",
        folder=".",
        address="10.0.0.9" if hosts else "127.0.0.1",
        first="10.0.0.1" if hosts else "127.0.0.1",
        output=lambda line: None,
        report=lambda text: None,
    )


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, {"--bind-host": "127.0.0.1"}),
        ({"GRADWIRE_INTERFACE": "eth7"}, {"--interface": "eth7"}),
        ({"GRADWIRE_INTERFACE": "eth7", "DMLC_NODE_HOST": "10.0.0.9"}, {"--bind-host": "10.0.0.9"}),
    ],
)
def test_servers_under_mpi_have_the_settings(
    where: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = mpi_server(monkeypatch, SERVER_SETTINGS | where, {}, [])
    wanted = SERVER_FLAGS | {"--host-id": "here"} | expected
    assert {name: text for name, text in found.items() if name in wanted} == wanted
    assert len({"--bind-host", "--interface"} & set(found)) == 1


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {"--interface": "eth7"}),
        ({"GRADWIRE_BIND_HOST": "0.0.0.0"}, {"--bind-host": "0.0.0.0"}),
        ({"GRADWIRE_HOST_ID": "one"}, {"--interface": "eth7", "--host-id": "one"}),
    ],
)
def test_servers_under_mpi_on_several_hosts(
    env: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_here = {"GRADWIRE_INTERFACE": "eth7", "GRADWIRE_BIND_HOST": "10.0.0.9"}
    found = mpi_server(monkeypatch, SERVER_SETTINGS | of_here, env, ["n1:1", "n2:1"])
    wanted = SERVER_FLAGS | expected
    assert {name: text for name, text in found.items() if name in wanted} == wanted
    assert {"--bind-host", "--interface", "--host-id"} & set(found) == set(expected)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        (None, "127.0.0.1"),
        ("n1,n2", "10.0.0.1"),
        ("n2,localhost", HERE.address),  # mpirun begins with its own host
        ("n2,n9", HERE.address),
        ("localhost,n2", HERE.address),
    ],
)
def test_workers_under_mpi_that_choose_a_placement_meet_where_rank_0_is(
    hosts: str | None, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers.ssh, "resolve", lambda name, ssh: name.replace("n", "10.0.0."))
    routes = {
        "10.0.0.1": HERE.address,
        "10.0.0.2": HERE.address,
        HERE.address: HERE.address,
        "127.0.0.1": "127.0.0.1",
    }
    monkeypatch.setattr(launchers.ssh, "own_address", routes.__getitem__)
    jobs: list[Job] = []
    monkeypatch.setattr(mpi_launch, "run_prepared", lambda job, *others: jobs.append(job))
    given = request("mpi", servers=0, hosts=hosts, env={"GRADWIRE_PLACEMENT": "auto"})
    launchers.run(given, lambda line: None, lambda text: None)
    assert jobs[0].meeting["GRADWIRE_MASTER"].startswith(f"tcp://{first}:")
    assert jobs[0].host("scheduler", 0).address == (HERE.address if hosts else "127.0.0.1")


def test_the_users_ssh_options_come_first_and_count() -> None:
    words = SshHost("n1", "10.0.0.1", ("ssh", "-o", "ConnectTimeout=3"), ".").command("true")
    assert words.index("ConnectTimeout=3") < words.index("ConnectTimeout=10")
    assert words[-3:] == ["--", "n1", "true"]


def ssh_of_shell(folder: Path, shell: str) -> str:
    """A program in ssh's place: it has a login shell of this machine run the line."""
    program = folder / "ssh"
    program.write_text(f'#!/bin/sh\nfor line; do :; done\nexec {shell} -c "$line"\n')
    program.chmod(0o755)
    return str(program)


# A stand-in for csh, which takes no line end within quotes, and for fish, to which $p=... is nothing.
STRICT = """\
#!{python}
import os, shlex, sys
line = sys.argv[2]
assert "\\n" not in line, "Unmatched '."
words = shlex.split(line)
assert words[0] == "exec", line
os.execvp(words[1], words[1:])
"""


@pytest.mark.parametrize("shell", ["sh", "bash", "csh", "tcsh", "fish", "zsh", "strict"])
@pytest.mark.parametrize("place", ["as it is", "with $a ' quote", "not there"])
def test_processes_start_whatever_the_login_shell_and_python_is_called(
    shell: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shell == "strict":
        (tmp_path / shell).write_text(STRICT.format(python=sys.executable))
        (tmp_path / shell).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    client = ssh_of_shell(tmp_path, shell)
    if place != "as it is":
        folder = tmp_path / place
        folder.mkdir()
        if place != "not there":
            (folder / "python").symlink_to(sys.executable)
        monkeypatch.setattr(sys, "executable", str(folder / "python"))
    host = SshHost("n1", "10.0.0.1", (client,), str(tmp_path))
    words = ["sh", "-c", 'echo "$0" "$GRADWIRE_RANK"', "a 'b' $c"]
    process = host.popen(
        words,
        env={"GRADWIRE_RANK": "3", "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    text = process.stdout.read().decode()
    assert (process.wait(300), text) == (0, f"{GREETING}\na 'b' $c 3\n"), process.stderr.read().decode()


def test_a_folder_is_copied_to_one_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").write_text("text")
    there = tmp_path / "the 'job' $a"
    SshHost("n1", "10.0.0.1", (ssh_of_shell(tmp_path, "sh"),), str(there)).copy_here(tmp_path / "here")
    assert (there / "file").read_text() == "text"


def test_a_folder_of_any_name_is_brought_here_and_one_that_is_not_there_is_not_missed(tmp_path: Path) -> None:
    host = SshHost("n1", "10.0.0.1", (ssh_of_shell(tmp_path, "sh"),), ".")
    there = tmp_path / "the 'job' $a"
    there.mkdir()
    (there / "file").write_text("text")
    for _ in range(2):
        host.move_here(str(there), tmp_path / "here")
        assert (tmp_path / "here" / "file").read_text() == "text"
        assert not there.exists()


def test_a_folder_that_cannot_be_brought_here_is_named_with_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "ssh"
    broken.write_text("#!/bin/sh\necho no route >&2\nexit 255\n")
    broken.chmod(0o755)
    with pytest.raises(HostUnreachable, match="n1:/parts could not be brought here: no route"):
        SshHost("n1", "10.0.0.1", (str(broken),), ".").move_here("/parts", tmp_path / "here")


def test_that_there_is_no_tar_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    there = SshHost("n1", "10.0.0.1", ("ssh",), "job")
    with pytest.raises(HostUnreachable, match=r"^run: --sync-dst-dir job: no tar on PATH, .*: install it$"):
        there.copy_here(tmp_path)
    with pytest.raises(HostUnreachable, match=r"^run: --timeline: no tar on PATH"):
        there.move_here("/parts", tmp_path / "parts")


def test_a_name_is_what_sshs_configuration_says(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host lab\n  HostName 127.0.0.3\nHost lost\n  HostName no-such-host.invalid\n")
    assert resolve("lab", ("ssh", "-F", str(config))) == "127.0.0.3"
    with pytest.raises(HostUnreachable, match="-H names lost, which has no address"):
        resolve("lost", ("ssh", "-F", str(config)))
    with pytest.raises(HostUnreachable, match="install openssh-client"):
        resolve("lab", (str(tmp_path / "no-ssh"),))


def test_this_machine_has_the_address_that_the_route_gives_it() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"


def test_every_process_has_its_own_files(tmp_path: Path) -> None:
    with OutputFolder(tmp_path / "a" / "b", pytest.fail) as keep:
        keep(Line("worker", 1, "stdout", "one"))
        keep(Line("worker", 1, "stdout", "two"))
        keep(Line("scheduler", None, "stderr", "up"))
        assert (tmp_path / "a" / "b" / "worker-1.stdout").read_text() == "one\ntwo\n"  # before the end, too
    assert (tmp_path / "a" / "b" / "scheduler.stderr").read_text() == "up\n"


def test_servers_with_mirrors_are_as_patient_as_workers() -> None:
    patience = {"GRADWIRE_SLOW_WARNING": "7s", "GRADWIRE_SLOW_ABORT": "9s"}
    mirrored = make_job(["true"], 1, 2, env=patience | {"GRADWIRE_REPLICAS": "1"})
    alone = make_job(["true"], 1, 2, env=patience)
    assert "--replicas 1 --slow-warning 7 --slow-abort 9" in " ".join(mirrored.server_command(0, "tcp://h:1"))
    assert "--slow-abort" not in alone.server_command(0, "tcp://h:1")
