"""The trial of compression="auto": what is kept of what was measured, in how many rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from gradwire.controller.trial import Trial

LOSSES = {"none": 0, "fp16": 1, "auto": 3}
ALIKE = dict.fromkeys(LOSSES, 1.0)


def outcome(times: Mapping[str, float], noise: float = 0.0, losses: Mapping[str, int] = LOSSES) -> Trial:
    """Runs a trial in which arms take these seconds, times a noise of a share that differs from block to block."""
    trial = Trial("auto" if "auto" in losses else "none", losses, ALIKE)
    random = np.random.default_rng(1)
    while order := trial.next_round():
        trial.add({arm: times[arm] * (1 + noise * random.standard_normal()) for arm in order})
    return trial


def test_what_wins_is_kept() -> None:
    assert outcome({"none": 1.3, "fp16": 1.1, "auto": 1.0}, noise=0.01).best() == "auto"


def test_what_loses_goes_back_to_the_better_baseline() -> None:
    assert outcome({"none": 1.0, "fp16": 1.2, "auto": 1.1}, noise=0.01).best() == "none"
    assert outcome({"none": 1.2, "fp16": 1.0, "auto": 1.1}, noise=0.01).best() == "fp16"


def test_what_gains_nothing_is_not_worth_its_loss() -> None:
    assert outcome({"none": 1.0, "fp16": 1.0, "auto": 0.998}).best() == "none"


@pytest.mark.parametrize(("chosen", "lossier"), [("auto", "auto"), ("none", "fp16")])
def test_a_gain_that_may_be_luck_is_not_worth_its_loss(chosen: str, lossier: str) -> None:
    """2 % in the mean of seven rounds that differ by 10 %."""
    trial = Trial(chosen, {"none": 0, lossier: LOSSES[lossier]}, ALIKE)
    for swing in (-0.1, 0.1, -0.1, 0.1, -0.1, 0.1, 0.0):
        assert trial.next_round()
        trial.add({"none": 1.0, lossier: 0.98 + swing})
    assert trial.next_round() == []
    assert trial.best() == "none"


def test_none_is_taken_back_where_fp16_is_faster() -> None:
    losses = {"none": 0, "fp16": 1}
    assert outcome({"none": 1.0, "fp16": 0.9}, noise=0.01, losses=losses).best() == "fp16"
    assert outcome({"none": 1.0, "fp16": 0.995}, noise=0.001, losses=losses).best() == "none"


def test_a_baseline_that_is_far_slower_gets_no_more_steps() -> None:
    trial = Trial("auto", LOSSES, ALIKE)
    assert sorted(trial.next_round()) == ["auto", "fp16", "none"]
    trial.add({"none": 5.0, "fp16": 1.3, "auto": 1.0})
    assert sorted(trial.next_round()) == ["auto", "fp16"]
    trial.add({"fp16": 1.3, "auto": 1.0})
    assert trial.next_round() == []
    assert trial.best() == "auto"
    assert trial.seconds() == {"none": 5.0, "fp16": 1.3, "auto": 1.0}


def test_a_baseline_that_is_known_to_be_far_slower_gets_no_step() -> None:
    trial = Trial("auto", LOSSES, {"none": 8.0, "fp16": 4.0, "auto": 1.0})
    assert sorted(trial.next_round()) == ["auto", "fp16"]
    trial.add({"fp16": 4.1, "auto": 1.1})
    assert trial.next_round() == []
    assert trial.best() == "auto"
    assert trial.seconds() == {"fp16": 4.1, "auto": 1.1}


@pytest.mark.parametrize("measured", [{"fp16": 4.0, "auto": 5.0}, {"fp16": 0.9, "auto": 1.0}])
def test_a_prediction_that_was_wrong_spares_no_baseline(measured: dict[str, float]) -> None:
    """Of the chosen plan, which takes five times as long; of fp16, which is four times as fast, and none with it."""
    trial = Trial("auto", LOSSES, {"none": 8.0, "fp16": 4.0, "auto": 1.0})
    trial.add(measured)
    assert sorted(trial.next_round()) == ["auto", "fp16", "none"]
    while order := trial.next_round():
        trial.add({arm: {**measured, "none": 0.5}[arm] for arm in order})
    assert trial.best() == "none"


def test_baselines_without_a_round_in_common_are_compared_too() -> None:
    trial = Trial("auto", LOSSES, {"none": 8.0, "fp16": 4.0, "auto": 1.0})
    trial.add({"fp16": 10.0, "auto": 5.0})
    assert sorted(trial.next_round()) == ["auto", "none"]
    while order := trial.next_round():
        trial.add({arm: {"auto": 5.0, "none": 4.0}[arm] for arm in order})
    assert trial.best() == "none"


def test_arms_take_turns() -> None:
    trial = Trial("auto", LOSSES, ALIKE)
    firsts = []
    while order := trial.next_round():
        firsts.append(order[0])
        trial.add(dict.fromkeys(order, 1.0))
    assert set(firsts[:3]) == {"none", "fp16", "auto"}


def test_noise_is_answered_by_more_rounds_and_never_by_endless_ones() -> None:
    rounds = []
    for noise in (0.001, 0.3):
        trial = Trial("auto", LOSSES, ALIKE)
        random = np.random.default_rng(3)
        count = 0
        while order := trial.next_round():
            times = {"none": 1.1, "fp16": 1.05, "auto": 1.0}
            trial.add({arm: times[arm] * float(np.exp(noise * random.standard_normal())) for arm in order})
            count += 1
        rounds.append(count)
    assert rounds[0] == 3
    assert 3 < rounds[1] <= 7
