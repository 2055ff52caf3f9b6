"""What codecs cost on this machine: each is timed where the job runs, for some hundredths of a second.

What messages cost is taken from the calibration that comes with gradwire: it is little beside the link's latency, which
is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradwire import compress
from gradwire.controller.plan import CANDIDATES
from gradwire.plan import calibration
from gradwire.plan.calibration import Calibration, CodecSpeed

_PIECE = 262_144  # elements: a partition
_PIECES = 8  # each of other memory, or caches would hold what gradients are never found in
_FEW, _MANY = 2, 8  # payloads in the sums, whose times give what each payload adds
_REPEATS = 3  # of which the quickest counts: what delays one is not the codec

Floats = NDArray[np.float32]


def measure() -> Calibration:
    """Times every codec of CANDIDATES on one thread."""
    pieces = np.random.default_rng(0).standard_normal((_PIECES, _PIECE), dtype=np.float32)
    names = dict.fromkeys(candidate.partition(":")[0] for candidate in CANDIDATES)
    return replace(
        calibration.load(),
        made_by="measured in this job",
        codecs=tuple(_speed(name, pieces) for name in names),
    )


def _speed(name: str, pieces: Floats) -> CodecSpeed:
    codec = compress.make(name)
    residuals = np.zeros_like(pieces)
    payloads = [codec.encode(piece) for piece in pieces]

    def encode_with_residual(i: int) -> None:
        codec.encode(pieces[i], residual=residuals[i] if codec.lossy else None)

    def sum_of(count: int) -> float:
        return _seconds(
            lambda i: codec.decode_sum([payloads[(i + k) % _PIECES] for k in range(count)], _PIECE)
        )

    few, many = sum_of(_FEW), sum_of(_MANY)
    each = max(0.0, (many - few) / (_MANY - _FEW))
    return CodecSpeed(
        codec=name,
        bits=8 * payloads[0].size / _PIECE,
        encode_seconds=_seconds(lambda i: codec.encode(pieces[i])),
        encode_with_residual_seconds=_seconds(encode_with_residual),
        decode_seconds=_seconds(lambda i: codec.decode(payloads[i], _PIECE)),
        sum_seconds=max(0.0, few - _FEW * each),
        sum_seconds_per_worker=each,
    )


def _seconds(work: Callable[[int], object]) -> float:
    """Of an element. work: of the piece with this number."""
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        for piece in range(_PIECES):
            work(piece)
        times.append(time.perf_counter() - began)
    return min(times) / (_PIECES * _PIECE)
