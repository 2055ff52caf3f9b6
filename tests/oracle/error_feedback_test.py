"""The built ErrorFeedback against the papers' algorithms in NumPy, around every codec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gradwire import DecodeError, compress
from numpy.testing import assert_array_equal
from oracle import block
from oracle import error_feedback as oracle

SIZE = 3001
SPECS = ["fp16", "bf16", "2bit:threshold=0.3", "int8", "int4", "fp8", "1bit", "topk:ratio=0.05"]
STEPS = 6


def gradient(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.4, SIZE).astype(np.float32)


def compressor(codec: compress.Codec) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: codec.decode(codec.encode(x), x.size)


def int8(values: np.ndarray) -> np.ndarray:
    """Rounded to int8 with a scale per 64 elements."""
    return block.decode(block.encode(values, np.zeros_like(values), "int8", 64), values.size, "int8", 64)


ROUNDED = {"fp32": np.copy, "bf16": oracle.bf16, "int8": int8}


@pytest.mark.parametrize("residual", ROUNDED)
@pytest.mark.parametrize("spec", SPECS)
def test_plain_is_ef_sgd(spec: str, residual: str) -> None:
    codec = compress.make(spec)
    feedback = compress.ErrorFeedback(codec, SIZE, residual=residual)
    error = np.zeros(SIZE, np.float32)
    for step in range(STEPS):
        sent, error = oracle.ef_sgd(compressor(codec), gradient(step), error)
        error = ROUNDED[residual](error)
        assert_array_equal(codec.decode(feedback.encode(gradient(step)), SIZE), sent)
        assert_array_equal(feedback.residual, error)
    assert feedback.velocity is None


@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_momentum_is_that_of_deep_gradient_compression(spec: str, nesterov: bool, masking: bool) -> None:
    codec = compress.make(spec)
    feedback = compress.ErrorFeedback(
        codec, SIZE, momentum=0.9, nesterov=nesterov, factor_masking=masking, can_roll_back=True
    )
    u, v = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
    for step in range(STEPS):
        feedback.encode(gradient(100 + step))  # a step that is vetoed
        feedback.roll_back()
        sent, u, v = oracle.momentum_correction(
            compressor(codec), gradient(step), u, v, 0.9, nesterov=nesterov, masking=masking
        )
        assert_array_equal(codec.decode(feedback.encode(gradient(step)), SIZE), sent)
        assert_array_equal(feedback.residual, v)
        assert_array_equal(feedback.velocity, u)


def test_momentum_without_loss_is_torchs_sgd() -> None:
    torch = pytest.importorskip("torch")
    codec = compress.make("none")
    for nesterov in (False, True):
        weight = torch.zeros(SIZE, requires_grad=True)
        sgd = torch.optim.SGD([weight], lr=1.0, momentum=0.9, nesterov=nesterov)
        feedback = compress.ErrorFeedback(codec, SIZE, momentum=0.9, nesterov=nesterov)
        own = np.zeros(SIZE, np.float32)
        for step in range(STEPS):
            weight.grad = torch.from_numpy(gradient(step))
            sgd.step()
            own -= codec.decode(feedback.encode(gradient(step)), SIZE)
        np.testing.assert_allclose(own, weight.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("residual", "most_lost"), [("fp32", 1e-5), ("bf16", 0.05), ("int8", 0.05)])
def test_what_is_kept_stays_bounded_and_what_is_sent_adds_up(residual: str, most_lost: float) -> None:
    """Karimireddy et al., lemma 3: |e| <= 2 sqrt(1 - delta) / delta * max |g|, delta the least share_sent."""
    codec = compress.make("topk:ratio=0.1")
    feedback = compress.ErrorFeedback(codec, SIZE, residual=residual)
    given, sent = np.zeros(SIZE), np.zeros(SIZE)
    largest, least_share = 0.0, 1.0
    for step in range(200):
        grad = gradient(step)
        payload = feedback.encode(grad)
        metrics = feedback.measure(payload)
        assert metrics.residual_norm == pytest.approx(np.linalg.norm(feedback.residual))
        assert metrics.sent_elements == 301
        given += grad
        sent += codec.decode(payload, SIZE)
        largest, least_share = max(largest, float(np.linalg.norm(grad))), min(least_share, metrics.share_sent)
    bound = 2 * np.sqrt(1 - least_share) / least_share * largest
    assert float(np.linalg.norm(feedback.residual)) < bound
    lost = float(np.linalg.norm(given - sent - feedback.residual)) / float(np.linalg.norm(given))
    assert lost < most_lost


def test_a_saved_state_goes_on_elsewhere() -> None:
    codec = compress.make("2bit")
    feedback = compress.ErrorFeedback(codec, SIZE, momentum=0.5)
    feedback.encode(gradient(1))
    state = feedback.save()
    other = compress.ErrorFeedback(codec, SIZE, momentum=0.5)
    other.load(state)
    assert_array_equal(other.encode(gradient(2)), feedback.encode(gradient(2)))
    other.reset()
    assert not other.residual.any()
    with pytest.raises(DecodeError, match="without momentum"):
        compress.ErrorFeedback(codec, SIZE).load(state)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"residual": "bf61"}, "did you mean bf16"),
        ({"momentum": 1.0}, "outside"),
        ({"nesterov": True}, "without momentum"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compress.ErrorFeedback(compress.make("2bit"), SIZE, **options)


def test_arrays_of_another_size_are_refused() -> None:
    feedback = compress.ErrorFeedback(compress.make("2bit"), 8)
    with pytest.raises(ValueError, match="9 elements, expected 8"):
        feedback.encode(np.zeros(9, np.float32))
    with pytest.raises(RuntimeError, match="can_roll_back"):
        feedback.roll_back()
    with pytest.raises(DecodeError):
        feedback.measure(np.zeros(3, np.uint8))
