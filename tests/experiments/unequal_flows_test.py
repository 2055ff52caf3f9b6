"""experiments/replay/unequal_flows.py: two models that know nothing of each other agree where flows are equal, and
unequal ones cost what they must."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gradwire.plan import layer_profile

sys.path.append(str(Path(__file__).resolve().parents[2] / "experiments"))

from replay import predict, rows, unequal_flows

VGG16 = layer_profile.find("vgg16")


@pytest.mark.parametrize(("servers", "drained"), [(1, False), (1, True), (2, False), (2, True)])
def test_with_equal_flows_it_says_what_the_simulator_says(servers: int, drained: bool) -> None:
    row = rows.parse(f"gradwire-none-8w{servers}s-10gbit")
    expected = predict.of(row, "drain" if drained else "overlap").efficiency
    found = unequal_flows.efficiency(VGG16, servers, "priority", spread=0, drained=drained, seeds=1)
    assert found == pytest.approx(expected, abs=0.01)


def test_unequal_flows_cost_something_and_priorities_save_something() -> None:
    def overlapped(order: str, spread: float) -> float:
        return unequal_flows.efficiency(VGG16, 1, order, spread, drained=False, seeds=1)

    assert overlapped("priority", 1.0) < overlapped("priority", 0.0) - 0.03
    assert overlapped("priority", 1.0) > overlapped("in order", 1.0) + 0.03


def test_the_same_seed_gives_the_same_figure() -> None:
    one, other = (unequal_flows.efficiency(VGG16, 2, "priority", 1.0, True, seeds=1) for _ in range(2))
    assert one == other
