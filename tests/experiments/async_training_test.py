"""experiments/async_training and what it needs of the training loop: the optimizer on servers, a slow worker."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gradwire.kv import KVStore
from gradwire.launch.supervisor import run_job
from python.experiment_files import imported
from python.inproc_ranks import run_ranks

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
TRAIN = EXPERIMENTS / "fashion_mnist" / "train.py"
TINY = ["--network", "mlp", "--batch-size", "32", "--limit", "640", "--num-epochs", "2", "--threads", "1"]
ON_STORE = [*TINY, "--update-on-kvstore", "--lr-schedule", "constant"]


@pytest.fixture(scope="module")
def figures() -> Iterator[ModuleType]:
    with imported(EXPERIMENTS / "async_training", ["figures", "run"]) as files:
        yield files["figures"]


def part_of_training(name: str) -> Iterator[ModuleType]:
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        yield importlib.import_module(f"training.{name}")
    finally:
        sys.path.remove(str(EXPERIMENTS))


@pytest.fixture(scope="module")
def slow_worker() -> Iterator[ModuleType]:
    yield from part_of_training("slow_worker")


@pytest.fixture(scope="module")
def store_sgd() -> Iterator[ModuleType]:
    yield from part_of_training("store_sgd")


def train(folder: Path, *flags: str, workers: int = 2, **environment: str) -> dict[str, Any]:
    path, lines = folder / "record.json", []
    result = run_job(
        [sys.executable, str(TRAIN), *flags, "--json", str(path)],
        workers=workers,
        servers=1,
        env=environment,
        output=lambda line: lines.append(f"{line.role} {line.rank}: {line.text}"),
        report=lines.append,
        timeout=300,
    )
    assert result.exit_code == 0, "\n".join(lines)
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def test_the_servers_sgd_is_the_workers(tmp_path: Path) -> None:
    """But for the last bits: it adds first and divides then."""
    there = train(tmp_path, "--kv-store", "dist_sync", *ON_STORE)
    here = train(tmp_path, "--kv-store", "dist_sync", *TINY, "--lr-schedule", "constant")
    assert there["update_on_kvstore"] is True
    assert here["update_on_kvstore"] is False
    assert there["training_loss_per_epoch"] == pytest.approx(here["training_loss_per_epoch"], rel=1e-3)
    assert "staleness_per_worker" not in there


def test_workers_of_dist_async_train_and_their_staleness_is_bounded(tmp_path: Path) -> None:
    bound, workers = 1, 3
    flags = [*TINY, "--lr-schedule", "constant", "--kv-store", "dist_async", "--slow-worker", "2:2"]
    record = train(tmp_path, *flags, workers=workers, GRADWIRE_STALENESS_BOUND=str(bound))
    assert record["update_on_kvstore"] is True
    losses = record["training_loss_per_epoch"]
    assert losses[1] < losses[0]
    counts = record["staleness_per_worker"]
    assert len(counts) == workers
    assert len({sum(own.values()) for own in counts}) == 1
    assert sum(counts[0].values()) % record["steps"] == 0  # each part of each push
    assert max(int(staleness) for own in counts for staleness in own) <= (workers - 1) * (2 * bound + 1)


def test_rank_0_scores_what_the_last_worker_has_left(store_sgd: ModuleType) -> None:
    given = {
        "lr": 0.5,
        "momentum": 0.0,
        "wd": 0.0,
        "optimizer": "sgd",
        "lr_schedule": "constant",
        "warmup_steps": 1,
    }
    unset = ("overlap_step", "momentum_correction", "gc_budget", "gc_reply", "gc_weights")
    flags = argparse.Namespace(**given, **dict.fromkeys(unset), gc_type="none", kv_store="dist_async")

    def body(store: KVStore) -> None:
        model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = store_sgd.StoreSgd(flags, model, store)
        for _ in range(1 + 2 * store.rank):  # rank 1 goes on alone
            model.weight.grad = torch.ones_like(model.weight)
            optimizer.step()
        store.barrier()
        optimizer.refresh()
        assert torch.equal(model.weight, torch.full_like(model.weight, -0.5 * 4 / 2))

    run_ranks(2, body, "dist_async", staleness_bound=None)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--kv-store", "dist_async"], "--lr-schedule cosine needs the optimizer in the worker"),
        (
            ["--kv-store", "dist_async", "--lr-schedule", "constant", "--optimizer", "adamw"],
            "--optimizer adamw needs",
        ),
        (["--update-on-kvstore", "--lr-schedule", "constant", "--overlap-step"], "--overlap-step needs"),
        (["--slow-worker", "0:0.5"], "expected RANK:FACTOR with a factor of 1 or more"),
        (["--slow-worker", "1:2"], "names no worker of this job; expected 0 to 0"),
        (["--update-on-kvstore", "--ddp-hook", "none"], "--update-on-kvstore was given with --ddp-hook"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags: list[str], said: str) -> None:
    if "dist_async" in flags:
        lines: list[str] = []
        result = run_job(
            [sys.executable, str(TRAIN), *TINY, *flags],
            1,
            1,
            output=lambda line: lines.append(line.text),
            timeout=300,
        )
        assert result.exit_code != 0
        assert said in "\n".join(lines)
        return
    done = subprocess.run(
        [sys.executable, str(TRAIN), *TINY, *flags], capture_output=True, text=True, timeout=90
    )
    assert done.returncode != 0
    assert said in done.stderr


class Clock:
    """In the place of the module `time`: it stands still but for what a test adds, and sleeps are noted."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_a_slow_worker_takes_a_multiple_of_what_it_computes(
    slow_worker: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(slow_worker, "time", clock)
    model = torch.nn.Linear(4, 1)
    slow = slow_worker.Slowness(model, 3)
    slow.begin_step()
    clock.now += 0.05  # its computing
    model(torch.ones(1, 4)).backward()
    clock.now += 0.2  # it waits for others
    slow.end_backward()
    assert clock.slept == [pytest.approx(0.1)]


