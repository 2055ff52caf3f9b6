"""Checkpoints of earlier releases, which tests/golden keeps, are read by today's code, and jobs go on from them.

python/docs/reference/compatibility.md promises this of the previous minor version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
from gradwire.kv import KVStore
from numpy.testing import assert_array_equal
from python.kept_checkpoints import EXTRA, RANKS, SAVED_AT, Training, of_ranks, summing, sums, updating

KEPT = sorted((Path(__file__).resolve().parents[1] / "golden").glob("checkpoints_*"))
LATER = range(SAVED_AT, 2 * SAVED_AT)

pytestmark = [
    pytest.mark.usefixtures("no_job"),
    pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name),
]


def require_alike(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected) == RANKS
    for ours, theirs in zip(found, expected, strict=True):
        assert_array_equal(ours, theirs)


def test_sums_go_on(folder: Path) -> None:
    def goes_on(store: KVStore) -> Any:
        summing(store)
        restored = store.load_checkpoint(folder / "sums")
        assert restored.extra == b"mine"
        return sums(store, LATER)

    def never_stops(store: KVStore) -> Any:
        summing(store)
        sums(store, range(SAVED_AT))
        return sums(store, LATER)

    require_alike(of_ranks(goes_on), of_ranks(never_stops))


def test_weights_and_moments_go_on(folder: Path) -> None:
    def goes_on(store: KVStore) -> Any:
        updating(store)
        store.load_checkpoint(folder / "updates")
        return sums(store, LATER)

    def never_stops(store: KVStore) -> Any:
        updating(store)
        sums(store, range(SAVED_AT))
        return sums(store, LATER)

    require_alike(of_ranks(goes_on), of_ranks(never_stops))


def test_states_of_the_optimizer_are_read(folder: Path, tmp_path: Path) -> None:
    def reads(store: KVStore) -> Any:
        updating(store)
        store.load_optimizer_states(folder / "updates.states")
        return sums(store, LATER)

    def has_only_the_moments(store: KVStore) -> Any:
        """Of a job that never stopped, beside the weights of one that has just begun."""
        updating(store)
        sums(store, range(SAVED_AT))
        if store.rank == 0:
            store.save_optimizer_states(tmp_path / "states", True)
        store.barrier()

    of_ranks(has_only_the_moments)

    def reads_todays(store: KVStore) -> Any:
        updating(store)
        store.load_optimizer_states(tmp_path / "states")
        return sums(store, LATER)

    require_alike(of_ranks(reads), of_ranks(reads_todays))


def test_training_goes_on(folder: Path) -> None:
    def goes_on(store: KVStore) -> Any:
        training = Training(store)
        extra = gw.torch.load_checkpoint(folder / "training", training.model, training.optimizer)
        assert_array_equal(extra.pop("rates"), EXTRA["rates"])
        assert extra == {name: value for name, value in EXTRA.items() if name != "rates"}
        return training.steps(LATER)

    def never_stops(store: KVStore) -> Any:
        training = Training(store)
        training.steps(range(SAVED_AT))
        return training.steps(LATER)

    require_alike(of_ranks(goes_on), of_ranks(never_stops))
