"""experiments/memory: its page has its results, and each front end's worker says what it took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from python.experiment_files import load

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "memory"
memory = load(FOLDER / "run.py")


def test_the_page_has_the_table_of_the_results() -> None:
    record = json.loads((FOLDER / "results.json").read_text())
    assert memory.tables(record) in (FOLDER / "README.md").read_text()
    assert [(row["front_end"], row["codec"], row["servers"]) for row in record["arms"]] == list(memory.ARMS)


@pytest.mark.parametrize(
    ("front_end", "codec", "servers"),
    [("ddp", "int8", 0), ("optimizer", "int8", 2), ("fsdp2", "plain", 0), ("ddp bfloat16", "int8", 0)],
)
def test_a_worker_and_a_server_take_what_a_model_needs(front_end: str, codec: str, servers: int) -> None:
    found = memory.peaks(front_end, codec, servers, 4)
    ranks_of_a_parameter = 2 if front_end == "fsdp2" else 1
    width = 2 if "bfloat16" in front_end else 4
    numbers = 4 * 4 * memory.LAYER / ranks_of_a_parameter  # parameters, their gradients, AdamW's two
    assert found["worker"] >= width * numbers
    # Where there is no server, it is the scheduler's: 9 MB of program and no gradients.
    assert (found["server"] > 16_000_000) == bool(servers)
