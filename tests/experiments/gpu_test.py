"""experiments/gpu: the check for a machine with a GPU, rehearsed without one, and the kit that it takes there."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradwire import compress
from gradwire.torch.session import parse_compression
from integration.hosts import needs_hosts
from python.experiment_files import imported

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "gpu"


@pytest.fixture
def modules() -> Iterator[dict[str, Any]]:
    with imported(FOLDER, ["machine", "steps", "run", "make_kit"]) as loaded:
        yield loaded


@pytest.fixture
def check(modules: dict[str, Any]) -> Any:
    return modules["run"]


@pytest.fixture
def machine(modules: dict[str, Any], tmp_path: Path) -> Any:
    return modules["machine"].Rehearsal(tmp_path)


@needs_hosts
def test_a_rehearsal_finds_nothing_wrong(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "run.py"), "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "results.json").read_text())
    assert record["rehearsal"] is True
    steps = {step["step"]: step for step in record["steps"]}
    assert list(steps) == [
        *("machine", "cpp", "sanitizer", "codecs", "stores", "front-ends", "nccl", "transformer", "cores")
    ]
    assert {step["status"] for step in steps.values()} == {"ok"}, done.stdout
    logs = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert logs == [f"{number}-{name}.log" for number, name in enumerate(steps, start=1)]
    table = done.stdout.split("\n\n", 1)[1].splitlines()
    assert len(table) <= 60
    measured = [row for row in steps["codecs"]["rows"] if "floats" in row["what"]]
    assert len(measured) >= 10, "every twin is timed"
    assert all("decode_sum of 4" in row["found"] for row in measured)
    (arm,) = steps["transformer"]["rows"]
    assert arm["record"]["mb_sent_a_step"] > 0.01
    killed = steps["nccl"]["rows"][-1]
    assert "worker 1" in killed["record"]["error"]


def test_default_steps_fit_nine_minutes(modules: dict[str, Any]) -> None:
    default = [step.seconds for step in modules["steps"].STEPS if step.is_default]
    assert sum(default) <= modules["run"].SECONDS == 540


def test_steps_are_chosen_by_name_in_their_own_order(check: Any) -> None:
    assert [step.name for step in check.chosen("cores,cpp")] == ["cpp", "cores"]
    assert "transformer-25" not in [step.name for step in check.chosen(None)]
    with pytest.raises(ValueError, match=r"no step cpu; steps: machine, cpp, "):
        check.chosen("cpp,cpu")


def test_the_language_model_is_scored_beside_none(modules: dict[str, Any], machine: Any) -> None:
    none, nf4 = modules["steps"].language_model_rows(machine)
    assert (none.verdict, nf4.verdict) == ("figure", "figure"), (none.found, nf4.found)
    assert none.record["parameters"] == nf4.record["parameters"] > 100_000
    assert nf4.record["bytes_a_step"] < 0.2 * none.record["bytes_a_step"]
    assert abs(nf4.record["loss"] / none.record["loss"] - 1) < 0.01
    assert nf4.found.endswith("% of none's")


@pytest.mark.parametrize("codec", ["none", "nf4", "2bit:threshold=0.5", "1bit"])
def test_simulated_workers_get_what_servers_give(codec: str) -> None:
    """The bits of `compress`, by which tests/oracle compares jobs."""
    with imported(FOLDER, ["transformer", "language_model"]) as loaded:
        parameter = torch.nn.Parameter(torch.zeros(40, 30))
        tensor = loaded["language_model"].Tensor(parameter, codec, 3)
    chosen = parse_compression(codec)
    made = compress.make(chosen.spec)
    residuals = [np.zeros(1200, np.float32) for _ in range(3)]
    of_server = np.zeros(1200, np.float32) if chosen.reply == made.name else None
    scales = None
    for step in range(4):
        given = np.random.default_rng(step).normal(size=(3, 1200)).astype(np.float32)
        tensor.rows.copy_(torch.from_numpy(given))
        tensor.deliver(step)
        if codec == "none":
            expected = torch.from_numpy(given).sum(0).numpy()
        else:
            payloads = [
                made.encode(own, residual=kept, scales=scales, key=0, rank=0, step=step)
                for own, kept in zip(given, residuals, strict=True)
            ]
            reply = made.encode_reply(payloads, 1200, reply=chosen.reply, residual=of_server)
            expected, scales = made.decode_reply(reply, 3, 1200, reply=chosen.reply)
        np.testing.assert_array_equal(parameter.grad.numpy().ravel(), expected / np.float32(3))


def test_a_step_that_raises_fails_alone(
    check: Any, machine: Any, modules: dict[str, Any], tmp_path: Path
) -> None:
    def broken(_: Any) -> Iterator[Any]:
        yield modules["steps"].Row("first", "found")
        raise RuntimeError("no such thing")

    record = check.carry_out(modules["steps"].Step("x", "a title", 5, broken), machine, 3, 5)
    assert record["status"] == "failed"
    assert [row["found"] for row in record["rows"]] == ["found", "RuntimeError: no such thing"]
    nothing = modules["steps"].Step("y", "a title", 5, lambda _: iter(()))
    assert check.carry_out(nothing, machine, 4, 5)["status"] == "failed", "a step that shows nothing"
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"3-x.log", "4-y.log"}


def test_a_command_ends_with_its_step_and_takes_its_children_along(machine: Any, tmp_path: Path) -> None:
    machine.log = tmp_path / "log"
    machine.deadline = time.monotonic() + 1
    ended = machine.run(["sh", "-c", "sleep 600 & echo $!; wait"])
    assert ended.code == 124
    child = int(ended.output.split()[0])
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "exit status 124" in machine.log.read_text()


def test_the_table_keeps_what_failed_where_it_is_too_long(check: Any) -> None:
    rows = [{"what": f"row {i}", "found": "x", "verdict": "ok", "record": {}} for i in range(100)]
    rows[90]["verdict"] = "failed"
    lines = check.table(
        [{"step": "s", "status": "failed", "seconds": 1.0, "budget_seconds": 2, "title": "t", "rows": rows}]
    )
    assert len(lines) == 60
    assert " ! row 90: x" in lines
    assert "42 more lines" in lines[-1]


def fake(
    machine: Any, monkeypatch: pytest.MonkeyPatch, modules: dict[str, Any], outputs: list[tuple[int, str]]
) -> None:
    """Lets commands end as given, one after the other."""
    endings = iter(outputs)
    ended = modules["machine"].Ended
    monkeypatch.setattr(machine, "is_rehearsal", False)
    monkeypatch.setattr(machine, "program", lambda name: [name])
    monkeypatch.setattr(machine, "run", lambda *_, **__: ended(*next(endings), 1.0))
    monkeypatch.setattr(
        machine, "run_together", lambda commands, **_: [ended(*next(endings), 1.0) for _ in commands]
    )


def test_findings_of_the_sanitizer_are_failures(
    machine: Any, modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: name)
    codecs = "codec,operation\nfp16,copy\ntopk,copy\n"
    clean = (0, "========= ERROR SUMMARY: 0 errors")
    race = (9, "========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)")
    fake(
        machine,
        monkeypatch,
        modules,
        [(0, codecs), clean, clean, clean, clean, race, (124, "killed")],
    )
    rows = list(modules["steps"].sanitizer_rows(machine))
    assert [row.verdict for row in rows] == ["ok", "ok", "ok", "ok", "failed", "failed"]
    assert rows[0].found == "0 errors"
    assert "3 hazards" in rows[4].found


def test_a_store_with_other_bits_or_with_floats_on_the_way_fails(
    machine: Any, modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(codec: str, **other: Any) -> str:
        record = {"codec": codec, "same_bits": True, "bytes_from_device": 1000, "bytes_encoded": 1000}
        return f"[worker 0] STORE {json.dumps(record | {'ms_a_round': {'64': 3.0}} | other)}\n"

    codecs = modules["steps"].STORE_CODECS
    good = "".join(line(codec) for codec in codecs)
    bad = good.replace(line("int8"), line("int8", same_bits=False)).replace(
        line("fp16"), line("fp16", bytes_from_device=4_000_000)
    )
    fake(machine, monkeypatch, modules, [(0, good), (0, bad), (0, good), (0, good)])
    rows = {row.what: row for row in modules["steps"].store_rows(machine)}
    assert rows["dist_sync, residuals in float32, what left the device"].verdict == "ok"
    assert rows["allreduce, residuals in float32, cpu tensors"].verdict == "failed"
    assert "int8" in rows["allreduce, residuals in float32, cpu tensors"].found
    assert (
        rows["allreduce, residuals in float32, what left the device"].found == "more than payloads with fp16"
    )
    fake(machine, monkeypatch, modules, [(1, line("none")), *[(0, good)] * 3])
    first = next(iter(modules["steps"].store_rows(machine)))
    assert first.verdict == "failed"
    assert first.found.startswith(f"1 of {len(codecs)} codecs, exit status 1")


def test_a_killed_rank_that_nobody_names_fails(
    machine: Any, modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = "".join(f'STORE {{"codec": "{codec}", "digest": "d"}}\n' for codec in modules["steps"].LOSSY)
    other = digests.replace('"int8", "digest": "d"', '"int8", "digest": "e"')
    killed = 'KILLED {"error": "TransportError: worker 1 is gone", "seconds": 2.0}'
    late = killed.replace("2.0", "40.0")
    for last, verdict in [(killed, "ok"), (late, "failed"), ("nothing", "failed")]:
        outputs = [(0, digests)] * 4 + [(0, digests), (0, other), (1, last)]
        fake(machine, monkeypatch, modules, outputs)
        rows = list(modules["steps"].nccl_rows(machine))
        assert [row.verdict for row in rows] == ["ok", "ok", "failed", verdict]
        assert "int8" in rows[2].found


def test_its_filter_has_every_test_that_needs_a_device(modules: dict[str, Any]) -> None:
    patterns = modules["steps"].DEVICE_TESTS.split(":")
    suites = set()
    for source in (ROOT / "tests").rglob("*_test.cpp"):
        if not re.search(r"_(cuda|nccl)_test$", source.stem):
            continue
        text = source.read_text()
        suites |= set(re.findall(r"^TEST(?:_F)?\((\w+),", text, re.MULTILINE))
        suites |= {
            f"{prefix}/x" for prefix in re.findall(r"^INSTANTIATE_TEST_SUITE_P\((\w+),", text, re.MULTILINE)
        }
    skipped = {"NativeNccl", "DeviceNcclMissing"}  # memory in the place of GPUs; what is said without a GPU
    assert {"DeviceNccl", "CudaCodecOnDevice", "Cuda/x"} <= suites
    missed = [s for s in suites - skipped if not any(fnmatch.fnmatch(f"{s}.y", p) for p in patterns)]
    assert not missed


def test_a_folder_that_is_no_kit_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "run.py"), "--kit", str(tmp_path), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "is not a kit: it has no wheels/gradwire-*.whl; make one by `make gpu-kit`" in done.stderr


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, str(FOLDER / "run.py"), "--rehearse", "--out", str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.startswith("gpu: ")
    assert "Traceback" not in done.stderr


def test_what_an_earlier_run_left_is_cleared(check: Any, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for old in ("results.json", "logs/1-nccl.log"):
        (tmp_path / old).write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    check.clear(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["notes.txt"]


def test_a_run_that_is_told_to_end_takes_its_jobs_along(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "run.py"), "--rehearse", "--steps", "machine,front-ends"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (started := children_of(process.pid)) or not (tmp_path / "results.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted in step front-ends" in output
    assert "machine " in output.split("\n\n", 1)[1], "the table of what was done"
    while any(Path(f"/proc/{child}").exists() for child in started):
        assert time.monotonic() < deadline + 60
        time.sleep(0.05)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_kit_never_takes_the_place_of_another_folder(modules: dict[str, Any], tmp_path: Path) -> None:
    kit, dist = tmp_path / "kit", tmp_path / "dist"
    kit.mkdir()
    (kit / "precious.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is there and no kit"):
        modules["make_kit"].make(kit, dist, tmp_path / "patchelf")
    assert (kit / "precious.txt").read_text() == "mine"
    (kit / "kit.json").write_text("{}")
    with pytest.raises(OSError, match=r"cp312-abi3|not installed|patchelf|strip|No such file"):
        modules["make_kit"].make(kit, dist, tmp_path / "patchelf")
    assert (kit / "precious.txt").exists(), "an older kit stays until there is a new one"
    assert not kit.with_name("kit.new").exists()


def test_a_program_of_the_kit_brings_its_libraries(modules: dict[str, Any]) -> None:
    program = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if program is None:
        pytest.skip("iproute2 is not installed")
    libraries = [path.name for path in modules["make_kit"].needed_libraries([Path(program)])]
    assert libraries
    assert not [name for name in libraries if name.startswith(("libc.", "libstdc++", "ld-linux"))]


def test_a_kit_without_a_wheel_for_later_pythons_is_refused(modules: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no cp312-abi3 wheel; install the headers of Python 3\.12"):
        modules["make_kit"].take_wheels(tmp_path / "wheels", tmp_path / "dist")
