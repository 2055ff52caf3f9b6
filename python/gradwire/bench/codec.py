"""How fast codecs are, beside memcpy of the same floats in the same run. `gradwire bench codec`.

Every operation is called in pieces, as the engine calls it, by threads that each own a contiguous share. Operations
and memcpy take turns (A B A B ...), so what disturbs the machine disturbs both; medians are compared.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import _core, compress

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Call = Callable[[], Any]
Shares = list[list[Call]]  # per thread, its calls in order

MEMCPY_BYTES = 12  # an element read, its new place read to be owned, and written
_WAYS = 8


@dataclass(frozen=True)
class Plan:
    """What to measure. piece_elements 0: each thread's whole share in one call."""

    elements: int = 25_000_000
    piece_elements: int = 262_144
    threads: int = 1
    repeat: int = 7

    def __post_init__(self) -> None:
        unit = _core.UNIT_ELEMENTS
        if self.piece_elements % unit:
            given = f"--piece-elements {self.piece_elements}"
            raise ValueError(f"bench codec: {given} is not valid: expected 0, or a multiple of {unit}")
        for option, value in (
            ("elements", self.elements),
            ("threads", self.threads),
            ("repeat", self.repeat),
        ):
            if value < 1:
                raise ValueError(f"bench codec: --{option} {value} is not valid: expected 1 or more")
        if self.piece_elements < 0:
            raise ValueError(f"bench codec: --piece-elements {self.piece_elements} is negative")

    def shares(self) -> list[list[slice]]:
        """Cuts the elements into one run of whole codec units per thread, and each run into pieces."""
        unit = _core.UNIT_ELEMENTS
        units = -(-self.elements // unit)
        ends = [min(self.elements, units * t // self.threads * unit) for t in range(self.threads + 1)]
        return [self._pieces(begin, end) for begin, end in itertools.pairwise(ends)]

    def _pieces(self, begin: int, end: int) -> list[slice]:
        step = self.piece_elements or max(1, end - begin)
        return [slice(at, min(end, at + step)) for at in range(begin, end, step)]


@dataclass(frozen=True)
class Operation:
    """One thing that is timed. moved_bytes: what it must read and write, per element."""

    op: str
    residual: str
    ways: int
    moved_bytes: float
    calls: Shares


def gradient(seed: int, elements: int) -> Floats:
    """Uniform in (-0.6, 0.6): with a threshold of 0.5, 2bit sends part of it at once and the rest by and by."""
    values = np.random.default_rng(seed).random(elements, dtype=np.float32)
    values *= np.float32(1.2)
    values -= np.float32(0.6)
    return values


class Bench:
    """The buffers of one codec, all of them touched, and the operations on them."""

    def __init__(self, spec: str, plan: Plan) -> None:
        self.plan = plan
        self.spec = spec
        self.codec = compress.Compression.parse(spec)
        self._codec = compress.make(self.codec.spec)
        self._shares = plan.shares()
        self._pieces = [piece for share in self._shares for piece in share]
        self.grad = gradient(0, plan.elements)
        self.out = np.zeros(plan.elements, dtype=np.float32)
        self._scales = {piece.start: self._agreed(piece) for piece in self._pieces}
        self.payloads = [
            self._encoded(self.grad if way == 0 else gradient(way, plan.elements)) for way in range(_WAYS)
        ]
        self.bits = 8 * sum(payload.size for payload in self.payloads[0].values()) / plan.elements

    def _agreed(self, piece: slice) -> Floats | None:
        """The scales that workers with this gradient would have agreed on in the round before."""
        if not self._codec.agrees_scales:
            return None
        grad = self.grad[piece]
        reply = self._codec.encode_reply([self._codec.encode(grad)], grad.size, reply=self.codec.reply)
        scales: Floats = self._codec.decode_reply(reply, 1, grad.size, reply=self.codec.reply)[1]
        return scales

    def _encoded(self, grad: Floats) -> dict[int, Bytes]:
        """Payloads of the pieces, by where each begins."""
        return {p.start: self._codec.encode(grad[p], scales=self._scales[p.start]) for p in self._pieces}

    def relative_error(self) -> float:
        """||decoded - grad|| / ||grad|| of one gradient, what a residual would bring later left out."""
        _run(self._each(self._decode))
        difference = sum(
            float(np.square(self.out[p] - self.grad[p], dtype=np.float64).sum()) for p in self._pieces
        )
        length = sum(float(np.square(self.grad[p], dtype=np.float64).sum()) for p in self._pieces)
        return float(np.sqrt(difference / length))

    def operations(self) -> list[Operation]:
        payload = self.bits / 8
        rows = [Operation("encode", "none", 1, 4 + payload, self._each(self._encoder(None)))]
        if self._codec.lossy:
            residual = np.zeros(self.plan.elements, dtype=np.float32)
            rows.append(Operation("encode", "fp32", 1, 12 + payload, self._each(self._encoder(residual))))
            rows.append(Operation("encode", "bf16", 1, 8 + payload, self._each(self._encode_bf16)))
        rows.append(Operation("decode", "none", 1, 4 + payload, self._each(self._decode)))
        for ways in (2, _WAYS):
            moved = 4 + ways * payload
            rows.append(Operation("decode_sum", "none", ways, moved, self._each(partial(self._sum, ways))))
        # As a server that keeps no payloads: the first is decoded into place, each later one aside and then added.
        moved = 4 + _WAYS * payload + (_WAYS - 1) * 8
        return [*rows, Operation("add", "none", _WAYS, moved, self._separate_adds())]

    def memcpy(self) -> Shares:
        return self._each(lambda piece: [partial(_core.copy, self.out[piece], self.grad[piece])])

    def _each(self, calls_of: Callable[[slice], list[Call]]) -> Shares:
        return [[call for piece in share for call in calls_of(piece)] for share in self._shares]

    def _encoder(self, residual: Floats | None) -> Callable[[slice], list[Call]]:
        sizes = {p.start: self._codec.max_encoded_size(p.stop - p.start) for p in self._pieces}
        outs = {start: np.zeros(size, dtype=np.uint8) for start, size in sizes.items()}

        def calls_of(piece: slice) -> list[Call]:
            kept = None if residual is None else residual[piece]
            scales = self._scales[piece.start]
            encode = partial(self._codec.encode, self.grad[piece], residual=kept, scales=scales)
            return [partial(encode, out=outs[piece.start])]

        return calls_of

    def _encode_bf16(self, piece: slice) -> list[Call]:
        feedback = compress.ErrorFeedback(self._codec, piece.stop - piece.start, residual="bf16")
        return [partial(feedback.encode, self.grad[piece], scales=self._scales[piece.start])]

    def _decode(self, piece: slice) -> list[Call]:
        payload = self.payloads[0][piece.start]
        return [partial(self._codec.decode, payload, piece.stop - piece.start, out=self.out[piece])]

    def _sum(self, ways: int, piece: slice) -> list[Call]:
        payloads = [payload[piece.start] for payload in self.payloads[:ways]]
        return [partial(self._codec.decode_sum, payloads, piece.stop - piece.start, out=self.out[piece])]

    def _separate_adds(self) -> Shares:
        shares: Shares = []
        for share in self._shares:
            scratch = np.zeros(max((p.stop - p.start for p in share), default=0), dtype=np.float32)
            calls = [call for piece in share for call in self._decode(piece)]
            for payload in self.payloads[1:]:
                for piece in share:
                    size = piece.stop - piece.start
                    part = scratch[:size]
                    calls.append(partial(self._codec.decode, payload[piece.start], size, out=part))
                    calls.append(partial(np.add, self.out[piece], part, self.out[piece]))
            shares.append(calls)
        return shares


def _run_share(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _run(shares: Shares) -> None:
    for calls in shares:
        _run_share(calls)


def _seconds(shares: Shares, pool: ThreadPoolExecutor | None) -> float:
    begin = time.perf_counter()
    if pool is None:
        _run(shares)
    else:
        for done in [pool.submit(_run_share, calls) for calls in shares]:
            done.result()
    return time.perf_counter() - begin


def _timed(
    plan: Plan, memcpy: Shares, rows: Sequence[Operation]
) -> tuple[list[list[float]], list[list[float]]]:
    """Returns the seconds of every row and of the memcpy before it, repeat times; the first pass is a warm-up."""
    taken: list[list[float]] = [[] for _ in rows]
    copied: list[list[float]] = [[] for _ in rows]
    with ThreadPoolExecutor(plan.threads) as threads:
        pool = threads if plan.threads > 1 else None
        for turn in range(plan.repeat + 1):
            for index, row in enumerate(rows):
                pair = (_seconds(memcpy, pool), _seconds(row.calls, pool))
                if turn > 0:
                    copied[index].append(pair[0])
                    taken[index].append(pair[1])
    return taken, copied


def measure(spec: str, plan: Plan) -> list[dict[str, Any]]:
    """Measures one codec. Returns one record per operation; the fields are those of the JSON record.

    Raises: ValueError: an unknown codec or parameter.
    """
    bench = Bench(spec, plan)
    rows = bench.operations()
    error = bench.relative_error()
    taken, copied = _timed(plan, bench.memcpy(), rows)
    medians = [statistics.median(seconds) for seconds in taken]
    adds = medians[-1]
    records = []
    for row, seconds, copies in zip(rows, medians, copied, strict=True):
        memcpy = statistics.median(copies)
        records.append(
            {
                "codec": spec,
                "op": row.op,
                "elements": plan.elements,
                "piece_elements": plan.piece_elements,
                "residual": row.residual,
                "ways": row.ways,
                "threads": plan.threads,
                "elements_per_second": plan.elements / seconds,
                "memcpy_elements_per_second": plan.elements / memcpy,
                "ratio_to_memcpy": memcpy / seconds,
                "memory_limit_ratio": MEMCPY_BYTES / row.moved_bytes,
                "ratio_to_separate_adds": adds / seconds if row.ways == _WAYS else None,
                "bits_per_element": bench.bits,
                "relative_error": error,
                "repeat": plan.repeat,
            }
        )
    return records
