"""gradwire.compress against MXNet's captured vectors, and its properties against the NumPy oracle."""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradwire import DecodeError, compress
from gradwire.compress import Compression
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
from oracle import two_bit
from python.dlpack_array import CUDA, DlpackArray

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("mxnet191_2bit_*.npz"))
STEPS = 3
quickly = settings(deadline=None, max_examples=60)


def bits(array: Any) -> Any:
    """Floats as their bits: tells -0 from 0 and one NaN from another."""
    return np.ascontiguousarray(array, np.float32).view(np.uint32)


# ------------------------------------------------------------------------------------- MXNet's vectors


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem.removeprefix("mxnet191_2bit_"))
def golden(request: pytest.FixtureRequest) -> dict[str, Any]:
    with np.load(request.param) as vectors:
        return dict(vectors)


def test_the_vectors_are_there() -> None:
    assert len(GOLDEN) == 3


def test_mxnets_rule_to_the_bit(golden: dict[str, Any]) -> None:
    codec = compress.make("2bit", threshold=float(golden["threshold"]), nonfinite="mxnet")
    workers = int(golden["workers"])
    for n in map(int, golden["sizes"]):
        residuals = [np.zeros(n, np.float32) for _ in range(workers)]
        for step in range(STEPS):
            payloads = []
            for worker, residual in enumerate(residuals):
                name = f"n{n}_s{step}_w{worker}"
                payloads.append(codec.encode(golden[f"in_{name}"], residual=residual))
                assert_array_equal(payloads[-1], golden[f"model_packed_{name}"])
                expected = golden[f"model_residual_{name}"]
                nan = np.isnan(expected)
                assert_array_equal(np.isnan(residual), nan)
                assert_array_equal(bits(residual)[~nan], bits(expected)[~nan])
            pulled = golden[f"mxnet_out_n{n}_s{step}"]
            assert_array_equal(bits(codec.decode_sum(payloads, n)), bits(pulled))
            reply = codec.encode_reply(payloads, n, reply="exact")
            assert_array_equal(codec.decode_reply(reply, workers, n, reply="exact")[0], pulled)


def test_skipping_changes_only_what_was_once_not_finite(golden: dict[str, Any]) -> None:
    threshold, workers = float(golden["threshold"]), int(golden["workers"])
    codec = compress.make("2bit", threshold=threshold)
    compared = 0
    for n in map(int, golden["sizes"]):
        residuals = [np.zeros(n, np.float32) for _ in range(workers)]
        fine = np.ones(n, bool)  # on every worker so far
        own = [np.ones(n, bool) for _ in range(workers)]
        for step in range(STEPS):
            payloads = []
            for worker, residual in enumerate(residuals):
                name = f"n{n}_s{step}_w{worker}"
                own[worker] &= np.isfinite(golden[f"in_{name}"]) & np.isfinite(
                    golden[f"model_residual_{name}"]
                )
                fine &= own[worker]
                payloads.append(codec.encode(golden[f"in_{name}"], residual=residual))
                codes = two_bit.unpack(payloads[-1], n)
                expected = two_bit.unpack(golden[f"model_packed_{name}"], n)
                assert_array_equal(codes[own[worker]], expected[own[worker]])
                assert np.isfinite(residual).all()
                wanted = golden[f"model_residual_{name}"]
                assert_array_equal(bits(residual)[own[worker]], bits(wanted)[own[worker]])
            pulled = golden[f"mxnet_out_n{n}_s{step}"]
            assert_array_equal(codec.decode_sum(payloads, n)[fine], pulled[fine])
            compared += int(fine.sum())
    assert compared > 10_000


