"""experiments/sync_every: its arms, its figures, and --sync-every in the training loop, as real jobs."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from gradwire.ab.experiment import Run
from gradwire.ab.summary import summarise
from gradwire.result import RunResult
from gradwire.terminal.machine import netlab_reason
from python.experiment_files import imported, load
from python.tiny_transformer import TRAIN, train

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "sync_every"


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    with imported(FOLDER, ("arm", "figures")) as modules:
        yield modules


def test_an_arm_is_ddp_or_a_codec_with_its_times(modules: dict[str, ModuleType]) -> None:
    command = modules["arm"].command
    environment = {"GRADWIRE_COMPRESSION": "int4 sync_every=50 fragments=2 outer_lr=1 num_epochs=8"}
    assert command(["--seed", "1"], environment)[2:] == [
        *("--seed", "1", "--kv-store", "allreduce"),
        *("--sync-every", "50", "--sync-fragments", "2", "--outer-lr", "1", "--num-epochs", "8"),
    ]
    assert environment == {"GRADWIRE_COMPRESSION": "int4"}
    environment = {"GRADWIRE_COMPRESSION": "DDP fp16"}
    assert command([], environment)[-2:] == ["--ddp-hook", "fp16"]
    assert environment == {}
    with pytest.raises(ValueError, match=r"'every=5' is none of sync_every=N"):
        modules["arm"].codec_and_flags("int4 every=5")


def runs(arm: str, finals: tuple[float, ...], seconds: float, each: float, steps: int = 10) -> list[Run]:
    """A run a seed, which has loss 4, then its final one."""
    return [
        Run(
            arm,
            seed,
            RunResult("loss", (4.0, final), (seconds / 2, seconds), bytes_per_step=each, steps=steps),
            seconds,
        )
        for seed, final in enumerate(finals)
    ]


def test_claims_are_of_the_paired_interval_and_the_bytes(modules: dict[str, ModuleType]) -> None:
    figures = modules["figures"]
    arms = {
        "DDP fp16": runs("DDP fp16", (2.0, 2.1, 2.2), 100.0, 1e6),
        "int4 sync_every=50": runs("int4 sync_every=50", (2.01, 2.08, 2.21), 10.0, 5e3),
        "int4 sync_every=20": runs("int4 sync_every=20", (2.0, 2.1, 2.2), 12.0, 2e4),
        "2bit sync_every=50": runs("2bit sync_every=50", (2.5, 2.61, 2.7), 9.0, 5e3),
        "topk sync_every=50": runs("topk sync_every=50", (1.9, 2.3, 2.1), 9.0, 5e3),  # 0 +- 0.4
        "int4 sync_every=99": runs("int4 sync_every=99", (2.0, 2.1, 2.2), 20.0, 5e3, steps=20),
        "int8 sync_every=99": runs("int8 sync_every=99", (1.5, 1.4, 1.6), 20.0, 5e3),  # -0.6 +- 0.25
    }
    outcome = summarise([run for each in arms.values() for run in each], list(arms), 3.0, "10mbit")
    record = figures.record_of("10mbit", outcome)
    fifty, twenty, two_bit, wide, longer, lower = record["arms"][1:]
    assert "no higher" in figures.claims(fifty)
    assert "200 times fewer bytes, goal 100: reached" in figures.claims(fifty)
    assert "50 times fewer bytes, goal 100: missed" in figures.claims(twenty)
    assert "100 times fewer bytes, goal 100: reached" in figures.claims(longer)  # in twice the steps
    assert "its loss is higher" in figures.claims(two_bit)
    assert fifty["time_ratio"]["mean"] == pytest.approx(0.1, rel=0.01)
    assert "of its loss: inconclusive, the interval is wide" in figures.claims(wide)
    assert "its loss is lower" in figures.claims(lower)
    table = figures.markdown(record)
    assert "| `int4 sync_every=50` | 2.1 |" in table
    assert "- `2bit sync_every=50`: its loss is higher" in table


def test_the_page_has_the_tables_of_the_results(modules: dict[str, ModuleType]) -> None:
    page = (FOLDER / "README.md").read_text()
    for record in json.loads((FOLDER / "results.json").read_text()):
        assert modules["figures"].markdown(record) in page


def test_bytes_a_step_count_what_the_end_sends() -> None:
    """Local arms send all fragments after the last step; a step of others is what most of them are."""
    sent = iter([100, 150, 160, 170, 400, 400])  # at the start, after three steps, at the end, and then
    progress = load(FOLDER.parent / "training" / "progress.py")
    local = progress.Meter(lambda: next(sent), statistics.fmean)
    for _ in range(3):
        local.step()
    local.end_epoch()
    assert local.typical() == 100
    assert local.total() == 400
    sent = iter([0, 90, 100, 110, 130])
    alike = progress.Meter(lambda: next(sent))
    for _ in range(3):
        alike.step()
    alike.end_epoch()
    assert alike.typical() == 20


def test_local_steps_learn_in_a_job_and_send_little(tmp_path: Path) -> None:
    every_step = train(tmp_path, "--gc-type", "fp16")
    flags = ("--sync-every", "8", "--gc-type", "int4", "--sync-fragments", "2", "--sync-merge-after", "2")
    local = train(tmp_path, *flags)
    assert local["steps"] == 40
    assert local["sync_every"] == 8
    assert (
        local["loss_per_epoch"][-1] < local["loss_per_epoch"][0] < 4.5
    )  # nats; 96 equal characters are 4.56
    assert local["bytes_per_step"] < every_step["bytes_per_step"] / (
        8 * 16 / 6
    )  # 4 bits, scales, biases in 32
    assert local["weights_sha256"] == train(tmp_path, *flags)["weights_sha256"]


def test_what_is_about_every_step_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(TRAIN), "--sync-every", "5", "--ddp-hook", "fp16"],
        capture_output=True,
        text=True,
        timeout=300,
        env=dict(os.environ),
    )
    assert done.returncode == 2
    assert "--sync-every was given with --ddp-hook" in done.stderr


def test_misspelt_arms_are_found_before_anything_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "--arm", "DDP fp16", "--arm", "int5 sync_every=5"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert "--arm int5" in done.stderr


@pytest.mark.soak
@pytest.mark.skipif(netlab_reason() is not None, reason=str(netlab_reason()))
def test_a_link_behind_shaped_links(tmp_path: Path) -> None:
    arms = [word for arm in ("DDP fp16", "int4 sync_every=50") for word in ("--arm", arm)]
    chosen = ["--quick", "--link", "100mbit", "--seeds", "1", "--report", str(tmp_path), *arms]
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), *chosen, "--json", "-"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout)
    assert record["arms"][1]["times_fewer_bytes"] > 100
    assert (tmp_path / "100mbit" / "index.html").exists()
