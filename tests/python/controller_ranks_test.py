"""The controller on real ranks, which are threads of this process: they decide alike, and take back what loses.

Steps take what a clock of the test's own says, so that nothing here depends on how busy the machine is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import gradwire as gw
import numpy as np
import pytest
from gradwire.controller import Budget, Controller, Instruments, Options, Pace, Plan, Tensor, accuracy
from gradwire.plan import calibration
from gradwire.plan.simulation import Schedule
from gradwire.stores.placement import Link
from python.inproc_ranks import run_ranks

WORKERS = 3
PACE = Pace(sampled=4, settling=1, block=3, link_every=5, review_every=1000)
SLOW, FAST = Link(1e6, 1e-4), Link(1e12, 1e-7)  # bytes a second
TENSORS = [Tensor("front", 400_000, 0), Tensor("norm", 50, 1, free=False), Tensor("back", 900_000, 2)]
Cost = Callable[[Plan], float]


@dataclass
class Rank:
    """What one rank did."""

    plans: list[Plan] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def events(self) -> list[str]:
        return [decision["event"] for decision in self.decisions]


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(
    cost: Cost, link: Callable[[int], Link], steps: int, budget: str = "30% error", pace: Pace = PACE
) -> list[Rank]:
    """Runs a job in which a step takes cost(plan) seconds, and the link is link(step) when it is measured."""
    ranks = [Rank() for _ in range(WORKERS)]

    def body(store: gw.kv.KVStore) -> None:
        own, clock = ranks[store.rank], Clock()
        # Ranks find slightly different links; rank 0's counts.
        instruments = Instruments(
            clock,
            lambda _: Link(link(len(own.plans)).bytes_per_second * (1 + store.rank / 50), 1e-4),
            calibration.load,
        )
        options = Options(Budget.parse(budget), Schedule(), "peers", pace=pace, instruments=instruments)
        controller = Controller(store, options)
        controller.add(TENSORS)
        random = np.random.default_rng(store.rank)
        for _ in range(steps):
            own.plans.append(controller.plan)
            clock.now += 0.5 * cost(controller.plan) * (1 + store.rank / 100)
            for index in (2, 1, 0):
                count = sum(end - begin for begin, end in controller.ready(index))
                if count:
                    controller.put(index, random.standard_normal(count, dtype=np.float32))
                clock.now += 0.001
            clock.now += 0.5 * cost(controller.plan) * (1 + store.rank / 100)
            controller.advance()
        own.decisions = store.stats()["decisions"]

    run_ranks(WORKERS, body)
    for rank in ranks[1:]:  # in every test: ranks that differ would wait for each other for ever
        assert rank.plans == ranks[0].plans
        assert rank.decisions == ranks[0].decisions
    return ranks


def faster_with_fewer_bits(plan: Plan) -> float:
    return {"none": 4.0, "fp16": 2.0, "int8": 1.0, "nf4": 0.5}[plan.codecs[2]]


def the_same(plan: Plan) -> float:
    return 1.0


def test_all_ranks_choose_what_the_slow_link_asks_for(capfd: pytest.CaptureFixture[str]) -> None:
    ranks = run(faster_with_fewer_bits, lambda _: SLOW, steps=40)
    assert ranks[0].plans[0] == Plan(("nf4", "none", "nf4"))
    assert ranks[0].plans[-1] == Plan(("nf4", "none", "nf4"))
    assert ranks[0].events == ["chosen", "kept"]
    assert ranks[0].plans.count(Plan(("fp16", "none", "fp16"))) == PACE.block  # it had its turn
    assert Plan(("none", "none", "none")) not in ranks[0].plans  # known to be far slower
    said = capfd.readouterr().err
    assert said.count("compression auto, step 4: a link of 1 MB/s") == 1  # rank 0 alone
    assert said.count(": kept: measured") == 1


def test_it_falls_back_to_none_where_compression_would_lose() -> None:
    ranks = run(the_same, lambda _: FAST, steps=40)
    assert ranks[0].plans[-1] == Plan(("none", "none", "none"))
    assert "compression would gain nothing; outside the budget: nf2" in ranks[0].decisions[0]["reason"]


def test_it_says_what_the_budget_left_out() -> None:
    reason = run(the_same, lambda _: SLOW, steps=8, budget="0.1 points")[0].decisions[0]["reason"]
    known = accuracy.load(None)  # run() names no optimizer
    left_out = ", ".join(f"{name} ({known[name].points_at_most:g} points)" for name in ("int8", "nf4", "nf2"))
    assert reason.endswith(f"; outside the budget: {left_out}")


def test_a_prediction_that_was_wrong_is_taken_back(capfd: pytest.CaptureFixture[str]) -> None:
    def slower_than_predicted(plan: Plan) -> float:
        return {"none": 1.0, "fp16": 1.2, "nf4": 1.5}[plan.codecs[2]]

    ranks = run(slower_than_predicted, lambda _: SLOW, steps=60)
    assert ranks[0].plans[-1] == Plan(("none", "none", "none"))
    assert ranks[0].events == ["chosen", "reverted"]
    assert "back to none: nf4 for 2 of 3 tensors" in capfd.readouterr().err
    measured = ranks[0].decisions[1]["measured_seconds"]
    assert measured["none"] < measured["fp16"] < measured["auto"]


def test_fp16_is_gone_back_to_where_that_is_the_better_baseline() -> None:
    ranks = run(lambda plan: 1.0 if "fp16" in plan.codecs else 1.4, lambda _: SLOW, steps=60)
    assert ranks[0].plans[-1] == Plan(("fp16", "none", "fp16"))
    assert ranks[0].events == ["chosen", "reverted"]


def test_a_link_that_changes_is_answered() -> None:
    def link(step: int) -> Link:
        return SLOW if step < 40 else FAST

    ranks = run(faster_with_fewer_bits, link, steps=70)
    assert ranks[0].events[:3] == ["chosen", "kept", "link"]
    assert "the link gives" in ranks[0].decisions[2]["reason"]
    assert ranks[0].events[3] == "chosen"
    assert ranks[0].decisions[3]["codecs"] == ("none", "none", "none")
    assert ranks[0].events[4:] == [
        "reverted"
    ]  # none has to prove itself too: by this clock fp16 is still faster


def test_what_has_won_is_looked_at_again_and_stays() -> None:
    pace = replace(PACE, review_every=5)
    ranks = run(faster_with_fewer_bits, lambda _: SLOW, steps=40, pace=pace)
    assert ranks[0].events[:4] == ["chosen", "kept", "chosen", "chosen"]
    assert set(ranks[0].plans[20:]) == {Plan(("nf4", "none", "nf4"))}


def test_looks_at_the_link_are_rare_where_they_take_long() -> None:
    """A look takes two steps here, and may take half of the time: one in four steps, then."""
    looks: list[int] = []

    def body(store: gw.kv.KVStore) -> None:
        clock = Clock()

        def link(_: Any) -> Link:
            looks.append(step)
            clock.now += 2.0
            return SLOW

        pace = replace(PACE, link_every=1, overhead=0.5)
        options = Options(
            Budget("error", 0.0),
            Schedule(),
            "peers",
            pace=pace,
            instruments=Instruments(clock, link, calibration.load),
        )
        controller = Controller(store, options)
        controller.add(TENSORS)
        for step in range(30):  # noqa: B007 (link() looks at it)
            clock.now += 1.0
            controller.advance()

    run_ranks(1, body)
    assert looks == [3, 10, 14, 18, 22, 26]  # when it chooses; a block of 3 steps after that, then every 4


def test_what_has_lost_gets_no_other_trial_on_the_same_link() -> None:
    pace = replace(PACE, review_every=5)
    ranks = run(lambda plan: 1.0 if "fp16" in plan.codecs else 1.4, lambda _: SLOW, steps=80, pace=pace)
    assert ranks[0].events.count("reverted") == 1
    assert ranks[0].events.count("chosen") > 2
    assert ranks[0].plans[-1] == Plan(("fp16", "none", "fp16"))


def test_a_small_change_of_the_link_is_none() -> None:
    ranks = run(faster_with_fewer_bits, lambda step: Link(1e6 * (1 + 0.15 * (step % 2)), 1e-4), steps=60)
    assert ranks[0].events == ["chosen", "kept"]


def test_a_budget_without_room_compresses_nothing() -> None:
    ranks = run(faster_with_fewer_bits, lambda _: SLOW, steps=20, budget="0.0001% error")
    assert set(ranks[0].plans) == {Plan(("none", "none", "none"))}
    assert ranks[0].events == ["chosen"]


def controller_of(store: gw.kv.KVStore) -> Controller:
    instruments = Instruments(Clock(), lambda _: SLOW, calibration.load)
    options = Options(Budget("error", 0.3), Schedule(), "peers", pace=PACE, instruments=instruments)
    controller = Controller(store, options)
    controller.add(TENSORS)
    return controller


CHOSEN = {
    "step": 77,
    "budget": "30% error",
    "is_proven": True,
    "codecs": {"front": "int8", "norm": "none", "back": "nf4"},
}


def test_what_was_chosen_goes_on_after_a_checkpoint() -> None:
    def body(store: gw.kv.KVStore) -> None:
        controller = controller_of(store)
        assert controller.load(CHOSEN) == Plan(("int8", "none", "nf4"))
        for _ in range(3):  # and gradients are not sampled
            assert controller.ready(0) == ()
            assert controller.advance() == Plan(("int8", "none", "nf4"))
        assert controller.state() == CHOSEN | {"step": 80}

    run_ranks(2, body)


@pytest.mark.parametrize(
    "change",
    [
        {"is_proven": False},
        {"budget": "1 points"},
        {"codecs": {"front": "int8", "back": "nf4"}},
        {"codecs": {"front": "3bit", "norm": "none", "back": "nf4"}},
    ],
)
def test_a_checkpoint_of_something_else_has_all_chosen_anew(change: dict[str, Any]) -> None:
    def body(store: gw.kv.KVStore) -> None:
        controller = controller_of(store)
        saved = controller.state()
        assert not saved["is_proven"]
        assert controller.load(CHOSEN | change) == Plan(("nf4", "none", "nf4"))
        assert controller.ready(0)
        assert controller.state() == saved | {"step": 77}

    run_ranks(2, body)
