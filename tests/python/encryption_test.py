"""Which jobs have a key, who is given it, and where it must never be seen."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from gradwire import _core, doctor, kv
from gradwire.launch.child import Host, LocalHost
from gradwire.launch.job import Job, make_job
from gradwire.launch.remote.ssh import SshHost, forwarded
from gradwire.settings import definitions as settings
from gradwire.settings import encryption
from gradwire.settings import file as settings_file
from gradwire.settings.encryption import JobKey
from gradwire.stores import auto_placement, connect
from rich.console import Console

SERVER_PROGRAM = str(Path(sys.executable).parent / "gradwire-server")
KEY = "0123456789abcdef" * 8
INSIDE = LocalHost("10.7.0.2", "a namespace of this machine")
OTHER_MACHINE = SshHost("n1", "10.0.0.1", ("ssh",), ".")


def job_on(*hosts: Host | None, **env: str) -> Job:
    """A job of one worker and one server whose scheduler, server and worker are on these hosts; none: here."""
    places = dict(zip(("scheduler", "server", "worker"), hosts, strict=False))
    return make_job(["true"], 1, 1, env, placement=lambda role, rank: places.get(role))


@pytest.mark.parametrize(
    ("hosts", "env", "encrypted"),
    [
        ((), {}, False),
        ((LocalHost("127.0.0.7"),), {}, False),
        ((None, OTHER_MACHINE), {}, True),
        ((None, None, OTHER_MACHINE), {}, True),
        ((LocalHost("10.0.0.2"),), {}, True),
        ((LocalHost("10.7.0.1"), INSIDE, INSIDE), {}, False),
        ((LocalHost("10.7.0.1"), INSIDE, OTHER_MACHINE), {}, True),
        ((), {"GRADWIRE_BIND_HOST": "192.0.2.1"}, True),
        ((), {"GRADWIRE_BIND_HOST": "localhost"}, False),
        ((), {"GRADWIRE_INTERFACE": "lo"}, False),
        ((), {"GRADWIRE_ENCRYPT": "on"}, True),
        ((None, OTHER_MACHINE), {"GRADWIRE_ENCRYPT": "off"}, False),
    ],
)
def test_a_job_that_other_machines_reach_has_a_key(
    hosts: tuple[Host | None, ...], env: dict[str, str], encrypted: bool
) -> None:
    job = job_on(*hosts, **env)
    processes = [job.scheduler(3), *job.processes("tcp://h:1")]
    keys = {process.environment.get("GRADWIRE_JOB_KEY") for process in processes}
    assert len(keys) == 1, "all processes of a job have the same"
    assert (keys != {None}) is encrypted
    for process in processes:
        if process.role != "worker":
            assert ("--key-variable" in process.command) is encrypted
        assert not any(re.search("[0-9a-f]{32}", word) for word in process.command), "a key on a command line"


def test_every_job_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_JOB_KEY", KEY)
    keys = [job_on(GRADWIRE_ENCRYPT="on").environment["GRADWIRE_JOB_KEY"] for _ in range(2)]
    assert len({*keys, KEY}) == 3
    assert "GRADWIRE_JOB_KEY" not in job_on().environment, "an outer job's key is no inner job's"


def test_a_job_that_others_can_be_added_to_has_the_key_that_they_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADWIRE_JOB_KEY", KEY)
    open_to_others = {"GRADWIRE_ON_FAILURE": "continue", "GRADWIRE_ENCRYPT": "on"}
    assert job_on(**open_to_others).environment["GRADWIRE_JOB_KEY"] == KEY
    monkeypatch.setenv("GRADWIRE_ROLE", "worker")  # then it is the key of the job that we are of
    assert job_on(**open_to_others).environment["GRADWIRE_JOB_KEY"] != KEY


def test_who_can_be_added_to_a_job_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRADWIRE_JOB_KEY", "GRADWIRE_ROLE"):
        monkeypatch.delenv(name, raising=False)
    lasting = {"GRADWIRE_ON_FAILURE": "continue"}
    command = "add others with: gradwire run --join tcp://h:1 -n 1 -s 1 CMD"
    assert job_on().advice("tcp://h:1") == ""
    assert job_on(**lasting).advice("tcp://h:1").endswith(f"once all are here, {command}")
    changed = job_on(**lasting, GRADWIRE_COMPRESSION="2bit:threshold=0.5 ", GRADWIRE_PARTITION_BYTES="4MiB")
    settings = "--env 'GRADWIRE_COMPRESSION=2bit:threshold=0.5 ' --env GRADWIRE_PARTITION_BYTES=4194304 CMD"
    assert changed.advice("tcp://h:1").endswith(command.replace("CMD", settings))
    own = job_on(**lasting, GRADWIRE_ENCRYPT="on").advice("tcp://h:1")
    assert "no others can be added: to add some, set GRADWIRE_JOB_KEY to what `gradwire key` prints" in own
    monkeypatch.setenv("GRADWIRE_JOB_KEY", KEY)
    given = job_on(**lasting, GRADWIRE_ENCRYPT="on").advice("tcp://h:1")
    assert given.endswith(f"{command} and the same GRADWIRE_JOB_KEY")


@pytest.mark.parametrize(
    ("address", "variables", "warned"),
    [
        ("192.0.2.1", {}, True),
        ("127.0.0.1", {}, False),
        ("192.0.2.1", {"GRADWIRE_ENCRYPT": "off"}, False),
        ("192.0.2.1", {"GRADWIRE_JOB_KEY": KEY}, False),
    ],
)
def test_who_joins_another_machines_job_without_a_key_is_warned(
    address: str, variables: dict[str, str], warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GRADWIRE_JOB_KEY", "GRADWIRE_ROLE"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    job = make_job(["true"], 1, 0, {"GRADWIRE_ON_FAILURE": "continue"}, joins=f"tcp://{address}:5")
    assert ("if that job is encrypted, nobody is let in" in job.advice("")) is warned


def test_a_key_goes_to_other_hosts() -> None:
    assert forwarded({"GRADWIRE_JOB_KEY": KEY}, ()) == {"GRADWIRE_JOB_KEY": KEY}


@pytest.mark.parametrize(
    ("scheduler", "key", "encrypt"),
    [("tcp://10.7.0.1:2", None, "off"), (None, None, "auto"), ("tcp://10.7.0.1:2", KEY, "auto")],
)
def test_workers_that_choose_a_placement_know_whether_it_is_settled(
    scheduler: str | None, key: str | None, encrypt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said of it in their environment, which jobs inside theirs inherit."""
    assert "GRADWIRE_ENCRYPT" not in job_on(GRADWIRE_PLACEMENT="auto").processes("tcp://h:1")[-1].environment
    met: list[settings.Settings] = []

    def meet(name: str, values: settings.Settings) -> None:
        met.append(values)
        raise ConnectionError

    monkeypatch.setattr(connect, "open_engine", meet)
    given = {"GRADWIRE_SCHEDULER": scheduler, "GRADWIRE_JOB_KEY": key, "GRADWIRE_MASTER": "tcp://10.7.0.2:3"}
    values = settings.read({name: text for name, text in given.items() if text is not None})
    with pytest.raises(ConnectionError):
        auto_placement.open_engine("allreduce", values)
    assert [each.encrypt for each in met] == [encrypt]


