"""experiments/encryption_cost and experiments/attacker: the tables in their pages are those of their results, and each
names what the program really has."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from integration import attacker
from python.experiment_files import load

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
cost = load(EXPERIMENTS / "encryption_cost" / "run.py")
attacks = load(EXPERIMENTS / "attacker" / "run.py")


@pytest.mark.parametrize(("name", "program"), [("encryption_cost", cost), ("attacker", attacks)])
def test_the_page_has_the_table_of_the_results(name: str, program: Any) -> None:
    folder = EXPERIMENTS / name
    results = json.loads((folder / "results.json").read_text())
    assert program.markdown(results) in (folder / "README.md").read_text()


def test_rows_are_commands_of_the_bench() -> None:
    assert set(cost.ROWS) == {
        f"{name}-{rate}" for name in ("ps", "allreduce") for rate in ("1gbit", "10gbit")
    }
    assert set(cost.ENCRYPTED) < set(cost.ARMS)


@pytest.mark.parametrize("attack", ["no_key", "wrong_key", "random_frames", "idle"])
def test_an_attack_of_the_page_is_one_of_the_attacker(attack: str) -> None:
    assert f"| `{attack}` |" in (EXPERIMENTS / "attacker" / "README.md").read_text()
    assert callable(getattr(attacker.Attacker, attack))


def test_the_attacker_stands_alone() -> None:
    """It runs where there is nothing but Python, and tells of ports that do not answer."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", attacker.__file__, "no_key", "127.0.0.1:9", "--count", "3"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    record = json.loads(done.stdout)
    assert (record["connections"], record["not_accepted"], record["heard"]) == (3, 3, [])


def test_the_attacker_keeps_to_its_rate() -> None:
    slow = attacker.Attacker([("127.0.0.1", 9)], random.Random(1), rate=50)
    began = time.monotonic()
    for _ in range(10):
        slow.throw(b"")
    assert time.monotonic() - began >= 10 / 50
