"""experiments/replay: its rows, what a worker does in a step, and tiny rows that are really run."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from experiments.tiny_replay import tiny_plan, tiny_profile
from gradwire.netlab import remains
from replay import bound, costs, launches, profiles, rows, run, steps, systems
from replay.buckets import buckets
from replay.plan import Plan, ReplayFailed

RUN = Path(profiles.__file__).with_name("run.py")
VGG16 = profiles.load(profiles.FOLDER / "vgg16.json")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")


# ---------------------------------------------------------------- arithmetic


@pytest.mark.parametrize(
    ("row", "seconds"),
    [
        ("gradwire-none-8w1s-10gbit", 3.70885),  # 8 * 553.43 MB over 0.955 * 1.25 GB/s
        ("gradwire-none-8w2s-10gbit", 1.85443),
        ("gradwire-none-8w8s-10gbit", 0.46361),
        ("gradwire-none-8w8shared-10gbit", 0.81131),  # 2 * 7/8 * 553.43 MB
        ("gradwire-none-peers8-1gbit", 8.11311),
        ("gradwire-none-2w1s-loopback", 0.0),
    ],
)
def test_what_the_busiest_link_needs(row: str, seconds: float) -> None:
    size = 4.0 * VGG16.elements
    assert bound.link_seconds(rows.parse(row), size, size) == pytest.approx(seconds, rel=1e-4)


def test_the_bound_is_the_compute_or_the_wire() -> None:
    size = 4.0 * VGG16.elements
    one, two = (rows.parse(f"gradwire-none-8w{count}s-10gbit") for count in (1, 2))
    compute = VGG16.compute_seconds
    assert compute / bound.coarse_step_seconds(one, compute, size, size) == pytest.approx(0.589, abs=1e-3)
    assert bound.coarse_step_seconds(two, compute, size, size) == compute
    # A reply that is larger than the push is what the link has to carry.
    assert bound.link_bytes(one, 1.0, 5.0) == 40.0


# ---------------------------------------------------------------- rows and profiles


def test_every_row_of_the_table_has_its_own_name_and_a_profile() -> None:
    assert len({row.name for row in rows.TABLE}) == len(rows.TABLE)
    for row in rows.TABLE:
        assert rows.parse(row.name) == row
        assert (profiles.FOLDER / f"{row.model}.json").exists()
        assert row.model in rows.SCALES


def test_published_figures_stand_beside_uncompressed_rows_only() -> None:
    row = rows.parse("gradwire-none-8w2s-10gbit")
    assert (row.published_efficiency, row.published_round_seconds) == (0.3790, 3.4)
    assert rows.parse("mxnet-none-8w8shared-10gbit").published_efficiency == 0.6781
    for name in (
        "gradwire-2bit-8w2s-10gbit",
        "gradwire-none-8w2s-1gbit",
        "gradwire-none-8w2s-10gbit-resnet50",
    ):
        assert rows.parse(name).published_efficiency is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gradwire", "SYSTEM-CODEC-PLACEMENT-RATE"),
        ("gradwire-none-8w2s", "SYSTEM-CODEC-PLACEMENT-RATE"),
        ("horovod-none-peers8-10gbit", "a system of gradwire, mxnet, openmpi, gloo"),
        ("gradwire-3bit-8w2s-10gbit", "a codec of none, fp16, 2bit for gradwire"),
        ("gloo-2bit-peers8-10gbit", "a codec of none for gloo"),
        ("gradwire-none-8w0s-10gbit", "at least one worker and one server"),
        ("gradwire-none-peers1-10gbit", "two peers"),
        ("gradwire-none-8w4shared-10gbit", "a server beside each worker"),
        ("mxnet-none-peers8-10gbit", "servers for mxnet"),
        ("gloo-none-8w8s-10gbit", "peers for openmpi and gloo"),
        ("gradwire-none-8w2s-0gbit", "expected a number with kbit"),
    ],
)
def test_a_row_that_there_cannot_be(name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        rows.parse(name)


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Runs the command in this process, which must refuse; returns what it said."""
    monkeypatch.setattr(sys, "argv", [str(RUN), *options])
    assert run.main() == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"layers": []}, "no layers"),
        ({"images_per_second": 1.0}, "expected the same to 0.1 %"),
        ({"speed": 1}, "expected an object with exactly"),
    ],
)
def test_a_profile_that_is_none_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    expected: str,
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(asdict(tiny_profile()) | change))
    options = ("--row", "gradwire-none-2w1s-loopback", "--profile", str(path), "--folder", str(tmp_path))
    said = refusal(monkeypatch, capsys, *options)
    assert f"profile {path}: " in said
    assert expected in said
    assert not (tmp_path / "results.json").exists()


