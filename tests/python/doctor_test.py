"""Doctor: what it reports, and that nothing missing or wrong makes it fail to report the rest."""

from __future__ import annotations

import importlib
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from gradwire import _core, doctor
from gradwire.stores import mpi, nccl
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]


def test_record_has_the_promised_fields() -> None:
    record = doctor.examine().record()
    assert {"version", "transports", "codecs", "stores", "missing", "settings"} <= set(record)
    assert ("mpi" in record["missing"]) != ("mpi" in record["transports"])
    assert all(isinstance(reason, str) and reason for reason in record["missing"].values())
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_cuda_devices_are_counted_or_missed_for_a_reason() -> None:
    record = doctor.examine().record()
    assert ("cuda" in record["machine"]) != ("cuda" in record["missing"])


def test_nccl_has_a_version_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    record = doctor.examine().record()
    assert re.fullmatch(
        r"2\.[0-9]+\.[0-9]+", record["libraries"]["nccl"]
    )  # of requirements-test.txt: needs no GPU
    assert ("cuda" in record["missing"]) == ("nccl" in record["missing"])
    monkeypatch.setattr(nccl, "library", lambda: "/nowhere/libnccl.so.2")
    record = doctor.examine().record()
    assert "nccl" not in record["libraries"]
    if not _core.build_info()["nccl_missing"]:
        assert "'/nowhere/libnccl.so.2' cannot be loaded" in record["missing"]["nccl"]
        assert "pip install nvidia-nccl-cu13" in record["missing"]["nccl"]


def test_settings_carry_value_and_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_STREAMS", "3")
    monkeypatch.setenv("DMLC_INTERFACE", "eth9")
    values = doctor.examine().record()["settings"]
    assert (values["GRADWIRE_STREAMS"]["value"], values["GRADWIRE_STREAMS"]["origin"]) == (
        3,
        "GRADWIRE_STREAMS",
    )
    assert (values["GRADWIRE_INTERFACE"]["value"], values["GRADWIRE_INTERFACE"]["origin"]) == (
        "eth9",
        "DMLC_INTERFACE",
    )
    assert values["GRADWIRE_CREDIT_BYTES"]["origin"] == "default"


def test_bad_and_unknown_settings_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_STREAMS", "0")
    monkeypatch.setenv("GRADWIRE_RNAK", "1")
    finding = doctor.examine()
    assert any("GRADWIRE_STREAMS: '0' is not valid" in fault for fault in finding.faults)
    assert finding.unknown == ["GRADWIRE_RNAK is set, but is not a setting: did you mean GRADWIRE_RANK?"]
    text = io.StringIO()
    doctor.show(finding, Console(file=text, width=200))
    assert "did you mean GRADWIRE_RANK?" in text.getvalue()
    assert "GRADWIRE_STREAMS: '0' is not valid" in text.getvalue()


def test_a_missing_core_is_a_reason_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradwire._core", None)
    finding = doctor.examine()
    assert "the compiled part cannot be loaded" in finding.missing["core"]
    assert (finding.codecs, finding.transports) == ([], [])
    assert any(fault.startswith("core: ") for fault in finding.faults)


def test_what_the_core_has_is_listed() -> None:
    core = pytest.importorskip("gradwire._core")
    finding = doctor.examine()
    assert [codec["name"] for codec in finding.codecs] == [row["name"] for row in core.codecs()]
    assert finding.transports[:2] == ["zmq", "inproc"]
    assert finding.libraries["zmq"].count(".") == 2
    assert finding.stores == importlib.import_module("gradwire.kv").stores()


def test_mpi_is_described_by_version_and_thread_level() -> None:
    pytest.importorskip("gradwire._core")
    if not Path(mpi.library()).exists():
        pytest.fail("libgradwire_mpi.so was not installed beside the core")
    finding = doctor.examine()
    assert re.fullmatch(r"Open MPI v[0-9.]+ \(MPI_THREAD_\w+\)", finding.libraries["mpi"])
    assert finding.transports == ["zmq", "inproc", "mpi"]


def test_a_missing_mpi_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mpi, "_DESCRIBE", "from gradwire import _core; _core.describe_mpi('/nowhere/mpi.so')")
    finding = doctor.examine()
    assert "'/nowhere/mpi.so' cannot be loaded: " in finding.missing["mpi"]
    assert "install Open MPI" in finding.missing["mpi"]
    assert "mpi" not in finding.transports


def test_doctor_under_mpirun_is_no_rank_of_its_job() -> None:
    """Else it would wait in MPI_Init for ranks that never come."""
    command = [sys.executable, "-c", "from gradwire.stores import mpi; print(mpi.describe()['thread_level'])"]
    done = subprocess.run(
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("MPI_THREAD_") == 2


def test_missing_server_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_SERVER_PROGRAM", "/nowhere/server")
    assert (
        doctor.examine()
        .missing["server"]
        .startswith("GRADWIRE_SERVER_PROGRAM=/nowhere/server is not a program")
    )


def test_loopback_is_among_the_interfaces() -> None:
    assert "127.0.0.1" in doctor.interfaces()["lo"]


def test_machine_is_described() -> None:
    machine = doctor.machine_description()
    assert machine["cores"] >= 1  # type: ignore[operator]
    assert machine["cpu"]


def test_it_ends_with_what_to_do_next(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = doctor.examine()
    assert any("gradwire run -n 2 python train.py" in step for step in finding.next_steps)
    assert finding.record()["next"] == finding.next_steps
    text = io.StringIO()
    doctor.show(finding, Console(file=text, width=200))
    assert text.getvalue().rstrip().endswith(finding.next_steps[-1])
    monkeypatch.setenv("GRADWIRE_STREAMS", "0")
    (step,) = doctor.examine().next_steps
    assert step.startswith("Correct what is marked with !")


def test_a_torch_that_no_test_has_seen_is_told() -> None:
    pinned = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    assert f"torch=={doctor.TESTED_TORCH}\n" in pinned
    finding = doctor.examine()
    assert not any(word in step for word in ("newer", "older") for step in finding.next_steps)
    for version, told in (
        ("99.0.1+cu130", ["newer"]),
        (doctor.NEWEST_TORCH + ".1", []),
        (doctor.TESTED_TORCH + "+cpu", []),
        (doctor.OLDEST_TORCH + ".0", []),
        ("2.2.0", ["older"]),
        ("unknown", []),
    ):
        steps = replace(finding, libraries=finding.libraries | {"torch": version}).next_steps
        assert [
            word
            for word in ("newer", "older")
            if any(f"torch {version} is {word} than" in step for step in steps)
        ] == told
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert set(re.findall(r'"torch>=([^"]*)"', extras)) == {doctor.OLDEST_TORCH}


def test_without_torch_the_next_step_is_to_install_it() -> None:
    finding = replace(doctor.examine(), missing={"torch": "not installed"})
    assert finding.next_steps[0].endswith("pip install torch")
