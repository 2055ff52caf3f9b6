"""What came of a row's job: one record for each mode, checked against what had to go over the links.

Threading: pure functions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Protocol

from gradwire.plan.simulation import HEADER_BYTES

from replay import bound, costs, systems
from replay.cpu import Load
from replay.plan import Plan, ReplayFailed, why_refused, why_void
from replay.rows import ROUND_BYTES

_ROUND_FIELDS = (
    *("round_seconds", "round_all_seconds", "round_cpu_share"),
    *("round_bound_seconds", "published_round_seconds"),
)


class Meter(Protocol):
    """What was used while a job ran: of cores; of workers' links, bytes, None where they have none."""

    def cpu(self, what: str) -> Load: ...
    def link_bytes(self, what: str) -> float | None: ...


def of_row(
    plan: Plan, measured: costs.Costs, meter: Meter, ranks: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns one record for each mode. ranks: what each worker left.

    Raises: ReplayFailed: bytes were not what they had to be.
    """
    by_mode = {blocks[0]["mode"]: blocks for blocks in zip(*(rank["blocks"] for rank in ranks), strict=True)}
    overhead = None
    if alone := by_mode.pop("alone", None):
        overhead = _mean_step(alone) / plan.profile.compute_seconds - 1
    shared = {"overhead": overhead} | _rounds(plan, measured, meter, ranks)
    return [_record(plan, measured, meter, mode, blocks, shared) for mode, blocks in by_mode.items()]


def _mean_step(blocks: Sequence[dict[str, Any]]) -> float:
    """Mean over steps of the slowest rank's."""
    return statistics.fmean(_slowest(blocks)[blocks[0]["warm_up"] :])


def _slowest(blocks: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds of every step, of its slowest rank."""
    return [max(values) for values in zip(*(block["steps"] for block in blocks), strict=True)]


def _record(
    plan: Plan,
    measured: costs.Costs,
    meter: Meter,
    mode: str,
    blocks: Sequence[dict[str, Any]],
    shared: dict[str, Any],
) -> dict[str, Any]:
    """shared: what all modes of a row have in common, its rounds."""
    row, compute, elements = plan.row, plan.profile.compute_seconds, plan.profile.elements
    step, load = _mean_step(blocks), meter.cpu(mode)
    refused = why_refused(load, plan.cpu_limit, row.polls) or why_void(plan, shared["round_seconds"])
    least = bound.coarse_step_seconds(
        row, compute, elements * measured.push_bytes, elements * measured.reply_bytes
    )
    return {
        "row": row.name,
        "system": row.system,
        "codec": row.codec,
        "placement": row.placement,
        "workers": row.workers,
        "servers": row.servers,
        "bandwidth": row.bandwidth,
        "model": plan.profile.name,
        "scale": plan.scale.factor,
        "partition_bytes": plan.scale.partition_bytes,
        "credit_bytes": plan.scale.credit_bytes,
        "in_order": plan.in_order,
        "changes": list(plan.changes),
        "environment": systems.settings_of(row, plan.scale),
        "overlap_step": mode == "overlap",
        "efficiency": None if refused else compute / step,
        "published_efficiency": row.published_efficiency,
        "bound": compute / least,
        "bound_is": bound.BOUND,
        "step_seconds": None if refused else step,
        "compute_seconds": compute,
        "bound_seconds": least,
        "steps": plan.steps,
        "warm_up": blocks[0]["warm_up"],
        "seconds": _slowest(blocks),
        "waited_seconds": _waited(plan, blocks),
        "codec_seconds": _codec_seconds(plan, measured),
        "cpu_share": load.mean,
        "busiest_core": load.core,
        "busiest_process": load.process,
        "busiest_process_name": load.process_name,
        "refused": refused,
        **_bytes(plan, meter, mode, blocks),
        **shared,
    }


def _waited(plan: Plan, blocks: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds of a step in which a worker stood still for a layer's sum; mean over workers and timed steps."""
    by_layer = zip(*(block["waited"] for block in blocks), strict=True)
    names = [layer.name for layer in plan.profile.layers]
    return {
        name: round(statistics.fmean(of) / plan.steps, 6) for name, of in zip(names, by_layer, strict=True)
    }


def _codec_seconds(plan: Plan, measured: costs.Costs) -> float | None:
    """Seconds of one step that are slept for the codec; None where nothing is slept, for peers."""
    if plan.row.system != "gradwire":
        return None
    return measured.seconds_per_step(plan.profile.elements, plan.row.owners)


def expected_bytes(plan: Plan) -> int:
    """Returns what all workers' sockets send in one step: gradwire's payloads and frame headers, else the floats."""
    row = plan.row
    if row.system == "gradwire":
        layers = len(plan.profile.layers)
        keys = [key for key in plan.cut.all_keys() if key.tensors[0] < layers]
        sizes = [piece.elements for key in keys for piece in key.pieces]
        payloads = costs.frame_payloads(plan.compression, row.workers, sizes)
        pushed, replied = (sum(part) + HEADER_BYTES * len(sizes) for part in payloads)
    else:
        pushed = replied = 4 * sum(plan.scale.elements(layer.elements) for layer in plan.profile.layers)
    if row.placement == "peers":
        return (row.workers - 1) * (pushed + replied)
    return row.workers * pushed


def _bytes(plan: Plan, meter: Meter, mode: str, blocks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the bytes of a step and worker: at sockets, on links, and as they have to be.

    Raises: ReplayFailed: fewer left the workers' hosts than must have, so that something by-passed the links; or
        gradwire's own counters say otherwise.
    """
    row, steps = plan.row, len(blocks[0]["steps"])
    expected = expected_bytes(plan) / row.workers
    sent = None
    if blocks[0]["sent_bytes"] is not None:
        sent = sum(block["sent_bytes"] for block in blocks) / row.workers / steps
        if not math.isclose(sent, expected, rel_tol=0.02, abs_tol=4096):
            raise ReplayFailed(
                f"replay: {row.name}: a worker sent {sent:.0f} bytes a step, expected {expected:.0f}"
            )
    links = meter.link_bytes(mode)
    left = None if links is None else links / row.workers / steps
    must_leave = expected * ((row.workers - 1) / row.workers if row.placement == "shared" else 1)
    if left is not None and left < 0.98 * must_leave:
        raise ReplayFailed(
            f"replay: {row.name}: {left:.0f} bytes a step left a worker's host, expected {must_leave:.0f} at least"
        )
    return {"sent_bytes": sent, "expected_bytes": expected, "link_bytes": left}


def _rounds(
    plan: Plan, measured: costs.Costs, meter: Meter, ranks: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """What the 400 MB came to, in every record of the row."""
    if not plan.rounds:
        return dict.fromkeys(_ROUND_FIELDS)
    load = meter.cpu("rounds")
    refused = why_refused(load, plan.cpu_limit, plan.row.polls)
    taken = [max(values) for values in zip(*(rank["rounds"] for rank in ranks), strict=True)]
    elements = ROUND_BYTES / 4
    return {
        "round_seconds": None if refused else statistics.median(taken),
        "round_all_seconds": taken,
        "round_cpu_share": load.mean,
        "round_bound_seconds": bound.link_seconds(
            plan.row, elements * measured.push_bytes, elements * measured.reply_bytes
        ),
        "published_round_seconds": plan.row.published_round_seconds,
    }