def test_a_model_without_a_profile_names_those_that_have_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(monkeypatch, capsys, "--row", "gradwire-none-8w2s-10gbit-alexnet")
    assert "no profile alexnet.json" in said
    assert "resnet50, vgg16" in said


# ---------------------------------------------------------------- codec time


@pytest.mark.parametrize("codec", list(rows.CODECS))
def test_costs_are_of_the_full_size(codec: str) -> None:
    plan = tiny_plan(f"gradwire-{codec}-8w2s-10gbit")
    found = costs.measure(plan.compression, workers=8, partition_elements=65_536)
    bits = {"none": (32, 32), "fp16": (16, 16), "2bit": (2, 5)}[codec]  # 2bit: 17 sums of 8 workers
    assert (8 * found.push_bytes, 8 * found.reply_bytes) == pytest.approx(bits, rel=0.01)
    assert (found.encode == 0) == (codec == "none")
    assert min(found.decode, found.serve) > 0
    assert found.seconds_per_step(10, owners=2) == 10 * (found.encode + found.decode + found.serve / 2)


# ---------------------------------------------------------------- steps


class Notebook:
    """An exchange that only writes down what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def begin(self, tensor: int) -> None:
        self.calls.append(("begin", tensor))

    def wait(self, tensor: int) -> None:
        self.calls.append(("wait", tensor))

    def check(self) -> None:
        self.calls.append(("check", -1))

    def barrier(self) -> None:
        pass

    def sent_bytes(self) -> int:
        return len(self.calls)


def take_steps(folder: Path, mode: str, rounds: int = 0) -> tuple[list[tuple[str, int]], Any]:
    plan = tiny_plan("gradwire-none-2w1s-loopback", steps=2)
    task = launches.make_task(plan, costs.Costs(0, 0, 0, 4, 4), str(folder))
    task = replace(task, forward=[0.0, 0.0], backward=[0.0, 0.0], modes=[mode], rounds=rounds)
    exchange = Notebook()
    steps.Replay(task, 1, exchange).run()
    return exchange.calls, json.loads(steps.record_file(folder, 1).read_text())


def test_drain_waits_for_all_sums_before_the_next_step(tmp_path: Path) -> None:
    calls, record = take_steps(tmp_path, "drain")
    step = [("begin", 1), ("begin", 0), ("wait", 0), ("wait", 1)]
    assert calls == [*step, *step, ("check", -1)]
    assert record["blocks"][0]["mode"] == "drain"
    assert len(record["blocks"][0]["steps"]) == 2
    assert record["blocks"][0]["sent_bytes"] == len(calls) - 1


def test_overlap_waits_for_a_layer_when_it_is_about_to_be_used(tmp_path: Path) -> None:
    calls, _ = take_steps(tmp_path, "overlap")
    begins, waits = [("begin", 1), ("begin", 0)], [("wait", 0), ("wait", 1)]
    assert calls == [*begins, *waits, *begins, *waits, *begins, *waits, ("check", -1)]


def test_alone_sends_nothing_and_rounds_come_last(tmp_path: Path) -> None:
    calls, record = take_steps(tmp_path, "alone", rounds=2)
    assert calls == [("begin", 2), ("wait", 2)] * 3
    assert len(record["rounds"]) == 2


def test_a_device_that_waits_ends_later_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(steps.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(steps.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds + 0.25))
    device = steps.Device()
    device.compute(1.0)
    assert now[0] == 11.25  # the sleep was too long
    assert device.wait(lambda: None) == 0
    device.compute(1.0)
    assert now[0] == 12.25  # so this one was shorter
    assert device.wait(lambda: now.__setitem__(0, 15.0)) == 3.0
    device.compute(1.0)
    assert now[0] == 16.25


def test_buckets_are_filled_from_the_last_layer() -> None:
    bucket_of, members = buckets([5, 1, 30, 2, 9], bounds=(8, 30))
    assert members == [[4], [3, 2], [1, 0]]
    assert bucket_of == [2, 2, 1, 1, 0]


# ---------------------------------------------------------------- really run


@pytest.mark.parametrize(
    "row",
    ["gradwire-none-2w1s-loopback", "gradwire-2bit-2w1s-loopback", "gradwire-none-peers2-loopback"],
)
def test_a_tiny_replay_takes_its_compute_and_sends_what_the_formula_says(row: str) -> None:
    plan = tiny_plan(row)
    drain, overlap = launches.run(plan, lambda text: None)
    assert (drain["overlap_step"], overlap["overlap_step"]) == (False, True)
    assert (len(drain["seconds"]), len(overlap["seconds"])) == (3, 4)
    for record in (drain, overlap):
        # A sleep is never too short, and one that was too long shortens the next.
        assert sum(record["seconds"]) >= len(record["seconds"]) * plan.profile.compute_seconds
        assert record["sent_bytes"] == pytest.approx(record["expected_bytes"], rel=0.01)
        assert record["codec_seconds"] > 0


def run_command(*options: str, timeout: int = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUN), *options], capture_output=True, text=True, timeout=timeout, check=False
    )


@needs_root
def test_a_row_on_hosts_of_their_own_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    labs = []
    shrink = launches._shrink_socket_buffers

    def note(plan: Plan, network: Any) -> None:
        labs.append(network.lab)
        shrink(plan, network)

    monkeypatch.setattr(launches, "_shrink_socket_buffers", note)
    first, _ = launches.run(tiny_plan("gradwire-fp16-2w1s-1gbit"), lambda text: None)
    assert first["link_bytes"] >= 0.98 * first["expected_bytes"]
    assert len(first["seconds"]) == 3
    (lab,) = labs
    assert remains.read(lab) is None
    assert not list(remains.NETNS.glob(f"gwlab-{lab}-*"))


def test_a_worker_that_fails_is_named_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        systems, "_python", lambda worker, launch: [sys.executable, "-c", "raise SystemExit('no such layer')"]
    )
    with pytest.raises(ReplayFailed, match=r"worker [01] .* ended with exit code 1\n(.*\n)*.*no such layer"):
        launches.run(tiny_plan("gradwire-none-2w1s-loopback"), lambda text: None)


def test_the_command_writes_its_records(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(asdict(tiny_profile())))
    done = run_command(
        *("--row", "gradwire-none-2w1s-loopback", "--profile", str(path), "--scale", "10"),
        *("--steps", "2", "--cpu-limit", "1", "--folder", str(tmp_path), "--json", "-"),
    )
    record = json.loads(done.stdout)[0]
    promised = {"row", "system", "codec", "placement", "workers", "servers", "bandwidth", "efficiency"}
    promised |= {"published_efficiency", "bound", "overlap_step", "codec_seconds", "steps"}
    assert promised <= set(record)
    assert "row 1 of 1: gradwire-none-2w1s-loopback" in done.stderr
    assert [one["row"] for one in json.loads((tmp_path / "results.json").read_text())] == [record["row"]] * 2
    with open(tmp_path / "results.csv") as file:
        assert [line["overlap_step"] for line in csv.DictReader(file)] == ["False", "True"]
    assert ElementTree.parse(tmp_path / "results.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    tables = run_command("--tables", "--folder", str(tmp_path)).stdout
    _, controls = tables.split("Controls:")  # another profile and scale are no row of the table
    assert "| tiny, loopback, 2w1s | gradwire none | overlap, profile tiny " in controls


def test_list_names_rows_that_can_be_run() -> None:
    assert run_command("--list").stdout.split() == [row.name for row in rows.TABLE]


def test_ctrl_c_stops_a_row(tmp_path: Path) -> None:
    command = [sys.executable, str(RUN), "--row", "gradwire-none-2w1s-loopback", "--folder", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "begins" in line:
                process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
    assert not (tmp_path / "results.json").exists()
