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


GRADIENTS = {
    "gaussian": lambda n, step: np.random.default_rng(step).normal(0, 0.4, n),
    "heavy_tailed": lambda n, step: np.random.default_rng(step).standard_t(1.2, n),
    "alike": lambda n, step: np.full(n, 0.7),
    "one_large": lambda n, step: np.where(np.arange(n) == n // 2, 100.0, 1.0),
    "one_round": lambda n, step: np.full(n, 3.0 if step == 1 else 0.0),
}


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("n", [1, 3, 100, 65537])
def test_rounds_of_agreed_scales_equal_oracle(n: int, kind: str) -> None:
    compress = pytest.importorskip("gradwire.compress")
    codec = compress.make("2bit", threshold="auto")
    ways, scales = 3, None
    residuals, expected_residuals = np.zeros((2, ways, n), np.float32)
    server, expected_server = np.zeros((2, n), np.float32)
    for step in range(12):
        payloads = []
        for w in range(ways):
            grad = ((w + 1) * GRADIENTS[kind](n, ways * step + w)).astype(np.float32)
            given = None if scales is None else np.array(scales, np.float32)
            payloads.append(codec.encode(grad, residual=residuals[w], scales=given))
            assert bytes(payloads[w]) == two_bit.encode_auto(grad, expected_residuals[w], scales)
            np.testing.assert_array_equal(residuals[w], expected_residuals[w])
        reply = codec.encode_reply(payloads, n, reply="2bit", residual=server)
        if scales is not None:
            expected = two_bit.encode_auto_reply(list(map(bytes, payloads)), n, expected_server)
            assert bytes(reply) == expected
        np.testing.assert_array_equal(server, expected_server)
        scales = [tuple(map(float, each)) for each in codec.decode_reply(reply, ways, n, reply="2bit")[1]]
