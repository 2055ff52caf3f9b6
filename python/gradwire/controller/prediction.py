"""How long a step would take under a plan: the simulator of `gradwire plan`, on the job's own layers and link."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradwire import _core
from gradwire.controller.plan import Plan, Tensor
from gradwire.plan import simulation
from gradwire.plan.calibration import Calibration
from gradwire.plan.layer_profile import Layer, Profile
from gradwire.plan.simulation import PAYLOAD_SHARE, ElementCost, Network, Placement, Schedule, Variant
from gradwire.stores.placement import Link

if TYPE_CHECKING:
    from gradwire.settings.definitions import Settings


def network_of(placement: Placement, workers: int, servers: int, link: Link) -> Network:
    """Describes a measured link, which gave payload, as the simulator's, which gives what is on the wire."""
    bandwidth = 8 * link.bytes_per_second / PAYLOAD_SHARE
    return Network(placement, workers, servers, bandwidth, link.latency)


def schedule_of(settings: Settings, *, per_layer: bool, threads: int) -> Schedule:
    """How this job sends, by its settings. threads: codec threads of a worker, if the settings do not say."""
    return Schedule(
        partition_bytes=settings.partition_bytes,
        credit_bytes=settings.credit_bytes,
        fusion_bytes=settings.fusion_bytes,
        shard_bound=settings.bigarray_bound,
        per_layer=per_layer,
        codec_threads=settings.codec_threads or threads,
        server_threads=settings.server_threads or threads,
    )


@dataclass(frozen=True)
class Job:
    """What is predicted. layers: one for each tensor, in order of their places."""

    tensors: tuple[Tensor, ...]
    layers: tuple[Layer, ...]
    network: Network
    schedule: Schedule
    calibration: Calibration

    def step_seconds(self, plan: Plan) -> float:
        """Seconds of a step under a plan.

        The simulator knows one codec. Where a plan mixes several, it is told of the one that most elements have, and
        tensors of another are as many elements longer or shorter as their payloads are; time and replies of codecs
        are the plan's in all, spread over that evenly. For a plan of one codec this is the simulator's own answer.

        Raises:
            ValueError: numbers that no job has.
        """
        codecs = self._codec_of_layer(plan)
        elements: Counter[str] = Counter()
        for layer, codec in zip(self.layers, codecs, strict=True):
            elements[codec] += layer.elements
        costs = {codec: self._cost(codec) for codec in elements}
        most = elements.most_common(1)[0][0]
        scaled = [
            _scaled(layer, costs[codec].push / costs[most].push)
            for layer, codec in zip(self.layers, codecs, strict=True)
        ]
        total = sum(layer.elements for layer in scaled)
        shares = [(costs[codec], count / total) for codec, count in elements.items()]
        mean = ElementCost(
            *(sum(cost[i] * share for cost, share in shares) for i in range(len(shares[0][0])))
        )
        mixed = _core.CodecCosts(*mean._replace(push=costs[most].push))
        profile = Profile("this job", "measured", 1, 1.0, tuple(scaled))
        setup = simulation.setup(profile, self.network, mixed, self.schedule, self.calibration)
        return _core.simulate(setup).step_seconds

    def _codec_of_layer(self, plan: Plan) -> list[str]:
        order = sorted(range(len(self.tensors)), key=lambda index: self.tensors[index].place)
        return [plan.codecs[index] for index in order]

    def _cost(self, codec: str) -> ElementCost:
        return Variant.parse(codec).element_cost(
            self.network.workers, self.calibration, self.network.placement
        )


def _scaled(layer: Layer, factor: float) -> Layer:
    return layer if factor == 1 else replace(layer, elements=max(1, round(layer.elements * factor)))
