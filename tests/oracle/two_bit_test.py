"""The NumPy oracle against MXNet's captures, and the built codec against the oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracle import two_bit

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("mxnet191_2bit_*.npz"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_oracle_equals_mxnet(path: Path) -> None:
    golden = np.load(path)
    threshold, workers = float(golden["threshold"]), int(golden["workers"])
    for n in map(int, golden["sizes"]):
        residuals = [np.zeros(n, np.float32) for _ in range(workers)]
        for step in range(3):
            payloads = []
            for w in range(workers):
                grad = golden[f"in_n{n}_s{step}_w{w}"]
                payloads.append(two_bit.encode(grad, residuals[w], threshold, "mxnet"))
                np.testing.assert_array_equal(payloads[w], golden[f"model_packed_n{n}_s{step}_w{w}"])
                np.testing.assert_array_equal(residuals[w], golden[f"model_residual_n{n}_s{step}_w{w}"])
            pulled = two_bit.decode_sum(payloads, n, threshold)
            np.testing.assert_array_equal(pulled, golden[f"mxnet_out_n{n}_s{step}"])


def gradient(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 0.4, n).astype(np.float32)
    values[rng.integers(0, n, n // 50)] = np.nan
    return values


@pytest.mark.parametrize("n", [1, 15, 64, 1000, 70001])
@pytest.mark.parametrize("nonfinite", ["skip", "mxnet"])
def test_codec_equals_oracle(n: int, nonfinite: str) -> None:
    compress = pytest.importorskip("gradwire.compress")
    codec = compress.make("2bit", threshold=0.3, nonfinite=nonfinite)
    residual, expected_residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    payloads = []
    for step in range(3):
        expected = two_bit.encode(gradient(n, step), expected_residual, 0.3, nonfinite)
        payloads.append(codec.encode(gradient(n, step), residual=residual))
        np.testing.assert_array_equal(payloads[-1], expected)
        np.testing.assert_array_equal(residual, expected_residual)
    np.testing.assert_array_equal(codec.decode_sum(payloads, n), two_bit.decode_sum(payloads, n, 0.3))


@pytest.mark.parametrize("n", [1, 100, 70001])
def test_dense_first_round_of_agreed_scales_equals_oracle(n: int) -> None:
    compress = pytest.importorskip("gradwire.compress")
    codec = compress.make("2bit", threshold="auto")
    residual, expected_residual = gradient(n, 1) * 0, np.zeros(n, np.float32)
    np.nan_to_num(residual, copy=False)
    expected = two_bit.encode_auto(gradient(n, 2), expected_residual, None)
    assert bytes(codec.encode(gradient(n, 2), residual=residual)) == expected
    np.testing.assert_array_equal(residual, expected_residual)
