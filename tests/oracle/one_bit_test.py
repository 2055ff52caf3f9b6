"""The built 1bit against the NumPy oracle."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import one_bit

SIZES = [1, 31, 32, 33, 257, 1000, 70_001]


def gradient(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 0.4, n).astype(np.float32)
    values[rng.integers(0, n, n // 50)] = [np.nan, np.inf, -np.inf, 0, 1e-45, 3.4e38][seed % 6]
    return values


@pytest.mark.parametrize("n", SIZES)
def test_scaled_form_equals_oracle(n: int) -> None:
    compress = pytest.importorskip("gradwire.compress")
    codec = compress.make("1bit")
    residual, expected_residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for seed in range(5):
        expected = one_bit.encode_mean(gradient(n, seed), expected_residual)
        payload = codec.encode(gradient(n, seed), residual=residual)
        assert bytes(payload) == expected
        np.testing.assert_array_equal(residual, expected_residual)
        np.testing.assert_array_equal(codec.decode(payload, n), one_bit.decode_mean(expected, n))


@pytest.mark.parametrize("n", [1, 33, 1000, 70_001])
def test_rows_of_zeros_equal_oracle(n: int) -> None:
    """Some words of 32 are zeros, others have the signs by which these are marked."""
    compress = pytest.importorskip("gradwire.compress")
    codec = compress.make("1bit")
    word = np.arange(n) // 32
    mark = one_bit.signs(one_bit.ZERO_WORD * (n // 32 + 1), n)
    residual, expected_residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for seed in range(5):
        grad = np.where(word % 3 == 1, 0, np.where(word % 5 == 2, 10.0**seed * mark, gradient(n, seed)))
        grad = grad.astype(np.float32)
        expected = one_bit.encode_mean(grad, expected_residual)
        payload = codec.encode(grad, residual=residual)
        assert bytes(payload) == expected
        np.testing.assert_array_equal(residual, expected_residual)
        assert not residual[word % 3 == 1].any()
        np.testing.assert_array_equal(codec.decode(payload, n), one_bit.decode_mean(expected, n))


@pytest.mark.parametrize("n", SIZES)
def test_form_with_a_threshold_equals_oracle(n: int) -> None:
    compress = pytest.importorskip("gradwire.compress")
    codec = compress.make("1bit", threshold=0.25)
    residual, expected_residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    payloads = []
    for seed in range(6):
        expected = one_bit.encode_votes(gradient(n, seed), expected_residual, 0.25)
        payloads.append(codec.encode(gradient(n, seed), residual=residual))
        assert bytes(payloads[-1]) == expected
        np.testing.assert_array_equal(residual, expected_residual)
    total = sum(one_bit.signs(bytes(payload), n) for payload in payloads)
    np.testing.assert_array_equal(codec.decode_sum(payloads, n), total)
    reply = codec.encode_reply(payloads, n, reply="exact")
    assert bytes(reply) == one_bit.planes([bytes(p) for p in payloads], n)
    np.testing.assert_array_equal(codec.decode_reply(reply, 6, n, reply="exact")[0], total)
