"""A worker that averages by PowerSGD and compares with the paper's algorithm, run here for all ranks.

power_sgd_worker.py STORE
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gradwire
import numpy as np
from gradwire.power_sgd import PowerSGD
from gradwire.settings import definitions as settings
from oracle import power_sgd as oracle

SHAPES = [(300, 200), (50,)]
STEPS = 8


def gradient(rank: int, step: int, index: int) -> np.ndarray:
    """Ranks differ for good, besides by chance: what they differ by must cancel out between their errors."""
    own = np.random.default_rng(rank).normal(size=SHAPES[index])
    noise = np.random.default_rng([rank, step, index]).normal(size=SHAPES[index])
    return (own + noise).astype(np.float32)


def main() -> None:
    rank = settings.read().rank
    (Path(os.environ["TEST_FOLDER"]) / f"worker{rank}.pid").write_text(str(os.getpid()))
    store = gradwire.kv.create(sys.argv[1])
    ranks = range(store.num_workers)
    power = PowerSGD(store, SHAPES, rank=3, seed=store.rank)  # rank 0's counts
    q = power.state_dict()["bases"][0].astype(np.float64)
    errors = [np.zeros(SHAPES[0]) for _ in ranks]
    digest = hashlib.sha256()
    for step in range(STEPS):
        own = [gradient(store.rank, step, index) for index in range(2)]
        assert power.all_reduce(own)
        given = [gradient(other, step, 0).astype(np.float64) for other in ranks]
        expected, errors, q = oracle.step(given, errors, q)
        np.testing.assert_allclose(own[0], expected, rtol=1e-3, atol=2e-3 * np.abs(expected).max())
        mean = np.mean([gradient(other, step, 1) for other in ranks], axis=0)
        np.testing.assert_allclose(own[1], mean, rtol=1e-5, atol=1e-6)
        for array in own:
            digest.update(array.tobytes())
    owed = power.state_dict()["errors"][0]
    np.testing.assert_allclose(owed, errors[store.rank], rtol=1e-2, atol=1e-2)
    bad = [gradient(store.rank, 0, index) for index in range(2)]
    if store.rank == 1:
        bad[0][0, 0] = np.nan
    assert not power.all_reduce(bad)
    assert np.isnan(bad[0]).all()
    print(json.dumps({"rank": store.rank, "result": digest.hexdigest()}))
    store.close()


main()