# Inputs, packed bytes and residuals worked out by hand from MXNet's rule.
BY_HAND = {
    "around the threshold": (
        *(0.5, [0.5, -0.5, 0.49999997, -0.49999997, 1, -1, 0, 0.3], None),
        *("e0e00000", [0, 0, 0.49999997, -0.49999997, 0.5, -0.5, 0, 0.3]),
    ),
    "with a residual": (
        *(4.0, [-6, -2, 3, 1, 10, 5, -3, 2, -8, 0], [-3, 1, -1, 5, -2, 2, 3, -7, -2, -100]),
        *("83f2a000", [-5, -1, 2, 2, 4, 3, 0, -1, -6, -96]),
    ),
    "one more than a word": (0.5, [1] * 17, None, "ffffffffc0000000", [0.5] * 17),
    "the first of a word": (0.5, [1] + [0] * 15, None, "c0000000", [0.5] + [0] * 15),
    "the last of a word": (0.5, [0] * 15 + [-1], None, "00000002", [0] * 15 + [-0.5]),
    "the fifth": (0.5, [0] * 4 + [-1] + [0] * 11, None, "00800000", [0] * 4 + [-0.5] + [0] * 11),
    "not finite": (0.5, [np.nan, np.inf, -np.inf, -0.0], None, "38000000", [np.nan, np.inf, -np.inf, 0]),
}


@pytest.mark.parametrize("case", BY_HAND.values(), ids=BY_HAND)
def test_vectors_worked_out_by_hand(case: tuple[Any, ...]) -> None:
    threshold, grad, before, packed, after = case
    codec = compress.make("2bit", threshold=threshold, nonfinite="mxnet")
    residual = np.zeros(len(grad), np.float32) if before is None else np.array(before, np.float32)
    payload = codec.encode(np.array(grad, np.float32), residual=residual)
    assert bytes(payload).hex() == packed
    assert_array_equal(residual, np.array(after, np.float32))


# ------------------------------------------------------------------------------------- properties

floats = st.floats(-4, 4, width=32) | st.sampled_from([0.5, -0.5, 0.25, np.nan, np.inf, -np.inf, 3e38, 1e-45])
gradients = st.integers(1, 200).flatmap(lambda n: hnp.arrays(np.float32, (3, n), elements=floats))
thresholds = st.floats(2.0**-20, 8, width=32)


@quickly
@given(gradients, thresholds, st.sampled_from(["skip", "mxnet"]))
def test_three_pushes_equal_the_oracle(grads: Any, threshold: float, nonfinite: str) -> None:
    codec = compress.make("2bit", threshold=threshold, nonfinite=nonfinite)
    n = grads.shape[1]
    residual, expected_residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    payloads = []
    for grad in grads:
        payloads.append(codec.encode(grad, residual=residual))
        assert_array_equal(payloads[-1], two_bit.encode(grad, expected_residual, threshold, nonfinite))
        assert_array_equal(residual, expected_residual)
    expected = two_bit.decode_sum(payloads, n, threshold)
    assert_array_equal(codec.decode_sum(payloads, n), expected)
    assert_array_equal(codec.encode_reply(payloads, n, reply="exact"), two_bit.planes(payloads, n))
    for reply in ("exact", "fp32"):
        total, scales = codec.decode_reply(codec.encode_reply(payloads, n, reply=reply), 3, n, reply=reply)
        assert_array_equal(total, expected)
        assert scales is None


@quickly
@given(gradients)
def test_nothing_is_lost_between_payload_and_residual(grads: Any) -> None:
    """With multiples of 1/4 every sum is exact: what was given is what was sent and what is kept."""
    quarters = np.nan_to_num(np.round(np.clip(grads, -8, 8) * 4) / 4, nan=0.0).astype(np.float32)
    codec = compress.make("2bit", threshold=0.5)
    residual, sent = np.zeros(grads.shape[1], np.float32), np.zeros(grads.shape[1], np.float32)
    for grad in quarters:
        sent += codec.decode(codec.encode(grad, residual=residual), grad.size)
    assert_array_equal(sent + residual, quarters.sum(axis=0))


@quickly
@given(gradients)
def test_skipped_elements_keep_their_residual_finite(grads: Any) -> None:
    for name in compress.list():
        codec = compress.make(name)
        residual = np.zeros(grads.shape[1], np.float32) if codec.lossy else None
        for grad in np.clip(grads, -100, 100):  # NaN stays
            codec.encode(grad, residual=residual)
        assert residual is None or np.isfinite(residual).all(), name


