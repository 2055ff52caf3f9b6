"""Every tool's figure of bytes against what the interface of each host has counted, for peers on hosts of their own."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from gradwire.launch.child import Line
from gradwire.launch.supervisor import run_job
from gradwire.netlab import NetLab
from gradwire.plan import calibration, planner
from gradwire.plan.layer_profile import Layer, Profile
from gradwire.plan.simulation import Network, Schedule, Variant
from gradwire.timeline.command import load
from gradwire.timeline.recording import Recording
from gradwire.timeline.summary import StageTime, summarise
from integration.hosts import needs_hosts
from integration.processes import PROGRAMS, clean_environment, python

ELEMENTS, STEPS, WORKERS = 2_000_000, 6, 2
# Of Ethernet, IP and TCP, acknowledgements and control messages, beside payloads: simulation.PAYLOAD_SHARE is 0.955.
MOST_HEADERS = 1.08


def traced(lab: NetLab, folder: Path, codec: str) -> tuple[list[list[list[int]]], Path]:
    """Runs the job on two hosts. Returns per worker and step what its interface and its sockets sent; and the trace."""
    out = folder / "out.json"
    recording = Recording(out)
    lines: list[Line] = []
    result = run_job(
        python("bytes_worker.py", codec, str(ELEMENTS), str(STEPS)),
        WORKERS,
        0,
        env=clean_environment(folder, recording.environment),
        placement=lambda role, rank: lab.host(rank),
        output=lines.append,
        timeout=300,
    )
    assert result.exit_code == 0, "\n".join(line.text for line in lines)
    assert recording.finish(print)
    return [json.loads(line.text) for line in lines if line.text.startswith("[[")], out


def planned(codec: str) -> planner.Prediction:
    profile = Profile("one", "made for this test", 1, 10.0, (Layer("weight", ELEMENTS, 0.05, 0.05),))
    asked = planner.Question(profile, WORKERS, 1e9, 50e-6)
    network = Network("peers", WORKERS, 0, 1e9, 50e-6)
    return planner.predict(asked, network, Variant.parse(codec), Schedule(), calibration.load())


def benched(codec: str, *bench: str) -> float:
    words = ["-n", str(WORKERS), "--bytes", str(4 * ELEMENTS), "--codec", codec, "--bandwidth", "unshaped"]
    command = [str(PROGRAMS / "gradwire"), "bench", *bench, *words, "--repeat", "2", "--launches", "1"]
    done = subprocess.run([*command, "--json", "-"], capture_output=True, text=True, timeout=300, check=True)
    [row] = json.loads(done.stdout)
    assert row["bytes_sent_per_rank"] <= row["link_bytes_sent_per_rank"]
    return float(row["bytes_sent_per_rank"])


@needs_hosts
@pytest.mark.parametrize("codec", ["none", "2bit", "2bit:reply=2bit"])
def test_all_tools_say_what_leaves_the_interface(codec: str, tmp_path: Path) -> None:
    with NetLab(hosts=WORKERS) as lab:
        per_worker, out = traced(lab, tmp_path, codec)
    later = [step for steps in per_worker for step in steps[1:]]
    interface = statistics.fmean(step[0] for step in later)
    sockets = statistics.fmean(step[1] for step in later)

    def expect(tool: str, sent: float) -> None:
        assert sent <= interface <= MOST_HEADERS * sent, (tool, sent, interface)

    expect("kv.stats", sockets)
    expect("plan", planned(codec).sent_bytes)
    expect("bench allreduce", benched(codec, "allreduce"))
    # Each worker beside a server sends what a peer does, here with headers, too: a few more or fewer.
    if codec == "2bit":
        with_headers = benched(codec, "ps", "--colocated")
        assert 1 / MOST_HEADERS <= with_headers / interface <= MOST_HEADERS
    timeline = load(out)
    summary = summarise(timeline)
    assert summary.first_step is not None
    pushed = statistics.fmean(_bytes(rank.stages, "send") for rank in summary.workers)
    replied = statistics.fmean(
        _bytes(rank.stages, "reply send") for rank in summary.ranks if rank.role == "server"
    )
    expect("timeline", 0.5 * (pushed + replied))


def _bytes(stages: Sequence[StageTime], stage: str) -> float:
    return sum(row.bytes for row in stages if row.stage == stage)