@pytest.mark.parametrize("text", ["3", "3:", "x:2", "-1:2", "1:0.9", "1:inf", "1:nan"])
def test_a_slow_worker_that_is_none(text: str, slow_worker: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"expected RANK:FACTOR"):
        slow_worker.parse(text)


def record_of(arm: str, seed: int, seconds: float, staleness: list[dict[str, int]] | None) -> dict[str, Any]:
    return {
        "arm": arm,
        "seed": seed,
        "accuracy": 0.8 if staleness is None else 0.85,  # rank 0 ends before the slow worker does
        "accuracy_per_epoch": [0.5, 0.8],
        "seconds_per_epoch": [seconds, 2 * seconds],
        "images_per_second": 100 / seconds,
        "steps": 10,
        "staleness_per_worker": staleness,
        "wall_seconds": 3 * seconds,
    }


@pytest.fixture
def results() -> dict[str, Any]:
    stale = [{"0": 8, "2": 2}, {"1": 10}, {"3": 10}, {"9": 5, "39": 5}]
    runs = [record_of("dist_sync", seed, 10 + seed, None) for seed in range(2)]
    runs += [record_of("dist_async", seed, 5 + seed / 2, stale) for seed in range(2)]
    return {"arms": ["dist_sync", "dist_async"], "runs": runs}


def test_the_table_has_times_ratios_and_staleness(figures: ModuleType, results: dict[str, Any]) -> None:
    lines = figures.table(results).splitlines()
    assert lines[0] == "Target: 79.50 %, half a point below the mean final accuracy of dist_sync."
    assert lines[4].startswith("| dist_sync | 80.00 | 20.8 | 1.00 [1.00, 1.00] |")
    assert lines[5].startswith("| dist_async | 85.00 | 10.4 | 0.50 [0.50, 0.50] |")
    assert lines[5].endswith("| 7.10 | 39 |")


def test_the_charts_show_every_arm(figures: ModuleType, results: dict[str, Any]) -> None:
    assert all(arm in figures.accuracy(results) for arm in results["arms"])
    chart = figures.staleness(results)
    assert "dist_async: the slow worker" in chart
    assert "dist_async: the others" in chart
    assert "dist_sync" not in chart
    assert "8 to 15: 50.0 %" in chart
    assert "32 and more: 50.0 %" in chart


def test_a_measurement_that_failed_is_told(figures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sys.modules["run"]
    monkeypatch.setattr(run, "SHARED", "--network none")
    with pytest.raises(run.Failed, match="dist_sync, seed 0: ended with 2"):
        run.measure(argparse.Namespace(seeds=1, arm=["dist_sync"], quick=True))
