"""The built codecs with a scale per block against the NumPy oracle."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import block

SIZES = [1, 2, 31, 32, 33, 257, 1000, 70_001]


def gradient(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = (rng.normal(0, 0.4, n) * 10.0 ** rng.integers(-30, 30, n // 256 + 1).repeat(256)[:n]).astype(
        "f4"
    )
    values[rng.integers(0, n, n // 50)] = [np.nan, np.inf, -np.inf, 0, 1e-45, 3.4e38][seed % 6]
    return values


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("name", "size"),
    [("int8", 256), ("int8", 32), ("int4", 128), ("int4", 4096), ("e4m3", 256), ("e5m2", 64)],
)
def test_codec_equals_oracle(name: str, size: int, n: int) -> None:
    compress = pytest.importorskip("gradwire.compress")
    fp8 = name in block.FRACTION_BITS
    codec = compress.make("fp8", format=name, block=size) if fp8 else compress.make(name, block=size)
    residual, expected_residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    payloads = []
    for seed in range(6):
        expected = block.encode(gradient(n, seed), expected_residual, name, size)
        payloads.append(codec.encode(gradient(n, seed), residual=residual))
        assert bytes(payloads[-1]) == expected
        np.testing.assert_array_equal(residual, expected_residual)
    total = np.zeros(n, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for payload in payloads:
            total = total + block.decode(bytes(payload), n, name, size)
    np.testing.assert_array_equal(codec.decode_sum(payloads, n), total)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("size", [128, 32, 64, 4096])
@pytest.mark.parametrize("name", ["nf2", "nf4"])
def test_normal_float_equals_oracle(name: str, size: int, n: int) -> None:
    compress = pytest.importorskip("gradwire.compress")
    codec = compress.make(name, block=size)
    encode, decode = {
        "nf2": (block.encode_nf2, block.decode_nf2),
        "nf4": (block.encode_nf4, block.decode_nf4),
    }[name]
    residual, expected_residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    payloads = []
    for seed in range(6):
        expected = encode(gradient(n, seed), expected_residual, size)
        payloads.append(codec.encode(gradient(n, seed), residual=residual))
        assert bytes(payloads[-1]) == expected
        np.testing.assert_array_equal(residual, expected_residual)
    total = np.zeros(n, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for payload in payloads:
            total = total + decode(bytes(payload), n, size)
    np.testing.assert_array_equal(codec.decode_sum(payloads, n), total)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("bits", "bucket"), [(4, 512), (8, 64)])
def test_qsgd_equals_oracle(bits: int, bucket: int, n: int) -> None:
    compress = pytest.importorskip("gradwire.compress")
    codec = compress.make("qsgd", bits=bits, bucket=bucket, seed=11)
    residual, expected_residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for step in range(2**32 - 3, 2**32 + 3):
        where = {"step": step, "key": 4, "rank": 2, "offset": 5 * 65_536}
        expected = block.encode_qsgd(gradient(n, step), expected_residual, bits, bucket, 11, **where)
        payload = codec.encode(gradient(n, step), residual=residual, **where)
        assert bytes(payload) == expected
        np.testing.assert_array_equal(residual, expected_residual)
