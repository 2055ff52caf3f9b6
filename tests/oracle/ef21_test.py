"""The built EF21 against the paper's algorithm in NumPy, and on functions where memory decides."""

from __future__ import annotations

import numpy as np
import pytest
from gradwire import DecodeError, compress
from numpy.testing import assert_array_equal
from oracle import error_feedback as oracle

SIZE = 3001
WORKERS = 3
A = np.array([[-3, 2, 2], [2, -3, 2], [2, 2, -3]], np.float32)
"""Beznosikov, Horvath, Richtarik and Safaryan 2020, "On biased compression for distributed learning", example 1."""


def gradient(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.4, SIZE).astype(np.float32)


@pytest.mark.parametrize(
    "spec", ["fp16", "2bit:threshold=0.3", "int4", "1bit", "topk:ratio=0.05", "terngrad"]
)
def test_it_is_the_papers_algorithm(spec: str) -> None:
    codec = compress.make(spec)
    feedbacks = [compress.EF21(codec, SIZE) for _ in range(WORKERS)]
    estimates = [np.zeros(SIZE, np.float32) for _ in range(WORKERS)]
    total = np.zeros(SIZE, np.float32)
    for step in range(6):
        payloads, all_sent = [], np.zeros(SIZE, np.float32)
        for rank, feedback in enumerate(feedbacks):
            grad, where = gradient(10 * step + rank), {"step": step, "rank": rank}
            payloads.append(feedback.encode(grad, **where))

            def send(change: np.ndarray, where: dict[str, int] = where) -> np.ndarray:
                return codec.decode(codec.encode(change, **where), SIZE)

            sent, estimates[rank] = oracle.ef21(send, grad, estimates[rank])
            all_sent = all_sent + sent
            assert_array_equal(feedback.estimate, estimates[rank])
        total = total + all_sent
        for feedback in feedbacks:
            feedback.add(codec.decode_sum(payloads, SIZE))
            assert_array_equal(feedback.sum, total)


def test_an_estimate_of_a_gradient_that_stays_comes_nearer_by_the_share_that_is_sent() -> None:
    feedback, grad, share = compress.EF21(compress.make("topk:ratio=0.1"), SIZE), gradient(1), 0.1
    for step in range(1, 60):
        feedback.encode(grad)
        left = float(np.linalg.norm(grad - feedback.estimate))
        assert left**2 <= (1 - share) ** step * float(np.linalg.norm(grad)) ** 2
    assert left == 0  # after ten rounds all was sent, and what is sent is exact


def gradients(x: np.ndarray) -> np.ndarray:
    """Of f_i(x) = <a_i, x>^2 + |x|^2 / 4, whose sum is least at 0."""
    return (2 * (A @ x)[:, None] * A + x / 2).astype(np.float32)


def test_it_converges_where_the_same_codec_without_memory_diverges() -> None:
    codec = compress.make("topk", ratio=0.3)  # one of three
    step = np.float32(0.0059)  # theorem 1's, for L = 17.2, L_i = 34.5, alpha = 1/3
    plain = remembering = np.ones(3, np.float32)
    feedbacks = [compress.EF21(codec, 3) for _ in range(WORKERS)]
    for _ in range(2000):
        if np.abs(plain).max() < 1e6:
            plain = plain - step / 3 * codec.decode_sum([codec.encode(g) for g in gradients(plain)], 3)
        payloads = [f.encode(g) for f, g in zip(feedbacks, gradients(remembering), strict=True)]
        for feedback in feedbacks:
            feedback.add(codec.decode_sum(payloads, 3))
        remembering = remembering - step / 3 * feedbacks[0].sum
    assert np.abs(plain).max() > 1e6
    assert np.abs(remembering).max() < 1e-5


def test_a_saved_state_goes_on_elsewhere_and_others_are_refused() -> None:
    codec = compress.make("topk:ratio=0.5")
    feedback, other = compress.EF21(codec, 2), compress.EF21(codec, 2)
    feedback.encode(np.array([3, 1], np.float32))
    feedback.add(np.array([3, 5], np.float32))
    state = feedback.save()
    assert bytes(state).hex() == "474532310000000002000000000000000000404000000000000040400000a040"
    other.load(state)
    assert other.estimate.tolist() == [3, 0]
    assert other.sum.tolist() == [3, 5]
    for at, what in (
        (16 + 4, "element 1 of the saved estimate is nan"),
        (16 + 8, "element 0 of the saved sum"),
    ):
        bad = state.copy()
        bad[at : at + 4] = np.array([np.nan], "<f4").view(np.uint8)
        with pytest.raises(DecodeError, match=what):
            other.load(bad)
    with pytest.raises(DecodeError, match="not one of 2 elements"):
        other.load(state[:-1])
    assert other.estimate.tolist() == [3, 0]
    assert other.sum.tolist() == [3, 5]
    other.reset()
    assert not other.estimate.any()
    assert not other.sum.any()


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="0 elements"):
        compress.EF21(compress.make("topk"), 0)
    with pytest.raises(ValueError, match="loses nothing"):
        compress.EF21(compress.make("none"), 5)
    feedback = compress.EF21(compress.make("topk"), 8)
    with pytest.raises(ValueError, match="the gradient has 9 elements, expected 8"):
        feedback.encode(np.zeros(9, np.float32))
    with pytest.raises(ValueError, match="the answer has 7 elements, expected 8"):
        feedback.add(np.zeros(7, np.float32))
    nan = np.array([np.nan, 1, 2, 3, 4, 5, 6, 7], np.float32)
    for _ in range(9):
        feedback.encode(nan)
    assert feedback.estimate.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
