"""experiments/checkpoint: what counts as lost when other workers take over; the table in its page."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from python.experiment_files import load

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "checkpoint"


@pytest.fixture(scope="module")
def conserved() -> ModuleType:
    return load(FOLDER / "conserved.py")


def test_the_page_has_the_table_of_the_results() -> None:
    table = load(FOLDER / "run.py").markdown(json.loads((FOLDER / "results.json").read_text()))
    assert table in (FOLDER / "README.md").read_text()


def total(conserved: ModuleType, *workers: list[float]) -> dict[str, object]:
    of_all = np.array(workers, np.float32).astype(np.float64)
    return {"w": conserved.Total(of_all.sum(0), np.abs(of_all).sum(0))}


def test_a_small_residual_beside_a_large_one_is_not_lost_unheard(conserved: ModuleType) -> None:
    """It was taken for a rounding of the largest, plus one."""
    was = total(conserved, [1.0, 1e-8], [0.5, 1e-8])
    kept = total(conserved, [1.5, 2e-8])
    assert conserved.require_conserved("the residual", was, kept, share=1.0, roundings=2) < 2**-23
    gone = total(conserved, [1.5, 1e-8])
    with pytest.raises(ValueError, match="the residual of w, element 1: "):
        conserved.require_conserved("the residual", was, gone, share=1.0, roundings=2)


def test_roundings_of_what_cancels_are_none(conserved: ModuleType) -> None:
    workers = [[1.0], [1e-8], [-1.0], [3e-9]]
    added = np.float32(0)
    for (value,) in workers:
        added = np.float32(added + np.float32(value))
    assert added != np.float64(1.3e-8)
    now = total(conserved, [float(added)])
    was = total(conserved, *workers)
    assert conserved.require_conserved("the residual", was, now, share=1.0, roundings=4) > 0


def test_a_share_of_what_was_may_be_expected(conserved: ModuleType) -> None:
    was = total(conserved, [4.0, 0.0], [8.0, 1e-9])
    now = total(conserved, [9.0, 0.75e-9])
    conserved.require_conserved("the momentum", was, now, share=0.75, roundings=3)
    with pytest.raises(ValueError, match="the momentum of w, element 0"):
        conserved.require_conserved("the momentum", was, was, share=0.75, roundings=3)
