"""The built natural compression against the NumPy oracle."""

from __future__ import annotations

import numpy as np
import pytest
from gradwire import compress
from oracle import natural

SIZES = [1, 7, 8, 9, 63, 64, 65, 1000, 70_001]


def gradient(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = (rng.normal(0, 0.4, n) * 10.0 ** rng.integers(-44, 38, n)).astype(np.float32)
    values[rng.integers(0, n, n // 20)] = [np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38][seed % 6]
    return values


@pytest.mark.parametrize("n", SIZES)
def test_codec_equals_oracle(n: int) -> None:
    codec = compress.make("natural", seed=11)
    residual, expected_residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    total, payloads = np.zeros(n, np.float32), []
    for step in range(2**32 - 3, 2**32 + 3):
        where = {"step": step, "key": 4, "rank": 2, "offset": 5 * 65_536}
        expected, sent = natural.encode(gradient(n, step), expected_residual, 11, **where)
        payloads.append(codec.encode(gradient(n, step), residual=residual, **where))
        assert bytes(payloads[-1]) == expected
        np.testing.assert_array_equal(residual, expected_residual)
        with np.errstate(over="ignore", invalid="ignore"):
            total = total + sent
    np.testing.assert_array_equal(codec.decode_sum(payloads, n), total)
