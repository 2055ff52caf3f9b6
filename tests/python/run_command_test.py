"""`gradwire run`: flags of launch.py and of horovodrun, each beside the option or variable that it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gradwire.cli import CommandLineError, app
from gradwire.horovod import knobs
from gradwire.launch import launchers
from gradwire.launch.supervisor import JobResult
from gradwire.settings import definitions as settings
from gradwire.stores import connect


def requested(monkeypatch: pytest.MonkeyPatch, *words: str) -> launchers.Request:
    """Returns what `gradwire run` was asked for; nothing is started."""
    requests: list[launchers.Request] = []

    def run(request: launchers.Request, *others: Any) -> JobResult:
        requests.append(request)
        return JobResult(0, None, None, 1.0)

    monkeypatch.setattr(launchers, "run", run)
    app(["run", *words], standalone_mode=False)
    return requests[0]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (["-np", "3"], ["-n", "3"]),
        (["--num-proc", "3"], ["-n", "3"]),
        (["--num-proc=3", "--hosts", "a:2,b:1"], ["-n", "3", "-H", "a:2,b:1"]),
        (["-n", "3", "-hostfile", "a:2,b:1"], ["-n", "3", "-H", "a:2,b:1"]),
        (["-n", "3", "-p", "2222", "-i", "KEY"], ["-n", "3", "--ssh", "ssh -p 2222 -i KEY"]),
        (["-n", "3", "--ssh-port", "2222", "--ssh", "ssh -v"], ["-n", "3", "--ssh", "ssh -v -p 2222"]),
        (["-n", "3", "--ssh-identity-file", "KEY"], ["-n", "3", "--ssh", "ssh -i KEY"]),
        *(
            (
                ["-n", "3", "--on-failure", "continue", flag, "2"],
                ["-n", "3", "--on-failure", "continue", "--min-workers", "2"],
            )
            for flag in ("--min-np", "--min-num-proc")
        ),
        *(
            (["-n", "3", flag, "eth7"], ["-n", "3", "--env", "GRADWIRE_INTERFACE=eth7"])
            for flag in ("--network-interface", "--network-interfaces")
        ),
        (["-n", "3", "--start-timeout", "90"], ["-n", "3", "--env", "GRADWIRE_RENDEZVOUS_TIMEOUT=90s"]),
        (["-n", "3", "--verbose"], ["-n", "3", "--env", "GRADWIRE_LOG_LEVEL=info"]),
        (
            ["-n", "3", "--verbose", "--env", "GRADWIRE_LOG_LEVEL=debug"],
            ["-n", "3", "--env", "GRADWIRE_LOG_LEVEL=debug"],
        ),
        (["-n", "3", "--verbose", "--env", "PS_VERBOSE=2"], ["-n", "3", "--env", "PS_VERBOSE=2"]),
        (
            ["-n", "3", "--network-interface", "eth7", "--env", "DMLC_INTERFACE=eth8"],
            ["-n", "3", "--env", "DMLC_INTERFACE=eth8"],
        ),
        (["-n", "3", "--env-worker", "A:b=c"], ["-n", "3", "--env-worker", "A=b=c"]),
        (["-n", "3", "--env-server", "A:b:c"], ["-n", "3", "--env-server", "A=b:c"]),
    ],
)
def test_a_flag_is_the_option_that_it_stands_for(
    theirs: list[str], ours: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("KEY").touch()
    # What follows the command's name is the command's own, in whatever spelling.
    rest = ["--launcher", "ssh", "train", "--hosts", "x", "-np", "9"]
    found = requested(monkeypatch, *theirs, *rest)
    assert found == requested(monkeypatch, *ours, *rest)
    assert (found.workers, found.command) == (3, rest[2:])


def test_output_and_timeline_have_two_names_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = requested(
        monkeypatch,
        *(
            "-np",
            "2",
            "--output-filename",
            str(tmp_path / "out"),
            "--timeline-filename",
            str(tmp_path / "t.json"),
        ),
        "true",
    )
    assert (tmp_path / "out").is_dir()
    assert "GRADWIRE_TIMELINE" in found.env


def test_horovods_knobs_reach_what_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = requested(
        monkeypatch, "-n", "1", "--fusion-threshold-mb", "0.5", "--cycle-time-ms", "3.5", "true"
    )
    read = knobs.read(found.env)
    assert (read.fusion_bytes, read.cycle_seconds) == (2**19, 0.0035)


def test_p3_has_any_store_cut_as_the_store_p3_does(monkeypatch: pytest.MonkeyPatch) -> None:
    values = settings.read(requested(monkeypatch, "-n", "1", "--p3", "true").env)
    assert values.partition_bytes == connect._P3_SLICE_BYTES
    assert values.bigarray_bound * 4 == connect._P3_SLICE_BYTES


def test_a_variable_under_another_name_counts_before_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--p3", "--env", "BYTEPS_PARTITION_BYTES=4096", "--env-server", "MXNET_KVSTORE_BIGARRAY_BOUND=9"]
    found = requested(monkeypatch, "-n", "1", *words, "true")
    of_workers = settings.read({**found.env, **found.role_env["worker"]})
    of_servers = settings.read({**found.env, **found.role_env["server"]})
    assert (of_workers.partition_bytes, of_workers.bigarray_bound) == (4096, 65536)
    assert (of_servers.partition_bytes, of_servers.bigarray_bound) == (4096, 9)


def test_roles_have_variables_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--env", "A=1", "--env-worker", "A=2", "--env-worker", "B:3", "--env-server", "A:4"]
    found = requested(monkeypatch, "-n", "1", *words, "true")
    assert (found.env, found.role_env) == ({"A": "1"}, {"worker": {"A": "2", "B": "3"}, "server": {"A": "4"}})


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--env-worker", "A"], "run: --env-worker A is not valid: expected NAME=VALUE or NAME:VALUE"),
        (["--env-server", "=b"], r"run: --env-server =\.\.\. is not valid"),
        (["--env", "TOKEN:hush"], r"run: --env TOKEN:\.\.\. is not valid: expected NAME=VALUE"),
        (["--network-interface", "eth0,eth1"], "--network-interface eth0,eth1 names several: expected one"),
        (["--fusion-threshold-mb", "inf"], "--fusion-threshold-mb inf: expected a number of MiB"),
        (["--min-np", "2"], "--min-workers 2 needs --on-failure continue"),
        (["--dry-run", "--json", "-"], "--json cannot be combined with --dry-run, which runs nothing"),
        (["--dry-run", "--output-dir", "/x"], "--output-dir cannot be combined with --dry-run"),
    ],
)
def test_misuse(words: list[str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=text):
        requested(monkeypatch, "-n", "2", *words, "true")


def test_a_job_inside_another_does_not_go_on_because_that_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_ON_FAILURE", "continue")
    assert "GRADWIRE_MIN_WORKERS" in requested(monkeypatch, "-n", "2", "--min-np", "2", "true").env
    monkeypatch.setenv("GRADWIRE_ROLE", "worker")
    with pytest.raises(ValueError, match="--min-workers 2 needs --on-failure continue"):
        requested(monkeypatch, "-n", "2", "--min-np", "2", "true")


@pytest.mark.parametrize(
    "words",
    [
        *(["-n", "65537"], ["-s", "65537"]),
        ["-p", "0"],
        ["-i", "/no/such/key"],
        ["--start-timeout", "0"],
        ["--cycle-time-ms", "-1"],
        ["--fusion-threshold-mb", "x"],
        *(["--max-np", "4"], ["--check-build"], ["--gloo"]),
    ],
)
def test_a_wrong_value_and_a_flag_without_a_meaning_here_are_refused(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandLineError) as refused:
        requested(monkeypatch, "-n", "2", *words, "true")
    assert words[0] in refused.value.format_message()


@pytest.mark.parametrize("option", ["--memory", "--join", "--grace"])
def test_a_value_that_cannot_be_read_is_named_with_its_option(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandLineError) as refused:
        requested(monkeypatch, "-n", "2", option, "abc", "true")
    assert f"'{option}': 'abc' is not" in refused.value.format_message()
