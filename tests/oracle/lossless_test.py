"""The built lossless stage against the NumPy oracle, and against entropy."""

from __future__ import annotations

import numpy as np
import pytest
from gradwire import DecodeError, compress
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
from oracle import lossless, two_bit

DENSITIES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5]
quickly = settings(deadline=None, max_examples=60)


def drawn(elements: int, density: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    signs = rng.integers(0, 2, elements) * 2 - 1
    return np.where(rng.random(elements) < density, signs, 0).astype(np.int8)


@pytest.mark.parametrize("elements", [1, 5, 16, 33, 1000, 70_001])
@pytest.mark.parametrize("density", [0.0, 0.002, 0.05, 0.2, 0.5, 1.0])
def test_it_equals_the_oracle(elements: int, density: float) -> None:
    codes = drawn(elements, density, elements)
    coded = compress.lossless_encode(two_bit.pack(codes), elements)
    assert bytes(coded) == lossless.encode(codes)
    assert_array_equal(compress.lossless_decode(coded, elements), two_bit.pack(codes))


@quickly
@given(hnp.arrays(np.int8, st.integers(1, 300), elements=st.integers(-1, 1)))
def test_any_codes_equal_the_oracle(codes: np.ndarray) -> None:
    coded = compress.lossless_encode(two_bit.pack(codes), codes.size)
    assert bytes(coded) == lossless.encode(codes)
    assert_array_equal(compress.lossless_decode(coded, codes.size), two_bit.pack(codes))


@pytest.mark.parametrize("density", DENSITIES)
def test_it_is_within_a_fifth_of_the_entropy(density: float) -> None:
    elements = 16 * lossless.UNIT
    coded = compress.lossless_encode(two_bit.pack(drawn(elements, density, 1)), elements)
    assert 0.97 < 8 * coded.size / elements / lossless.entropy(density) < 1.2


def test_a_payload_of_the_codec_comes_back() -> None:
    codec = compress.make("2bit", threshold=1.0)
    grad = np.random.default_rng(1).normal(0, 0.4, 100_000).astype(np.float32)
    payload = codec.encode(grad)
    coded = compress.lossless_encode(payload, grad.size)
    assert coded.size < payload.size / 10
    assert_array_equal(compress.lossless_decode(coded, grad.size), payload)


@quickly
@given(st.binary(max_size=60), st.integers(1, 200))
def test_other_bytes_are_refused_or_codes(coded: bytes, elements: int) -> None:
    try:
        codes = compress.lossless_decode(np.frombuffer(coded, np.uint8), elements)
    except DecodeError:
        return
    assert bytes(compress.lossless_encode(codes, elements)) == coded


def test_codes_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 12"):
        compress.lossless_encode(np.zeros(8, np.uint8), 33)