def test_a_job_inside_one_that_goes_on_ends_with_its_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_ON_FAILURE", "continue")
    monkeypatch.setenv("GRADWIRE_MIN_WORKERS", "2")
    with pytest.raises(ValueError, match="--min-workers 2 is more than the 1 workers"):
        job_on()
    monkeypatch.setenv("GRADWIRE_ROLE", "worker")
    assert not job_on().goes_on
    assert job_on(GRADWIRE_ON_FAILURE="continue").goes_on


def test_a_member_joins_with_its_key() -> None:
    key = JobKey(KEY)
    assert encryption.key_of_member("auto", key) is key
    assert encryption.key_of_member("on", key) is key
    assert encryption.key_of_member("off", key) is None
    assert encryption.key_of_member("auto", None) is None
    with pytest.raises(
        ValueError, match=r"GRADWIRE_ENCRYPT=on, but GRADWIRE_JOB_KEY is not set: start the job"
    ):
        encryption.key_of_member("on", None)


def test_a_new_key_is_a_key() -> None:
    made = encryption.new_key()
    assert encryption.parse_job_key(made.text) == made
    assert made != encryption.new_key()


def test_what_is_no_key_is_not_repeated() -> None:
    for text in (KEY[1:], KEY + "0", KEY[:-1] + "g"):
        with pytest.raises(ValueError, match=f"^{len(text)} characters that are not a job key") as caught:
            encryption.parse_job_key(text)
        assert "0123456789" not in str(caught.value)
    with pytest.raises(ValueError, match="settings: GRADWIRE_JOB_KEY: 127 characters") as caught:
        settings.read({"GRADWIRE_JOB_KEY": KEY[1:]})
    assert "0123456789" not in str(caught.value)


def test_a_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_JOB_KEY", KEY)
    finding = doctor.examine()
    text = io.StringIO()
    doctor.show(finding, Console(file=text, width=400))
    shown = text.getvalue() + json.dumps(finding.record()) + repr(finding) + repr(settings.read())
    assert "0123456789" not in shown
    assert finding.record()["settings"]["GRADWIRE_JOB_KEY"]["value"] == "given, not shown"


def test_no_job_or_process_shows_its_key() -> None:
    job = job_on(GRADWIRE_ENCRYPT="on")
    key = job.environment["GRADWIRE_JOB_KEY"]
    assert key not in repr(job)
    assert not any(key in repr(process) for process in [job.scheduler(3), *job.processes("tcp://h:1")])


@pytest.mark.parametrize("on_failure", ["abort", "continue"])
def test_a_key_on_a_command_line_is_refused(on_failure: str) -> None:
    with pytest.raises(ValueError, match="set it in the environment of `gradwire run` itself") as caught:
        job_on(GRADWIRE_JOB_KEY=KEY, GRADWIRE_ON_FAILURE=on_failure)
    assert "0123456789" not in str(caught.value)


