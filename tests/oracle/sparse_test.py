"""The built codecs that send a part of the elements against the NumPy oracle."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import sparse

SIZES = [1, 2, 33, 257, 1000, 70_001]


def gradient(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = (np.round(rng.normal(0, 0.4, n) * 64) / 64).astype(np.float32)  # with ties
    values[rng.integers(0, n, n // 50)] = [np.nan, np.inf, -np.inf, 0, 1e-45, 1e5][seed % 6]
    return values


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("ratio", "kind"), [(0.01, "fp32"), (0.3, "fp16"), (0.05, "bf16"), (1, "fp32")])
def test_top_k_equals_oracle(ratio: float, kind: str, n: int) -> None:
    compress = pytest.importorskip("gradwire.compress")
    codec = compress.make("topk", ratio=ratio, values=kind)
    residual, expected_residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    payloads = []
    for seed in range(6):
        expected = sparse.encode_top_k(gradient(n, seed), expected_residual, ratio, kind)
        payloads.append(codec.encode(gradient(n, seed), residual=residual))
        assert bytes(payloads[-1]) == expected
        np.testing.assert_array_equal(residual, expected_residual)
    total = np.zeros(n, np.float32)
    for payload in payloads:
        total = total + sparse.decode_top_k(bytes(payload), n, ratio, kind)
    np.testing.assert_array_equal(codec.decode_sum(payloads, n), total)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("ratio", "kind"), [(0.01, "fp32"), (0.2, "bf16")])
def test_random_k_equals_oracle(ratio: float, kind: str, n: int) -> None:
    compress = pytest.importorskip("gradwire.compress")
    codec = compress.make("randomk", ratio=ratio, values=kind, seed=9)
    residual, expected_residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for step in range(2**32 - 2, 2**32 + 2):
        where = {"step": step, "key": 4, "offset": 5 * 65_536}
        expected = sparse.encode_random_k(gradient(n, step), expected_residual, ratio, 9, **where, kind=kind)
        payload = codec.encode(gradient(n, step), residual=residual, rank=3, **where)
        assert bytes(payload) == expected
        np.testing.assert_array_equal(residual, expected_residual)
