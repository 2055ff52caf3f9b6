"""What a worker does in `gradwire bench ps` and `allreduce`, whatever the system: rounds, clocks, and the check of
every result.

Only NumPy and the standard library: a peer's worker runs this in the peer's own environment.

The worker of each rank checks its share of the elements against what NumPy expects, and names a digest of every
share; equal digests on all ranks then vouch for all elements on all ranks.

Threading: one thread. Rank 0 tells the bench where it is in lines that begin with MARKER; results are left in the
task's folder, since a launcher that forwards output may mix long lines of several ranks.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

MARKER = "@bench "
_UNIT_ELEMENTS = 65_536  # shares hold whole codec units


def gradient(rank: int, elements: int) -> Any:
    """Returns rank's gradient, float32, uniform in (-0.6, 0.6): a threshold of 0.5 sends some elements at once."""
    values = np.random.default_rng(rank).random(elements, dtype=np.float32)
    values *= np.float32(1.2)
    values -= np.float32(0.6)
    return values


def shares(elements: int, ranks: int, unit: int = _UNIT_ELEMENTS) -> list[slice]:
    """Cuts the elements into one run of whole units per rank; some are empty if there are few units."""
    units = -(-elements // unit)
    ends = [min(elements, units * rank // ranks * unit) for rank in range(ranks + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


class Expectation(Protocol):
    """Knows what a share of every round's sum must be."""

    def next_round(self) -> Any:
        """Returns the share of the next round's sum."""
        ...


class PlainSum:
    """Uncompressed: the float32 sum in rank order, the same in every round."""

    def __init__(self, grads: list[Any]) -> None:
        self._total = grads[0].copy()
        for grad in grads[1:]:
            self._total += grad

    def next_round(self) -> Any:
        return self._total


class TwoBitSum:
    """MXNet's 2-bit rule, written from its description: r += g; r >= T sends +T, r <= -T sends -T, and r loses it.

    requantised: the sum is sent as 2 bits as well, by the same rule with the level N*T and the threshold N*T/2,
    and a residual of its own.
    """

    def __init__(self, grads: list[Any], threshold: float, requantised: bool) -> None:
        self._grads = grads
        self._threshold = np.float32(threshold)
        self._residuals = [np.zeros_like(grad) for grad in grads]
        self._reply_residual = np.zeros_like(grads[0]) if requantised else None

    def next_round(self) -> Any:
        counts = np.zeros(self._grads[0].size, dtype=np.int16)
        for grad, residual in zip(self._grads, self._residuals, strict=True):
            residual += grad
            counts += _take(residual, self._threshold, self._threshold)
        total = counts.astype(np.float32) * self._threshold
        if self._reply_residual is None:
            return total
        level = np.float32(len(self._grads)) * self._threshold
        self._reply_residual += total
        return _take(self._reply_residual, level / np.float32(2), level).astype(np.float32) * level


def _take(residual: Any, threshold: Any, level: Any) -> Any:
    """Takes level from what reaches the threshold, in place. Returns the codes: -1, 0 or 1."""
    codes = (residual >= threshold).astype(np.int16) - (residual <= -threshold).astype(np.int16)
    residual -= codes.astype(np.float32) * level
    return codes


@dataclass(frozen=True)
class Task:
    """What the bench asks of a worker.

    codec, reply and store are gradwire's words; a peer reads codec in its own way. threshold: of a 2bit codec with
    MXNet's rule, else None. tensors: into how many of equal length the elements are cut. folder: where results
    are left and the bench answers marks.
    """

    elements: int
    ranks: int
    warm_up: int
    rounds: int
    codec: str
    threshold: float | None
    reply: str
    store: str
    tensors: int
    folder: str

    @classmethod
    def parse(cls, text: str) -> Task:
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(asdict(self))

    @property
    def tensor_elements(self) -> int:
        return self.elements // self.tensors

    def shares(self) -> list[slice]:
        """What each rank checks: whole codec units, or whole tensors where there are several."""
        return shares(self.elements, self.ranks, self.tensor_elements if self.tensors > 1 else _UNIT_ELEMENTS)

    def share(self, rank: int) -> slice:
        return self.shares()[rank]

    def share_of_grads(self, rank: int) -> list[Any]:
        """Every rank's gradient, cut to what this rank checks."""
        share = self.share(rank)
        return [gradient(other, self.elements)[share].copy() for other in range(self.ranks)]

    def cut(self, values: Any) -> list[Any]:
        """Returns views of the tensors in values, the array of all elements."""
        length = self.tensor_elements
        return [values[at : at + length] for at in range(0, self.elements, length)]

    def known_expectation(self, rank: int) -> Expectation | None:
        """Returns NumPy's expectation, or None for a codec whose rule is not written down here."""
        if self.codec == "none":
            return PlainSum(self.share_of_grads(rank))
        if self.threshold is not None:
            return TwoBitSum(self.share_of_grads(rank), self.threshold, requantised=self.reply == "2bit")
        return None


@dataclass(frozen=True)
class Actions:
    """How a system does one round. Only exchange is timed.

    prepare: puts the gradient in place; exchange: from the gradient to the sum; result: the sum as an array;
    sent_bytes: counts what went through this worker's sockets, None where the system does not tell.
    """

    barrier: Callable[[], None]
    prepare: Callable[[], object]
    exchange: Callable[[], object]
    result: Callable[[], Any]
    sent_bytes: Callable[[], int] | None = None


Accepts = Callable[[Any], bool]
"""Tells whether the sum of the next round, all elements, is right."""


def matches(expectation: Expectation, share: slice, tolerance: float = 0.0) -> Accepts:
    """Compares share with what is expected: bit for bit, or within tolerance, relative and absolute."""

    def accepts(total: Any) -> bool:
        given, expected = total[share], expectation.next_round()
        if tolerance:
            return bool(np.allclose(given, expected, rtol=tolerance, atol=tolerance))
        return bool(np.array_equal(given, expected))

    return accepts


def run(task: Task, rank: int, actions: Actions, accepts: Accepts) -> None:
    """Does all rounds and leaves their record. Rank 0 marks where the timed ones begin and end.

    CPU time counts until all ranks are done, since a rank may still be working for others when it has its sum.
    """
    cuts = task.shares()
    rows = []
    kept = 0  # of the memory that rounds have taken
    for index in range(task.warm_up + task.rounds):
        if index == task.warm_up and rank == 0:
            _mark("begin", task.folder)
        actions.prepare()
        sent = actions.sent_bytes() if actions.sent_bytes else 0
        actions.barrier()
        memory = ResidentMemory()
        busy, cpu, begin = machine_seconds(), time.process_time(), time.perf_counter()
        actions.exchange()
        seconds = time.perf_counter() - begin
        actions.barrier()
        row: dict[str, Any] = {
            "timed": index >= task.warm_up,
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu,
            "machine_seconds": machine_seconds() - busy,
            "memory_bytes": kept + memory.peak_bytes(),
            "sent_bytes": actions.sent_bytes() - sent if actions.sent_bytes else None,
        }
        kept += memory.kept_bytes()
        total = actions.result()
        row |= {"right": accepts(total), "digests": [zlib.crc32(total[cut]) for cut in cuts]}
        rows.append(row)
    actions.barrier()
    if rank == 0:
        _mark("end", task.folder)
    actions.barrier()  # nobody leaves before the servers' clocks were read
    draft = Path(task.folder, f"{rank}.draft")
    draft.write_text(json.dumps(rows))
    draft.rename(result_file(task.folder, rank))


def result_file(folder: str | Path, rank: int) -> Path:
    """Where rank leaves its rounds."""
    return Path(folder, f"rank-{rank}.json")


class ResidentMemory:
    """How much memory this process has taken since this was made, in pages that are there."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that from here on
        self._before = _status_bytes("VmRSS")

    def peak_bytes(self) -> int:
        return _status_bytes("VmHWM") - self._before

    def kept_bytes(self) -> int:
        """What it has still."""
        return _status_bytes("VmRSS") - self._before


def _status_bytes(name: str) -> int:
    """A line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def machine_seconds() -> float:
    """CPU seconds of this machine so far, the kernel's own included, in ticks (1/100 s); whoever caused them."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = Path("/proc/stat").read_text().split(None, 8)[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def _mark(name: str, folder: str) -> None:
    """Tells the bench where we are and waits until it has read its counters."""
    sys.stdout.write(f"{MARKER}{json.dumps({'mark': name})}\n")
    sys.stdout.flush()
    while not Path(folder, name).exists():
        time.sleep(0.001)
