"""A coarse bound of a step's time: what the compute needs, or what the busiest link needs.

gradwire.plan.simulation.bound is a higher one, which also counts when a layer's gradient can leave and is needed again.

Threading: values and pure functions.
"""

from __future__ import annotations

from gradwire.plan.simulation import PAYLOAD_SHARE
from gradwire.settings.units import parse_rate

from replay.rows import LOOPBACK, Row

BOUND = "max(compute, bytes / rate)"


def link_bytes(row: Row, pushed: float, replied: float) -> float:
    """Returns the payload bytes that the busiest link carries in one direction in a step.

    pushed, replied: encoded bytes of one worker's gradient and of the reply to it.
    """
    if row.placement == "servers":
        return max(pushed, replied) * max(1.0, row.workers / row.servers)
    return (row.workers - 1) / row.workers * (pushed + replied)  # a server beside every worker, or peers


def link_seconds(row: Row, pushed: float, replied: float) -> float:
    """Returns the time that the busiest link needs; 0 where links are not shaped."""
    if row.bandwidth == LOOPBACK:
        return 0.0
    return link_bytes(row, pushed, replied) * 8 / (PAYLOAD_SHARE * parse_rate(row.bandwidth))


def coarse_step_seconds(row: Row, compute_seconds: float, pushed: float, replied: float) -> float:
    """Returns max(compute, bytes / rate), the bound that records name BOUND: no schedule is faster, and one that may
    send a layer's gradient only once there is one may need longer."""
    return max(compute_seconds, link_seconds(row, pushed, replied))