def test_a_scheduler_that_strangers_can_join_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(scheduler: _core.Scheduler) -> None:
        assert scheduler.address == "*"  # that address is another machine's

    monkeypatch.setattr(_core.Scheduler, "serve", serve)
    values = settings.read({"GRADWIRE_ROLE": "scheduler", "GRADWIRE_SCHEDULER": "tcp://192.0.2.1:0"})
    with pytest.warns(UserWarning, match="is not encrypted: whoever reaches"), pytest.raises(SystemExit):
        connect.serve(values)


def test_a_key_stands_in_no_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"settings": {"job_key": KEY}}))
    with pytest.raises(ValueError, match="has job_key, which belongs to one process or one job") as caught:
        settings_file.load(file, ["job_key"])
    assert "0123456789" not in str(caught.value)


def test_doctor_says_whether_this_libzmq_encrypts() -> None:
    finding = doctor.examine()
    assert ("encryption" in finding.libraries) is _core.build_info()["curve"]
    assert ("encryption" in finding.missing) is not _core.build_info()["curve"]


def test_the_command_prints_a_key() -> None:
    words = [sys.executable, "-m", "gradwire.cli", "key"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    assert re.fullmatch("[0-9a-f]{128}\n", done.stdout)
    record = subprocess.run([*words, "--json", "-"], capture_output=True, text=True, check=True, timeout=300)
    assert re.fullmatch("[0-9a-f]{128}", json.loads(record.stdout)["key"])


def test_a_key_in_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    words = [
        "sh",
        "-c",
        'umask 0 && exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "gradwire.cli",
        "key",
        "--json",
        file,
    ]
    subprocess.run(words, check=True, timeout=300)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    made = file.read_text()
    again = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert again.returncode == 2
    assert "is there already: name a new file" in " ".join(again.stderr.split())
    assert file.read_text() == made


@pytest.mark.parametrize("store", ["dist_sync_mpi", "allreduce_mpi", "nccl"])
def test_what_cannot_be_encrypted_is_refused_where_it_must_be(store: str) -> None:
    values = settings.read({"GRADWIRE_ENCRYPT": "on", "GRADWIRE_JOB_KEY": KEY})
    with pytest.raises(
        ValueError, match=f"kv.create\\('{store}'\\): GRADWIRE_ENCRYPT=on cannot be combined with this store"
    ):
        connect.open_engine(store, values)


def test_a_job_that_strangers_can_join_is_warned_of() -> None:
    with pytest.warns(
        UserWarning, match=r"this job listens on 192\.0\.2\.1 and is not encrypted: whoever reaches"
    ):
        encryption.warn_if_open("auto", None, "192.0.2.1")


@pytest.mark.parametrize(
    ("encrypt", "key", "host"),
    [("off", None, "192.0.2.1"), ("auto", JobKey(KEY), "192.0.2.1"), ("auto", None, "127.0.0.1")],
)
def test_of_others_nobody_is_warned(
    encrypt: str, key: JobKey | None, host: str, recwarn: pytest.WarningsRecorder
) -> None:
    encryption.warn_if_open(encrypt, key, host)
    assert not recwarn.list


def test_a_server_without_its_key_says_so() -> None:
    command = [SERVER_PROGRAM, "--role", "scheduler", "--scheduler", "tcp://127.0.0.1:0", "--workers", "1"]
    command += ["--servers", "0", "--key-variable"]
    bare = {name: value for name, value in os.environ.items() if name != "GRADWIRE_JOB_KEY"}
    for name, environ, text in (
        ("GRADWIRE_JOB_KEY", bare, "GRADWIRE_JOB_KEY is not set; expected the job's key there"),
        ("GRADWIRE_JOB_KEY", bare | {"GRADWIRE_JOB_KEY": KEY[1:]}, "127 characters that are no key"),
        (KEY, bare, "--key-variable: a text that is no variable's name; expected"),
    ):
        done = subprocess.run(
            [*command, name], capture_output=True, text=True, env=environ, timeout=300, check=False
        )
        assert done.returncode == 2
        assert text in done.stderr
        assert "0123456789" not in done.stderr


def test_a_member_and_a_job_of_another_key_part_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without a key comes to a scheduler that has one, as when a variable was forgotten on one node."""
    reader, writer = os.pipe()
    command = [SERVER_PROGRAM, "--role", "scheduler", "--scheduler", "tcp://127.0.0.1:0", "--workers", "1"]
    command += ["--servers", "0", "--key-variable", "GRADWIRE_JOB_KEY", "--announce", str(writer)]
    with subprocess.Popen(
        command, env=os.environ | {"GRADWIRE_JOB_KEY": KEY}, pass_fds=(writer,), stderr=subprocess.PIPE
    ) as scheduler:
        try:
            os.close(writer)
            with os.fdopen(reader) as announced:
                monkeypatch.setenv("GRADWIRE_SCHEDULER", announced.readline().strip())
            monkeypatch.delenv("GRADWIRE_JOB_KEY", raising=False)
            with pytest.raises(ConnectionError, match="this node has no job key: give every node of the job"):
                kv.create("allreduce")
        finally:
            scheduler.terminate()
