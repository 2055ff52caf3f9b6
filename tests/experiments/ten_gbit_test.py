"""The bare sockets that an all-reduce is compared with carry what they say, and the tables say what was found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "ten_gbit"


def test_three_ranks_exchange_their_shares() -> None:
    addresses = [f"127.{os.getpid() >> 8 & 127}.{os.getpid() & 255}.{rank + 1}" for rank in range(3)]
    program = [sys.executable, str(FOLDER / "sockets.py")]
    jobs = [
        subprocess.Popen([*program, str(rank), "3000000", "2", *addresses], stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    rounds = [json.loads(line) for job in jobs for line in job.communicate(timeout=60)[0].splitlines()]
    assert [job.returncode for job in jobs] == [0, 0, 0]
    assert len(rounds) == 6
    assert all(row["seconds"] > 0 and row["cpu_seconds"] > 0 for row in rounds)


def test_tables_have_a_row_for_each_system_and_each_pair_of_trees(tmp_path: Path) -> None:
    turns = [{"seconds": 0.5, "cpu_seconds_per_gb": cost} for cost in (0.25, 0.125, 0.5)]
    record = {
        "cpu": [{"bandwidth": "1gbit", "ranks": 2, "system": "gloo", "turns": turns}],
        "codecs": [
            {
                "ranks": 8,
                "system": "gradwire allreduce none",
                "turns": [
                    {
                        "seconds_median": 0.25,
                        "wire_limit_seconds": 0.2,
                        "cpu_seconds_per_gb": 0.75,
                        "memory_bytes_per_rank": 12_400_000,
                    }
                ],
            }
        ],
        "threads": [
            {"ranks": 4, "system": "gloo", "thread": "gloo_tcp_loop", "cpu_seconds_per_gb": [0.5, 0.25]}
        ],
        "ps": [{"ranks": 2, "system": "ps-lite alone", "turns": turns}],
        "wire": [{"row": "2 workers", "before": [1.5, 1.25], "now": [1.0]}],
    }
    (tmp_path / "results.json").write_text(json.dumps(record))
    command = [sys.executable, str(FOLDER / "run.py"), "tables", "--folder", str(tmp_path)]
    printed = subprocess.check_output(command, text=True)
    assert "| 1gbit, 2 | gloo | 0.500 | 0.25 (0.12 to 0.50) |" in printed
    assert "| 8 | gradwire allreduce none | 0.250 | 1.25 | 0.75 (0.75 to 0.75) | 12 |" in printed
    assert "| 4 | gloo | gloo_tcp_loop | 0.38 (0.25 to 0.50) |" in printed
    assert "| 2 | ps-lite alone | 0.500 | 0.25 (0.12 to 0.50) |" in printed
    assert "| 2 workers | 1.38 (1.25 to 1.50) | 1.00 (1.00 to 1.00) |" in printed


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["wire"], 2, "--against FOLDER"),
        (["ps"], 2, "--ps-lite CHECKOUT"),
        (["ps", "--ps-lite", "/nonexistent"], 1, "no ps-lite in /nonexistent"),
    ],
)
def test_what_is_compared_with_has_to_be_there(words: list[str], code: int, expected: str) -> None:
    done = subprocess.run([sys.executable, str(FOLDER / "run.py"), *words], capture_output=True, text=True)
    assert done.returncode == code
    assert expected in done.stderr


def test_threads_of_both_systems_are_found_by_name() -> None:
    program = """import sys
sys.path.insert(0, sys.argv[1])
import threads
threads.FEW, threads.MANY = 1, 3
for system, name in threads.measure("allreduce -n 2 --bytes 4MB --codec none --peer gloo", 2, 4_000_000):
    print(system, name, sep=": ")"""
    found = subprocess.check_output([sys.executable, "-c", program, str(FOLDER)], text=True).splitlines()
    assert {"gradwire: gw engine", "gradwire: gw aggregator", "gloo: gloo_tcp_loop"} <= set(found)
