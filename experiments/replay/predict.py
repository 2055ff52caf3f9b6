"""What the simulator expects of the rows, at full size: written down before any of them is replayed.

gradwire's rows by the same plan of a step and the same scheduler as the store's; those of the peers by their schedules
on the same wire, whose own work costs nothing, as nothing is slept for them in the replay.

Threading: pure functions, but for write().
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradwire import _core
from gradwire.plan import calibration, layer_profile, simulation
from gradwire.plan.layer_profile import Layer, Profile
from gradwire.plan.simulation import FREE, Network, Placement, Schedule, Variant
from gradwire.settings.units import parse_rate
from schedule_bound.run import LATENCY, WHOLE

from replay import bound
from replay.buckets import DDP_BYTES, buckets
from replay.rows import LOOPBACK, TABLE, Row

FILE = "predictions.json"
_PLACES: Mapping[str, Placement] = {"servers": "servers", "shared": "beside", "peers": "peers"}
# One tensor or bucket after the other, however small it is.
_ONE_BY_ONE = Schedule(whole=True, in_order=True, fusion_bytes=0, credit_bytes=1)
_SCHEDULES = {
    "gradwire": "its own plan and scheduler, calibrated costs",
    "mxnet": "whole tensors in the order of backward; wire alone",
    "openmpi": "a ring for each layer, one after the other; wire alone",
    "gloo": "a ring for each of DDP's buckets, one after the other; wire alone",
}


@dataclass(frozen=True)
class Prediction:
    """Of one row, steps taken in one way. bound: the coarse one of records; both are shares of one node's speed."""

    row: str
    overlap_step: bool
    efficiency: float
    bound: float
    schedule: str

    def record(self) -> dict[str, Any]:
        return dict(vars(self))


def of_rows(rows: Iterable[Row]) -> list[Prediction]:
    """Predicts every way in which each row takes steps; rows whose links are not shaped have none.

    Raises: ValueError: a model without a profile.
    """
    return [of(row, mode) for row in rows if row.bandwidth != LOOPBACK for mode in row.modes]


def of(row: Row, mode: str) -> Prediction:
    profile, costs = layer_profile.find(row.model), calibration.load()
    done = _simulated(row, profile, mode == "overlap")
    variant = Variant.parse(row.codec)
    cost = variant.element_cost(row.workers, costs, "servers")
    least = bound.coarse_step_seconds(
        row, profile.compute_seconds, profile.elements * cost.push, profile.elements * cost.reply
    )
    return Prediction(
        row=row.name,
        overlap_step=mode == "overlap",
        efficiency=done.compute_seconds / done.step_seconds,
        bound=profile.compute_seconds / least,
        schedule=_SCHEDULES[row.system],
    )


def _simulated(row: Row, profile: Profile, per_layer: bool) -> _core.Simulated:
    rate = float(parse_rate(row.bandwidth))
    network = Network(_PLACES[row.placement], row.workers, row.servers, rate, LATENCY)
    ring = Network("ring", row.workers, 1, rate, LATENCY)
    if row.system == "gradwire":
        schedule = Schedule(per_layer=per_layer)
        return simulation.predict(profile, network, Variant.parse(row.codec), schedule, calibration.load())
    if row.system == "mxnet":
        return _free(profile, network, replace(WHOLE, per_layer=per_layer))
    if row.system == "gloo":
        profile = bucketed(profile)
    return _free(profile, ring, replace(_ONE_BY_ONE, per_layer=per_layer))


def _free(profile: Profile, network: Network, schedule: Schedule) -> _core.Simulated:
    return _core.simulate(simulation.setup(profile, network, FREE, schedule))


def bucketed(profile: Profile) -> Profile:
    """Makes each of DDP's buckets one layer, which is ready when the last of its own is."""
    sizes = [layer.elements for layer in profile.layers]
    _, members = buckets(sizes, [size // 4 for size in DDP_BYTES])
    layers = [
        Layer(
            f"bucket {number}",
            sum(profile.layers[layer].elements for layer in bucket),
            sum(profile.layers[layer].forward_seconds for layer in bucket),
            sum(profile.layers[layer].backward_seconds for layer in bucket),
        )
        for number, bucket in enumerate(members)
    ]
    return replace(profile, layers=tuple(reversed(layers)))  # the first bucket holds the last layers


def write(folder: Path, predictions: Sequence[Prediction]) -> None:
    """Raises: ValueError: something was replayed already, and what is said now is no prediction."""
    if (folder / "results.json").exists():
        raise ValueError(
            f"replay: {folder / 'results.json'} is there, and predictions are made before it: give another --folder"
        )
    written = {
        "calibration": "python/gradwire/plan/calibration.json",
        "calibration_sha256": calibration_sha256(),
        "latency_seconds": LATENCY,
        "rows": [one.record() for one in predictions],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def calibration_sha256() -> str:
    """Returns the hash of the shipped costs as far as the table's rows use them: a codec that none has is left out."""
    costs = json.loads((importlib.resources.files("gradwire.plan") / "calibration.json").read_bytes())
    used = {Variant.parse(row.codec).codec for row in TABLE}
    costs["codecs"] = [cost for cost in costs["codecs"] if cost["codec"] in used]
    return hashlib.sha256(json.dumps(costs, sort_keys=True).encode()).hexdigest()


def read(folder: Path) -> dict[tuple[str, bool], float]:
    """Returns the efficiencies that were predicted, by row and overlap_step; empty: none were."""
    file = folder / FILE
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    return {(row["row"], row["overlap_step"]): row["efficiency"] for row in rows}
