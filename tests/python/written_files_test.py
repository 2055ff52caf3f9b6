"""What a job writes is tried before it begins, and a log that cannot be written later costs itself alone."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gradwire.launch.child import Line
from gradwire.launch.hosts import HostSlots, read_hosts
from gradwire.launch.output_folder import OutputFolder
from gradwire.report.page import write_document
from gradwire.terminal import json_option
from gradwire.terminal.json_option import write_json
from gradwire.timeline.recording import Recording
from python.small_jobs import SECONDS, folder_of_a_job, python


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folder_of_a_job(tmp_path, monkeypatch)


def run(*options: str) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-m",
        "gradwire.cli",
        "run",
        "-n",
        "1",
        "-s",
        "0",
        "--env",
        "FAKE_SECONDS=0",
        *options,
    ]
    return subprocess.run(
        [*words, "--", *python("print('trained')")], capture_output=True, text=True, timeout=SECONDS
    )


@pytest.mark.parametrize(
    ("option", "file"),
    [
        ("--timeline", "/proc/out.json"),
        ("--output-dir", "/proc/logs"),
        ("--output-dir", "{folder}/fake-server/logs"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_job(option: str, file: str, folder: Path) -> None:
    given = file.format(folder=folder)
    done = run(option, given)
    assert done.returncode != 0
    assert done.stderr.startswith(f"gradwire: run: {option} {given} cannot be written (")
    assert "trained" not in done.stdout
    assert not (folder / "worker0.pid").exists(), "the job has begun"


def test_the_trial_leaves_nothing(tmp_path: Path) -> None:
    Recording(tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.json").write_text("as it was")
    Recording(tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "as it was"
    with OutputFolder(tmp_path / "logs", pytest.fail):
        assert list((tmp_path / "logs").iterdir()) == []


def test_output_of_an_earlier_job_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """A smaller job had left the files of ranks that it did not have, and those of ranks that wrote nothing."""
    earlier = ["worker-0.stdout", "worker-11.stderr", "server-1.stderr", "worker.stdout", "scheduler.stderr"]
    others = ["worker-0.stdout.old", "my-worker-0.stdout", "worker-x.stdout", "notes.txt"]
    for name in earlier + others:
        (tmp_path / name).write_text("earlier")
    (tmp_path / "server-0.stdout").mkdir()
    with OutputFolder(tmp_path, pytest.fail) as keep:
        keep(Line("worker", 0, "stderr", "now"))
    assert {path.name for path in tmp_path.iterdir()} == {*others, "server-0.stdout", "worker-0.stderr"}


def test_a_log_on_a_full_disk_is_a_warning_and_the_others_are_kept(folder: Path) -> None:
    logs = folder / "logs"
    logs.mkdir()
    (logs / "worker-0.stdout").symlink_to("/dev/full")
    said: list[str] = []
    with OutputFolder(logs, said.append) as keep:
        for text in ("one", "two"):
            keep(Line("worker", 0, "stdout", text))
            keep(Line("worker", 0, "stderr", text))
    assert said == [
        f"{logs}/worker-0.stdout cannot be written (No space left on device): the job goes on, and further lines "
        "are not written there"
    ]
    assert (logs / "worker-0.stderr").read_text() == "one\ntwo\n"
    done = run("--output-dir", str(logs))
    assert (done.returncode, done.stdout) == (0, "[worker 0] trained\n"), done.stderr
    assert done.stderr == f"gradwire: {said[0]}\n"


def test_a_job_whose_output_cannot_be_shown_goes_on(folder: Path) -> None:
    words = [sys.executable, "-m", "gradwire.cli", "run", "-n", "1", "-s", "0", "--env", "FAKE_SECONDS=0"]
    words += python("for line in range(100): print(line)\nnote('ended')")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
    assert (folder / "ended.pid").exists()
    assert (done.returncode, done.stderr) == (
        0,
        "gradwire: stdout cannot be written (No space left on device): the job goes on, and further lines are not "
        "shown\n",
    )


def test_a_record_on_a_full_disk_is_named() -> None:
    with pytest.raises(OSError, match=r"^--json /dev/full cannot be written \(No space left on device\)$"):
        write_json({}, "/dev/full")


def test_a_hosts_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(b"\xef\xbb\xbfnode1:2\r\nnode2\r\n")
    assert read_hosts(str(file)) == [HostSlots("node1", 2), HostSlots("node2", 1)]


def test_a_report_folder_that_another_command_begins_to_use_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_folder = json_option.check_folder

    def check_while_another_command_writes(folder: Path) -> None:
        check_folder(folder)
        (tmp_path / "reports" / "of another").mkdir()

    monkeypatch.setattr(json_option, "check_folder", check_while_another_command_writes)
    json_option.check_report(tmp_path / "reports" / "own")
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["of another"]


@pytest.fixture
def little_space() -> Iterator[int]:
    """Lets no file of this process grow beyond a size, which it returns: as a disk that is full by then."""
    size, before = 1000, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    yield size
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_record_that_does_not_fit_leaves_the_one_before(tmp_path: Path, little_space: int) -> None:
    file = tmp_path / "record.json"
    write_json({"runs": 1}, str(file))
    with pytest.raises(OSError, match=r"record\.json cannot be written"):
        write_json({"runs": "2" * little_space}, str(file))
    assert json.loads(file.read_text()) == {"runs": 1}
    assert list(tmp_path.iterdir()) == [file]


def test_a_page_that_does_not_fit_leaves_the_one_before(tmp_path: Path, little_space: int) -> None:
    write_document(tmp_path, "one")
    with pytest.raises(OSError, match=r"index\.html cannot be written"):
        write_document(tmp_path, "2" * (little_space + 1))
    assert (tmp_path / "index.html").read_text() == "one"


def test_a_page_may_name_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    """It names the command; `gradwire ab` ended after its first run."""
    folder = tmp_path / os.fsdecode(b"r\xff")
    page = write_document(folder, f"--report {folder.name}")
    assert page.read_text() == "--report r?"


def test_records_go_to_pipes_and_links_too(tmp_path: Path) -> None:
    file, link = tmp_path / "record.json", tmp_path / "link.json"
    link.symlink_to(file)
    write_json({"runs": 1}, str(link))
    assert (link.is_symlink(), json.loads(file.read_text())) == (True, {"runs": 1})
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe:
        write_json({"runs": 2}, f"/dev/fd/{writing}")
        os.close(writing)
        assert json.load(pipe) == {"runs": 2}


def test_a_record_that_only_its_owner_may_read_stays_so(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.touch(mode=0o600)
    write_json({}, str(file))
    assert file.stat().st_mode & 0o777 == 0o600


SMALL = ("-n", "1", "--bytes", "4KB", "--repeat", "1")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("plan", "--model", "vgg16", "--codec", "int8", "--placement", "peers"), "int8 with 8 peers"),
        (("bench", "ps", *SMALL), "gradwire none"),
        (("bench", "allreduce", *SMALL), "gradwire allreduce"),
    ],
)
def test_results_are_shown_where_their_record_cannot_be_written(words: tuple[str, ...], shown: str) -> None:
    command = [sys.executable, "-m", "gradwire.cli", *words, "--json", "/dev/full"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("gradwire: --json /dev/full cannot be written (No space left on device)\n"), (
        done.stderr
    )
    assert shown in done.stdout
