"""GatheredSum with NaNs and infinities, which codecs leave out: two ranks as two objects in one process."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest
from gradwire.compress import Compression, make
from gradwire.gathered_sum import GatheredSum


class Ranks:
    """Runs both ends of a sum in lockstep and keeps what they gathered."""

    def __init__(self, spec: str) -> None:
        self._barrier = threading.Barrier(2)
        self.payloads: list[Any] = [None, None]
        self._ends = [GatheredSum(Compression.parse(spec), rank, self._gather_of(rank)) for rank in range(2)]

    def _gather_of(self, rank: int) -> Any:
        def gather(payload: Any) -> list[Any]:
            self.payloads[rank] = payload
            self._barrier.wait(300)
            both = [np.array(each) for each in self.payloads]
            self._barrier.wait(300)
            return both

        return gather

    def add(self, values: list[Any]) -> list[Any]:
        sums: list[Any] = [None, None]

        def run(rank: int) -> None:
            sums[rank] = self._ends[rank].add("w", values[rank])

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sums


def gradients(step: int) -> list[Any]:
    return [
        np.random.default_rng(2 * step + rank).normal(0, 0.4, 5000).astype(np.float32) for rank in range(2)
    ]


@pytest.mark.parametrize("spec", ["fp16", "2bit:threshold=auto", "2bit:threshold=0.5,reply=2bit", "qsgd"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_the_sum_is_nan_on_both_and_the_next_as_if_it_had_not_been(spec: str, poison: float) -> None:
    disturbed, undisturbed = Ranks(spec), Ranks(spec)
    for step in range(5):
        if step == 2:
            bad = gradients(9)
            bad[1][77] = poison
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                sums = disturbed.add(bad)
            assert all(np.isnan(total).all() for total in sums)
            assert sum("a worker's gradient held a NaN" in str(w.message) for w in caught) == 2
            continue
        for ours, theirs in zip(
            disturbed.add(gradients(step)), undisturbed.add(gradients(step)), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)


def test_it_costs_one_byte() -> None:
    ranks = Ranks("2bit:threshold=0.5")
    ranks.add(gradients(0))
    assert ranks.payloads[0].size == make("2bit", threshold=0.5).encode(gradients(0)[0]).size + 1


def test_mxnets_own_way_with_nans_stays() -> None:
    ranks = Ranks("2bit:threshold=0.5,nonfinite=mxnet")
    bad = gradients(0)
    bad[0][3] = np.inf
    for total in ranks.add(bad):
        assert np.isfinite(total).all()
        assert total[3] >= 0
