"""experiments/exposed_communication: its arithmetic, its claims, and one rank's steps that are really taken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from python.experiment_files import load

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "exposed_communication"


run = load(FOLDER / "run.py")


def rank(step: list[float], no_sync: list[float]) -> dict[str, Any]:
    return {"step": step, "no_sync": no_sync, "digest": "d", "relative_error": 0.5, "parameters": 1000}


def test_the_slowest_rank_of_each_step_counts() -> None:
    done = run.summary("fp16", [[rank([1.0, 5.0], [0.5, 0.5]), rank([3.0, 2.0], [0.25, 1.0])]])
    assert done["step"] == [3.0, 5.0]
    assert done["no_sync"] == [0.5, 1.0]
    assert done["exposed_median"] == pytest.approx((2.5 + 4.0) / 2)
    assert (done["exposed_min"], done["exposed_max"]) == (2.5, 4.0)


def row(name: str, **exposed: float) -> dict[str, Any]:
    records = [
        run.summary(hook.replace("_", " "), [[rank([seconds + 1], [1.0])]])
        for hook, seconds in exposed.items()
    ]
    return {
        "row": name,
        "ranks": 4,
        "bandwidth": "1gbit",
        "load_before_and_after": [0, 0],
        "records": records,
    }


def test_claims_compare_with_the_right_hook() -> None:
    table = run.markdown([row("25m-4", fp16=1.0, powersgd_1=0.3, powersgd_4=0.2, gradwire_2bit=0.1)])
    lines = {
        line.split(" | ")[2]: line for line in table.splitlines() if line.startswith("| 25m-4 | gradwire")
    }
    assert lines[">= 5 x less than fp16"].endswith("10.00 | yes |")
    assert lines[">= 2.5 x less than powersgd 1"].endswith("3.00 | yes |")
    assert lines[">= 2.5 x less than powersgd 4"].endswith("2.00 | **no** |")


def test_the_wire_of_a_dense_ring() -> None:
    seconds = run.dense_wire_seconds(row("25m-4", plain=1.0))
    assert seconds == pytest.approx(2 * 3 / 4 * 1000 * 32 / 0.955e9)


def test_too_few_steps_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "--steps", "3"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert "expected 5 or more" in done.stderr


def test_a_reduce_scatter_is_half_of_a_sum_and_replicas_are_hosts() -> None:
    of_two = run.dense_wire_seconds({**row("fsdp-2", plain=1.0), "ranks": 2, "way": "fsdp"})
    assert of_two == pytest.approx(1 / 2 * 1000 * 32 / 0.955e9)
    of_hosts = run.dense_wire_seconds({**row("hsdp-4", plain=1.0), "way": "hsdp"})
    assert of_hosts == pytest.approx(2 * 1 / 2 * 1000 * 32 / 0.955e9)


def test_ranks_of_replicated_shards_take_steps_and_agree() -> None:
    pytest.importorskip("torch")
    with run.Network.open(4, 0, None, colocated=True) as network:
        records = run.launch(run.Row("25m", 4, 1, "hsdp"), "gradwire int8", 1, network)
    assert [len(record["step"]) for record in records] == [1] * 4
    assert 0 < records[0]["relative_error"] < 0.05


def test_two_ranks_take_steps_and_agree() -> None:
    pytest.importorskip("torch")
    with run.Network.open(2, 0, None, colocated=True) as network:
        records = run.launch(run.Row("25m", 2, 1), "gradwire 2bit", 1, network)
    assert [len(record["step"]) for record in records] == [1, 1]
    assert records[0]["parameters"] == 25_000_000
    assert 0 < records[0]["relative_error"] < 2
    assert json.dumps(run.summary("gradwire 2bit", [records]))
