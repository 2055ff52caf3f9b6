"""Rows of experiments/replay that take a moment: a profile of four layers, and what is asked of a row of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "experiments"))

from replay import costs, profiles, records, rows
from replay.cpu import Load
from replay.plan import Plan
from replay.scale import Scale

FREE = costs.Costs(0, 0, 0, 4, 4)
IDLE = Load(mean=0.1, core=0.1, process=0.1, process_name="python", window_seconds=1.0)


def tiny_profile() -> profiles.Profile:
    """The two front layers are small, and travel together."""
    layers = (
        profiles.Layer("front", 60, 0.01, 0.02),
        profiles.Layer("second", 500, 0.01, 0.02),
        profiles.Layer("middle", 300_000, 0.01, 0.02),
        profiles.Layer("back", 700_001, 0.01, 0.02),
    )
    return profiles.Profile("tiny", "made up", 1, 1 / 0.12, layers)


def tiny_plan(row: str, **changes: Any) -> Plan:
    plan = Plan(rows.parse(row), tiny_profile(), Scale(10), steps=3, warm_up=0, rounds=0, cpu_limit=1.0)
    return replace(plan, **changes)


class Meter:
    def __init__(self, load: Load = IDLE, link: float | None = None, rounds: Load = IDLE) -> None:
        self._loads = {"rounds": rounds}
        self._load = load
        self._link = link

    def cpu(self, what: str) -> Load:
        return self._loads.get(what, self._load)

    def link_bytes(self, what: str) -> float | None:
        return self._link


def of_row(
    plan: Plan,
    meter: Meter,
    sent: float | None = None,
    step: float = 0.2,
    rounds: tuple[float, ...] = (),
) -> list[dict[str, Any]]:
    """Returns the records of a row of one mode, whose two timed steps took so long in the mean of its two workers."""
    block = {"mode": "overlap", "steps": [9.0, step - 0.1, step + 0.1], "sent_bytes": sent, "warm_up": 1}
    block["waited"] = [0.3] + [0.0] * (len(plan.profile.layers) - 2) + [0.6]
    worker = {"blocks": [block], "rounds": list(rounds)}
    return records.of_row(plan, FREE, meter, [worker, worker])
