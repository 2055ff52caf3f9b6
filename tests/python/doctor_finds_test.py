"""Doctor finds what a job would: a library or program that cannot be loaded, names that nothing has, bad settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gradwire import _core, doctor

SECONDS = 300.0


def gradwire(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradwire.cli", *arguments]
    environment = {**os.environ, **variables, "COLUMNS": "300"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture
def broken_library(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "libzmq.so.5").write_text("x")
    return {"LD_LIBRARY_PATH": str(tmp_path)}


def test_a_broken_library_is_said_by_doctor_and_costs_nothing_that_does_without(
    broken_library: dict[str, str],
) -> None:
    found = gradwire("doctor", **broken_library)
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    assert "! core: the compiled part cannot be loaded (" in found.stdout
    assert "unset LD_LIBRARY_PATH" in found.stdout
    assert "! server: " in found.stdout, "the server program needs it too"
    for words in (["--help"], ["version"], ["run", "--help"], ["doctor", "--help"]):
        done = gradwire(*words, **broken_library)
        assert done.returncode == 0, done.stderr
        assert done.stdout
    for words in (["bench", "codec", "--elements", "2"], ["run", "-n", "1", "--faults", "drop=1%", "true"]):
        done = gradwire(*words, **broken_library)
        assert done.returncode == 1
        assert done.stderr.startswith("gradwire: the compiled part cannot be loaded (")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("garbage", "cannot be run (Exec format error)"),
        ("#!/nowhere/sh\n", "cannot be run (No such file or directory)"),
        ("#!/bin/sh\necho other library >&2; exit 3\n", "--help ended with exit code 3 (other library)"),
        ("#!/bin/sh\necho usage\n", "is not gradwire-server, whose --help names --announce"),
    ],
)
def test_a_server_program_that_does_not_run_is_a_fault(
    program: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "server"
    path.write_text(program)
    path.chmod(0o755)
    monkeypatch.setenv("GRADWIRE_SERVER_PROGRAM", str(path))
    finding = doctor.examine()
    assert [fault for fault in finding.faults if fault.startswith(f"server: {path} {text}")]
    assert "gradwire-server" not in finding.libraries


def test_a_server_program_that_does_not_run_is_named_by_run(tmp_path: Path) -> None:
    path = tmp_path / "server"
    path.write_text("garbage")
    path.chmod(0o755)
    done = gradwire("run", "-n", "1", "-s", "1", "true", GRADWIRE_SERVER_PROGRAM=str(path))
    assert done.returncode == 1
    assert f"{path}, the program of scheduler, cannot be started (Exec format error)" in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("GRADWIRE_INTERFACE", "eth99", "there is no interface 'eth99' with an address; there are: "),
        ("GRADWIRE_BIND_HOST", "nowhere.invalid", "'nowhere.invalid' has no address here"),
        ("GRADWIRE_BIND_HOST", "192.0.2.1", "'192.0.2.1' is no address of this machine"),
        ("GRADWIRE_SCHEDULER", "tcp://nowhere.invalid:1", "'nowhere.invalid' has no address here"),
        ("GRADWIRE_MASTER", "tcp://nowhere.invalid:1", "'nowhere.invalid' has no address here"),
        ("GRADWIRE_COMPRESSION", "2bits", "unknown codec 2bits"),
        ("GRADWIRE_COMPRESSION", "2bit:threshold=-1", "threshold"),
        ("GRADWIRE_COMPRESSION", "auto:budget=much", "budget 'much' is none"),
        ("GRADWIRE_REPLY", "3bit", "'3bit' is no reply"),
        ("GRADWIRE_FAULTS", "drp=1%", "'drp=1%' is not valid"),
        ("GRADWIRE_RANK", "4", "no rank 4 among 1 workers"),
    ],
)
def test_settings_that_a_job_refuses_are_faults(
    variable: str, value: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    (fault,) = doctor.examine().faults
    assert fault.startswith(f"settings: {variable}: ")
    assert text in fault


def test_an_interface_is_judged_as_a_job_judges_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_INTERFACE", "eth99")
    with pytest.raises(ValueError, match="eth99") as raised:
        _core.address_of_interface("eth99", "127.0.0.1")
    (fault,) = doctor.examine().faults
    reason, others = str(raised.value).split("; there are: ")  # labs of other tests come and go
    assert others
    assert fault.startswith(f"settings: GRADWIRE_INTERFACE: {reason}; there are: ")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("GRADWIRE_INTERFACE", "lo"), ("GRADWIRE_BIND_HOST", "*"), ("GRADWIRE_BIND_HOST", "localhost")),
        *(("GRADWIRE_COMPRESSION", "auto"), ("GRADWIRE_COMPRESSION", "2bit:threshold=auto,reply=2bit")),
        *(("GRADWIRE_REPLY", "2bit"), ("GRADWIRE_FAULTS", "kill=worker:1@push:100")),
        *(("GRADWIRE_SCHEDULER", "tcp://127.0.0.1:1"), ("GRADWIRE_MASTER", "ipc:///tmp/x")),
    ],
)
def test_settings_that_a_job_takes_are_none(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert doctor.examine().faults == []