@quickly
@given(st.binary(max_size=80), st.integers(1, 200))
def test_a_payload_of_a_wrong_length_is_refused(payload: bytes, n: int) -> None:
    data = np.frombuffer(payload, np.uint8)
    codec = compress.make("2bit")
    if len(data) == two_bit.pack(np.zeros(n, np.int8)).size:
        assert_array_equal(codec.decode(data, n), two_bit.decode_sum([data], n, 0.5))
    else:
        with pytest.raises(DecodeError):
            codec.decode(data, n)


@pytest.mark.parametrize("name", compress.list())
def test_out_arguments_give_the_same(name: str) -> None:
    codec = compress.make(name)
    grad = np.random.default_rng(3).normal(size=1001).astype(np.float32)
    fresh, kept = np.zeros_like(grad), np.zeros_like(grad)
    payload = codec.encode(grad, residual=fresh if codec.lossy else None)
    room = np.zeros(codec.max_encoded_size(grad.size), np.uint8)
    length = codec.encode(grad, residual=kept if codec.lossy else None, out=room)
    assert_array_equal(room[:length], payload)
    assert_array_equal(kept, fresh)
    out = np.full_like(grad, np.nan)
    assert codec.decode_sum([payload, payload], grad.size, out=out) is None
    assert_array_equal(out, codec.decode_sum([payload, payload], grad.size))


# ------------------------------------------------------------------------------------- what users write


def test_list_names_every_codec() -> None:
    assert compress.list() == [
        "none",
        "fp16",
        "bf16",
        "2bit",
        "int8",
        "int4",
        "nf2",
        "nf4",
        "fp8",
        "1bit",
        "topk",
        "randomk",
        "qsgd",
        "terngrad",
        "natural",
    ]


@pytest.mark.parametrize(
    ("written", "spec", "reply"),
    [
        (None, "none", "none"),
        ("fp16", "fp16:nonfinite=skip", "fp16"),
        ({"type": "2bit"}, "2bit:threshold=0.5,nonfinite=skip", "exact"),
        ({"type": "2bit", "threshold": 0.25}, "2bit:threshold=0.25,nonfinite=skip", "exact"),
        ("2bit:threshold=0.25,reply=2bit", "2bit:threshold=0.25,nonfinite=skip", "2bit"),
        ({"type": "2bit", "lossless": True}, "2bit:threshold=0.5,nonfinite=skip,lossless=on", "exact"),
        ("2bit:lossless=off", "2bit:threshold=0.5,nonfinite=skip", "exact"),
        (
            {"type": "2bit", "reply": "fp32", "nonfinite": "mxnet"},
            "2bit:threshold=0.5,nonfinite=mxnet",
            "fp32",
        ),
        ({"type": "int8:block=64"}, "int8:block=64,nonfinite=skip", "int8"),
        ({"type": "int8:block=64", "reply": "fp32"}, "int8:block=64,nonfinite=skip", "fp32"),
    ],
)
def test_what_users_write_becomes_one_spec(written: Any, spec: str, reply: str) -> None:
    parsed = Compression.parse(written)
    assert (parsed.spec, parsed.reply) == (spec, reply)
    assert Compression.parse(str(parsed)) == parsed


def test_a_whole_spec_has_the_defaults_of_a_front_end() -> None:
    defaults = {"2bit": {"threshold": "auto"}}
    for wanted in ("2bit:nonfinite=skip", {"type": "2bit:nonfinite=skip"}):
        assert Compression.parse(wanted, defaults=defaults).spec.startswith("2bit:threshold=auto")


@pytest.mark.parametrize(
    "given",
    [
        "2bit:threshold=1,threshold=2",
        "int8:reply=fp32,reply=int8",
        "2bit:type=int8",
        {"type": "2bit:threshold=1", "threshold": 2},
    ],
)
def test_what_is_said_twice(given: Any) -> None:
    with pytest.raises(ValueError, match="twice"):
        Compression.parse(given)


@pytest.mark.parametrize("given", [5, b"int8", ["int8"]])
def test_a_compression_that_is_neither_text_nor_mapping(given: Any) -> None:
    with pytest.raises(TypeError, match=r"is a .*, expected text such as"):
        Compression.parse(given)


