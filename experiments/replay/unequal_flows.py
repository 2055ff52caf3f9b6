"""What does it cost that flows of TCP do not share a full link equally? A model of workers that are not alike.

    python experiments/replay/unequal_flows.py        prints README.md's table (two minutes)

Nothing of gradwire's is in it. Time goes in 2000 ticks for a step's compute. Each of 8 workers computes as a profile
says, and a gradient's pieces wait in the order of the front layers, or of readiness. What is on its way nothing
overtakes: of each worker as many bytes as its part of the queue before the link. The link into the servers is shared by
weights, drawn for each worker every 20 ms from a log-normal distribution. When all workers' piece is there, its sum
goes out to all, in the same order. S servers, each with a part of everything, are one with S times the rate.

Threading: one thread.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gradwire.plan import layer_profile
from gradwire.plan.layer_profile import Profile
from gradwire.plan.simulation import PAYLOAD_SHARE
from gradwire.settings.units import parse_rate

WORKERS = 8
PIECE_BYTES = 1 << 20
QUEUE_SECONDS = SHARE_SECONDS = 0.02
JITTER_SECONDS = 0.001  # of a backward's begin
SPREADS = (0.0, 0.5, 1.0)  # standard deviations of the logarithm of a flow's weight
ORDERS = ("priority", "in order")


def places(profile: Profile, order: str) -> list[int]:
    """Returns for each layer where its pieces stand among those that wait: the lowest goes first."""
    layers = range(len(profile.layers))
    return list(layers) if order == "priority" else [-layer for layer in layers]


@dataclass
class Worker:
    """is_summed: of each layer, whether its sum of the last step is here. under_way: pieces that nothing overtakes."""

    layers: int
    is_forward: bool = True
    layer: int = 0
    computed: float = 0.0  # seconds of that layer
    pause: float = 0.0
    weight: float = 1.0
    steps: int = 0
    waiting: list[tuple[int, int]] = field(default_factory=list)
    under_way: list[list[float]] = field(default_factory=list)  # piece, bytes left
    is_summed: list[bool] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)  # pieces of each layer

    def __post_init__(self) -> None:
        self.is_summed = [True] * self.layers
        self.arrived = [0] * self.layers


class Cluster:
    """Takes steps of training. drained: a forward pass waits for all sums, and not for each layer's own."""

    def __init__(
        self, profile: Profile, servers: int, order: str, spread: float, drained: bool, rate: float, seed: int
    ) -> None:
        self._random = random.Random(seed)
        self._layers = profile.layers
        self._places = places(profile, order)
        self._spread, self._drained = spread, drained
        self._rate = rate * servers
        self._tick = profile.compute_seconds / 2000
        sizes = [4.0 * layer.elements for layer in profile.layers]
        counts = [max(1, -(-int(size) // PIECE_BYTES)) for size in sizes]
        self._pieces = [
            (layer, sizes[layer] / count) for layer, count in enumerate(counts) for _ in range(count)
        ]
        self._count = counts
        self._workers = [Worker(len(counts)) for _ in range(WORKERS)]
        self._there = [0] * len(self._pieces)  # workers whose piece is at the servers
        self._sums: list[tuple[int, int]] = []
        self._leaving: list[float] | None = None  # the sum that goes out: piece, bytes left

    def step_seconds(self, steps: int = 5, warm_up: int = 3) -> float:
        """Returns the mean duration of a step of the first worker."""
        now = shares_end = 0.0
        ends: list[float] = []
        while len(ends) < warm_up + steps:
            if now >= shares_end:
                shares_end += SHARE_SECONDS
                for worker in self._workers:
                    worker.weight = self._random.lognormvariate(0, self._spread)
            for worker in self._workers:
                self._compute(worker)
            self._carry(self._rate * self._tick)
            self._answer(self._rate * self._tick)
            now += self._tick
            if self._workers[0].steps > len(ends):
                ends.append(now)
        return (ends[-1] - ends[warm_up - 1]) / steps

    def _compute(self, worker: Worker) -> None:
        left = self._tick
        while left > 0:
            if worker.pause > 0:
                spent = min(left, worker.pause)
                worker.pause -= spent
            elif worker.is_forward and not self._may_pass(worker):
                return
            else:
                layer = self._layers[worker.layer]
                needed = layer.forward_seconds if worker.is_forward else layer.backward_seconds
                spent = min(left, needed - worker.computed)
                worker.computed += spent
                if worker.computed >= needed - 1e-12:
                    self._go_on(worker)
            left -= spent

    def _may_pass(self, worker: Worker) -> bool:
        if self._drained and worker.layer == 0 and worker.computed == 0:
            return all(worker.is_summed)
        return worker.is_summed[worker.layer]

    def _go_on(self, worker: Worker) -> None:
        worker.computed = 0.0
        last = len(self._layers) - 1
        if worker.is_forward and worker.layer < last:
            worker.layer += 1
        elif worker.is_forward:
            worker.is_forward = False
            worker.is_summed = [False] * len(self._layers)
            worker.arrived = [0] * len(self._layers)
            worker.pause = abs(self._random.gauss(0, JITTER_SECONDS))
        else:
            place = self._places[worker.layer]
            for piece, (layer, _) in enumerate(self._pieces):
                if layer == worker.layer:
                    heapq.heappush(worker.waiting, (place, piece))
            if worker.layer > 0:
                worker.layer -= 1
            else:
                worker.is_forward = True
                worker.steps += 1

    def _carry(self, room: float) -> None:
        """Brings pieces to the servers: what flows without work do not use goes to the others."""
        window = QUEUE_SECONDS * self._rate / WORKERS
        for worker in self._workers:
            while worker.waiting and sum(size for _, size in worker.under_way) < window:
                piece = heapq.heappop(worker.waiting)[1]
                worker.under_way.append([piece, self._pieces[piece][1]])
        while room > 1 and (busy := [worker for worker in self._workers if worker.under_way]):
            total, used = sum(worker.weight for worker in busy), 0.0
            for worker in busy:
                used += self._send(worker, room * worker.weight / total)
            room -= used

    def _send(self, worker: Worker, room: float) -> float:
        used = 0.0
        while used < room and worker.under_way:
            head = worker.under_way[0]
            sent = min(room - used, head[1])
            head[1] -= sent
            used += sent
            if head[1] <= 1e-6:
                worker.under_way.pop(0)
                self._take(int(head[0]))
        return used

    def _take(self, piece: int) -> None:
        self._there[piece] += 1
        if self._there[piece] == WORKERS:
            self._there[piece] = 0
            heapq.heappush(self._sums, (self._places[self._pieces[piece][0]], piece))

    def _answer(self, room: float) -> None:
        while room > 0:
            if self._leaving is None:
                if not self._sums:
                    return
                piece = heapq.heappop(self._sums)[1]
                self._leaving = [piece, WORKERS * self._pieces[piece][1]]
            sent = min(room, self._leaving[1])
            self._leaving[1] -= sent
            room -= sent
            if self._leaving[1] <= 1e-6:
                layer = self._pieces[int(self._leaving[0])][0]
                self._leaving = None
                for worker in self._workers:
                    worker.arrived[layer] += 1
                    worker.is_summed[layer] = worker.arrived[layer] == self._count[layer]


def efficiency(profile: Profile, servers: int, order: str, spread: float, drained: bool, seeds: int) -> float:
    """Returns compute over the duration of a step at 10 Gbit, in the mean over seeds."""
    rate = parse_rate("10gbit") / 8 * PAYLOAD_SHARE

    def one(seed: int) -> float:
        cluster = Cluster(profile, servers, order, spread, drained, rate, seed)
        return profile.compute_seconds / cluster.step_seconds()

    return statistics.fmean(map(one, range(seeds)))


def table(models: Sequence[str], seeds: int, say: Callable[[str], None]) -> None:
    say(f"| model, servers | spread | {' | '.join(ORDERS)} |")
    say("|---" * (2 + len(ORDERS)) + "|")
    for model in models:
        profile = layer_profile.find(model)
        for servers in (1, 2):
            for spread in SPREADS:
                cells = [
                    " / ".join(
                        f"{100 * efficiency(profile, servers, order, spread, drained, seeds):.1f}"
                        for drained in (False, True)
                    )
                    for order in ORDERS
                ]
                say(f"| {model}, {servers} | {spread:g} | {' | '.join(cells)} |")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", choices=layer_profile.KNOWN, help="default: two")
    parser.add_argument("--seeds", type=int, default=3, help="in the mean over so many (default: 3)")
    given = parser.parse_args()
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds} was given, expected 1 or more")
    table(given.model or ["vgg16", "resnet50"], given.seeds, lambda line: print(line, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
