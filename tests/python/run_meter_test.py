"""What `gradwire.result.write()` measures itself, where a script gives nothing but its accuracies (N13)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from gradwire.ab import experiment as ab
from gradwire.ab.experiment import Plan, Run
from gradwire.stores import run_meter
from gradwire.stores.run_meter import RunMeter

MEASURED = (
    "bytes_per_step",
    "bytes_total",
    "codec_seconds",
    "images_per_second",
    "seconds_per_epoch",
    "steps",
)

HEAD = """
import copy
import torch
import gradwire as gw
import gradwire.result
import gradwire.torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
"""
OPTIMIZER = (
    HEAD
    + """
optimizer = gw.torch.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters(), compression="none"
)
"""
)
HOOK = (
    HEAD
    + """
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
model.register_comm_hook(gw.torch.HookState("none"), gw.torch.ddp_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
)
LOOP = """
for step in range(12):
    optimizer.zero_grad()
    for part in range(2):  # accumulated where both are summed in one step
        loss = model(torch.randn(16, 64)).square().mean()
        loss.backward() if part else loss.detach()
    optimizer.step()
    with torch.no_grad():
        model(torch.randn(1000, 64))  # evaluation
    copy.deepcopy(model) if "Parallel" not in type(model).__name__ else None
gradwire.result.write(accuracy_per_epoch=[0.25, 0.5]{more})
"""


def run(tmp_path: Path, script: str, arm: str = "2bit") -> Run:
    plan = Plan((sys.executable, "-c", script), (arm,), (0,), 2, 0, None, tmp_path / "report")
    [ended] = ab.run_plan(plan, ab.Conditions(), Quiet())
    assert isinstance(ended, Run), str(ended)
    return ended


class Quiet:
    """Implements experiment.Progress."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize("head", [OPTIMIZER, HOOK], ids=["optimizer", "hook"])
def test_a_script_that_gives_its_accuracies_alone_has_the_rest_measured(head: str, tmp_path: Path) -> None:
    found = run(tmp_path, head + LOOP.format(more="")).result
    assert found.measured == MEASURED
    assert found.steps == 12
    assert found.bytes_per_step is not None
    assert found.bytes_total is not None
    assert found.codec_seconds is not None
    # 4 680 elements in 2 bits, pushed and pulled; frames have headers. Uncompressed they were 37 440 bytes.
    assert 2 * 4680 / 4 < found.bytes_per_step < 37_440 / 3
    assert found.bytes_total > 12 * found.bytes_per_step * 0.9
    assert found.codec_seconds > 0
    assert found.seconds_per_epoch is not None
    assert 0 < found.seconds_per_epoch[0] < found.seconds_per_epoch[1]
    # Two batches of 16 in a step, of two workers.
    assert found.images_per_second is not None
    assert found.images_per_second * found.seconds_per_epoch[1] > 11 * 64 * 0.5


def test_what_the_script_gives_stands(tmp_path: Path) -> None:
    more = ", bytes_per_step=5, codec_seconds=None, images_per_second=7"
    found = run(tmp_path, OPTIMIZER + LOOP.format(more=more)).result
    assert (found.bytes_per_step, found.codec_seconds, found.images_per_second) == (5, None, 7)
    assert found.measured == ("bytes_total", "seconds_per_epoch", "steps")


PLAIN = """
import numpy as np
import gradwire as gw
import gradwire.result
kv = gw.kv.create("allreduce")
kv.set_gradient_compression("none")
kv.init("w", np.zeros(4096, np.float32))
for _ in range(3):
    kv.pushpull("w", np.ones(4096, np.float32), out=np.zeros(4096, np.float32))
gradwire.result.write(accuracy_per_epoch=[0.25, 0.5])
"""


def test_without_pytorch_bytes_and_codec_seconds_are_known(tmp_path: Path) -> None:
    found = run(tmp_path, PLAIN)
    assert found.result.measured == ("bytes_total", "codec_seconds")
    spent = found.bytes()
    assert spent is not None
    assert spent[1] == found.result.bytes_total == 2 * spent[0]


class Engine:
    """Counts as an engine does: 100 bytes at first, 50 more in each step but the first, which takes 900."""

    rank, num_workers = 0, 2

    def __init__(self) -> None:
        self.total = 100
        self.is_closed = False

    def counters(self) -> dict[str, int]:
        if self.is_closed:
            raise RuntimeError("closed")
        return {"bytes_sent": self.total, "bytes_received": 0}

    def codec_seconds(self) -> float:
        return 0.5


def test_the_first_step_is_left_out_and_a_second_optimizer_is_no_step(tmp_path: Path) -> None:
    engine: Any = Engine()
    meter = RunMeter(engine, str(tmp_path / "r.json"))
    for step in range(5):
        engine.total += 50 if step else 900
        meter.add_batch(16 if step else 999)
        meter.end_step()
        meter.end_step()  # of another optimizer
    found = meter.figures(2)
    assert (found["steps"], found["bytes_per_step"], found["bytes_total"]) == (5, 50, 1200)
    assert len(found["seconds_per_epoch"]) == 2
    engine.is_closed = True
    assert "bytes_total" not in meter.figures(2)
    assert meter.figures(9).get("seconds_per_epoch") is None


@pytest.mark.parametrize("heartbeats", [0, 20])
def test_where_most_steps_send_little_their_mean_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heartbeats: int
) -> None:
    """Every fifth step sends 500 bytes more, and takes 6 s more."""
    now = 0.0
    monkeypatch.setattr(run_meter.time, "perf_counter", lambda: now)
    engine: Any = Engine()
    meter = RunMeter(engine, str(tmp_path / "r.json"))
    for step in range(11):
        engine.total += heartbeats + (500 if step % 5 == 0 else 0)
        now += 1.0 + (6.0 if step % 5 == 0 else 0.0)
        meter.add_batch(11)
        meter.end_step()
    found = meter.figures(1)
    assert found["bytes_per_step"] == 100 + heartbeats
    assert found["images_per_second"] == pytest.approx(2 * 11 / 2.2)  # in 10 steps of 22 s, by two workers