def test_parameters_beside_those_of_a_spec() -> None:
    grad = np.array([0.3, -0.2], np.float32)
    made = compress.make("2bit:threshold=0.25", nonfinite="mxnet")
    assert_array_equal(
        made.encode(grad), compress.make("2bit", threshold=0.25, nonfinite="mxnet").encode(grad)
    )


@pytest.mark.parametrize("threshold", [0, -0.5, float("nan"), float("inf"), -float("inf"), 1e-60, "none", ""])
def test_a_threshold_out_of_range(threshold: Any) -> None:
    with pytest.raises(ValueError, match="threshold"):
        compress.make("2bit", threshold=threshold)


@pytest.mark.parametrize(
    ("name", "parameters", "reason"),
    [
        ("2bits", {}, "did you mean 2bit"),
        ("", {}, "no name"),
        ("2bit", {"treshold": 0.5}, "did you mean threshold"),
        ("2bit", {"nonfinite": "skp"}, "did you mean skip"),
        ("2bit", {"lossless": "onn"}, "did you mean on"),
        ("2bit", {"threshold": "auto", "nonfinite": "mxnet"}, "nonfinite"),
        ("none", {"threshold": 1.0}, "none"),
    ],
)
def test_a_codec_that_is_not_there(name: str, parameters: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compress.make(name, **parameters)


NOTHING = np.zeros(0, np.uint8)


@pytest.mark.parametrize("elements", [2**58 + 1, 2**62, 2**63, 2**64 - 1])
@pytest.mark.parametrize(
    "call",
    [
        lambda codec, n: codec.encode_reply([NOTHING], n, reply="fp32"),
        lambda codec, n: codec.encode_reply([NOTHING], n, reply=codec.name),
        lambda codec, n: codec.decode_reply(NOTHING, 1, n, reply="fp32"),
        lambda codec, n: codec.decode(NOTHING, n),
        lambda codec, n: codec.max_encoded_size(n),
        lambda codec, n: compress.ErrorFeedback(codec, n, residual="bf16"),
        lambda codec, n: compress.EF21(codec, n),
        lambda codec, n: compress.lossless_encode(NOTHING, n),
        lambda codec, n: compress.lossless_decode(NOTHING, n),
    ],
)
@pytest.mark.parametrize("name", compress.list())
def test_more_elements_than_sizes_can_count(name: str, call: Any, elements: int) -> None:
    """Their bytes wrapped to 0, so no payload at all passed for theirs, and memory beyond it was read."""
    with pytest.raises(ValueError, match=f"elements={elements} is more than any memory holds"):
        call(compress.make(name), elements)


# ------------------------------------------------------------------------------------- arrays of any kind


def of_numpy(array: Any) -> Any:
    return array


def of_torch(array: Any) -> Any:
    return torch.from_numpy(array)


@pytest.mark.parametrize("wrap", [of_numpy, of_torch, DlpackArray])
def test_arrays_of_any_framework_are_used_where_they_lie(wrap: Callable[[Any], Any]) -> None:
    grad = np.random.default_rng(1).normal(size=1001).astype(np.float32)
    for name in compress.list():
        codec = compress.make(name)
        expected_kept, kept, out = np.zeros_like(grad), np.zeros_like(grad), np.zeros_like(grad)
        room = np.zeros(codec.max_encoded_size(grad.size), np.uint8)
        payload = codec.encode(grad, residual=expected_kept if codec.lossy else None)
        length = codec.encode(wrap(grad), residual=wrap(kept) if codec.lossy else None, out=wrap(room))
        assert_array_equal(room[:length], payload)
        assert_array_equal(kept, expected_kept)
        assert_array_equal(codec.decode(wrap(payload), grad.size), codec.decode(payload, grad.size))
        codec.decode_sum([wrap(payload), payload], grad.size, out=wrap(out))
        assert_array_equal(out, codec.decode_sum([payload, payload], grad.size))
        reply = codec.encode_reply([wrap(payload)], grad.size, reply="fp32")
        sums, scales = codec.decode_reply(wrap(reply), 1, grad.size, reply="fp32")
        assert_array_equal(sums, codec.decode(payload, grad.size))
        if scales is not None:
            codec.encode(wrap(grad), residual=wrap(kept), scales=wrap(scales))


def test_an_array_is_let_go_of() -> None:
    codec = compress.make("fp16")
    array = DlpackArray(np.ones(100, np.float32))
    codec.encode(array)
    with pytest.raises(ValueError, match="residual has 100 elements"):
        codec.encode(np.ones(99, np.float32), residual=array)
    gc.collect()
    assert array.released == 2


def test_read_only_arrays_are_read() -> None:
    grad = np.ones(16, np.float32)
    grad.flags.writeable = False
    codec = compress.make("2bit")
    assert_array_equal(codec.decode(codec.encode(grad), 16), np.full(16, 0.5, np.float32))
    with pytest.raises(TypeError):
        codec.encode(np.ones(16, np.float32), residual=grad)


FLOATS = np.zeros(8, np.float32)
BYTES = np.zeros(64, np.uint8)


@pytest.mark.parametrize("wrap", [of_numpy, of_torch, DlpackArray])
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            lambda c, w: c.encode(w(FLOATS.astype(np.float64))),
            "encode: grad has dtype float64, expected float32",
        ),
        (lambda c, w: c.encode(w(FLOATS[::2])), "encode: grad is not contiguous"),
        (lambda c, w: c.encode(w(FLOATS.reshape(2, 4).T)), "encode: grad is not contiguous"),
        (lambda c, w: c.encode(FLOATS, residual=w(FLOATS.astype(np.int32))), "residual has dtype int32"),
        (
            lambda c, w: c.encode(FLOATS, residual=w(np.zeros(16, np.float32)[::2])),
            "residual is not contiguous",
        ),
        (lambda c, w: c.encode(FLOATS, out=w(FLOATS)), "out has dtype float32, expected uint8"),
        (lambda c, w: c.encode(FLOATS, scales=w(BYTES)), "scales has dtype uint8, expected float32"),
        (lambda c, w: c.decode(w(FLOATS), 8), "a payload has dtype float32, expected uint8"),
        (lambda c, w: c.decode(BYTES[:4], 8, out=w(BYTES)), "decode: out has dtype uint8"),
        (lambda c, w: c.decode_sum([BYTES[:4], w(BYTES[::2])], 8), "decode_sum: a payload is not contiguous"),
        (
            lambda c, w: c.decode_sum([BYTES[:4]], 8, out=w(FLOATS.astype(np.float64))),
            "out has dtype float64",
        ),
        (lambda c, w: c.encode_reply([w(FLOATS)], 8, reply="fp32"), "encode_reply: a payload has dtype"),
        (lambda c, w: c.decode_reply(w(FLOATS), 1, 8, reply="fp32"), "decode_reply: the payload has dtype"),
    ],
)
def test_arrays_that_the_codec_cannot_use(call: Any, reason: str, wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        call(compress.make("2bit"), wrap)


def test_arrays_on_a_device_are_refused() -> None:
    codec = compress.make("2bit")
    with pytest.raises(ValueError, match=r"grad lies on a device .* expected the host's memory"):
        codec.encode(DlpackArray(FLOATS, CUDA))
    with pytest.raises(ValueError, match="out lies on a device"):
        codec.decode(BYTES[:4], 8, out=DlpackArray(FLOATS.copy(), CUDA))


def test_encoding_lets_other_threads_run() -> None:
    codec, grad = compress.make("2bit"), np.ones(1_000_000, np.float32)
    began, seen = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: began.wait(300) and seen.set())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # another thread runs only when this one gives up the GIL
    try:
        thread.start()
        began.set()
        for _ in range(1000):
            codec.encode(grad)
            if seen.is_set():
                break
        assert seen.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_arrays_of_a_wrong_size_are_refused() -> None:
    codec = compress.make("2bit")
    with pytest.raises(ValueError, match="residual"):
        codec.encode(np.zeros(4, np.float32), residual=np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="no element"):
        codec.encode(np.zeros(0, np.float32))
    with pytest.raises(ValueError, match="no payload"):
        codec.decode_sum([], 4)
