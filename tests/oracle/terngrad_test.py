"""The built terngrad against the NumPy oracle."""

from __future__ import annotations

import numpy as np
import pytest
from gradwire import compress
from oracle import terngrad

SIZES = [1, 15, 16, 17, 63, 64, 65, 1000, 70_001, 140_000]


def gradient(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 10.0 ** (seed % 40 - 30), n).astype(np.float32)
    values[rng.integers(0, n, n // 50)] = [np.nan, np.inf, -np.inf, 0, 1e-45, 0.25][seed % 6]
    return values


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("clip", [None, 1.5, 2.5])
def test_codec_equals_oracle(clip: float | None, n: int) -> None:
    codec = compress.make("terngrad", clip="off" if clip is None else clip, seed=11)
    residual, expected_residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    total, payloads = np.zeros(n, np.float32), []
    for step in range(2**32 - 3, 2**32 + 3):
        where = {"step": step, "key": 4, "rank": 2, "offset": 5 * 65_536}
        expected, sent = terngrad.encode(gradient(n, step), expected_residual, clip, 11, **where)
        payloads.append(codec.encode(gradient(n, step), residual=residual, **where))
        assert bytes(payloads[-1]) == expected
        np.testing.assert_array_equal(residual, expected_residual)
        total = total + sent
    np.testing.assert_array_equal(codec.decode_sum(payloads, n), total)
