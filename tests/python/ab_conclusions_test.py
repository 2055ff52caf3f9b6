"""What `gradwire ab` says: the target that all arms reach, headline, advice, and how many seeds would decide."""

from __future__ import annotations

import math
import statistics

import pytest
from gradwire.ab import conclusions
from gradwire.ab.experiment import Run, RunFailed
from gradwire.ab.names import link_name
from gradwire.ab.summary import Outcome, summarise
from gradwire.ab.target import accuracy_below, common_target, loss_above, seconds_to
from gradwire.report.paired_statistics import Interval, mean_interval, seeds_to_decide
from gradwire.result import RunResult


def run(arm: str, seed: int, per_epoch: list[float], *, took: float = 20.0, metric: str = "accuracy") -> Run:
    """A run whose epochs take equal times."""
    ends = tuple(took * (index + 1) / len(per_epoch) for index in range(len(per_epoch)))
    bytes_per_step = 1e6 if arm == "none" else 1e5
    record = RunResult(
        metric,  # type: ignore[arg-type]
        tuple(per_epoch),
        ends,
        images_per_second=1000 / took,
        bytes_per_step=bytes_per_step,
        steps=50,
    )
    return Run(arm, seed, record, 99.0)


def outcome(
    *runs: Run | RunFailed, arms: tuple[str, ...] = ("none", "2bit"), target: float | None = None
) -> Outcome:
    return summarise(runs, arms, target, "100mbit")


def finals(arm: str, *values: float, took: float = 20.0, metric: str = "accuracy") -> list[Run]:
    """A run per seed, which begins at half of its final accuracy or twice its final loss."""
    factor = 0.5 if metric == "accuracy" else 2.0
    return [
        run(arm, seed, [factor * value, value], took=took, metric=metric) for seed, value in enumerate(values)
    ]


# The target


def test_the_target_is_the_lowest_final_accuracy_rounded_down() -> None:
    found = outcome(*finals("none", 0.7568, 0.7621), *finals("2bit", 0.7602, 0.7512))
    assert found.target == 0.75
    assert found.target_reason == (
        "the lowest final accuracy of any run, 75.12 %, rounded down (set by 2bit, seed 1)"
    )
    assert all(arm.seconds_to_target is not None for arm in found.arms)


def test_the_target_of_a_loss_is_the_highest_rounded_up() -> None:
    found = outcome(*finals("none", 2.1761, metric="loss"), *finals("2bit", 2.3815, metric="loss"))
    assert found.target == 2.39
    assert (
        found.target_reason == "the highest final loss of any run, 2.3815, rounded up (set by 2bit, seed 0)"
    )
    assert all(arm.seconds_to_target is not None for arm in found.arms)


def test_arms_that_are_worse_or_diverged_do_not_set_the_target() -> None:
    base = finals("none", 0.80, 0.81, 0.82)
    worse = finals("topk", 0.60, 0.61, 0.62)
    diverged = [run("1bit", seed, [0.5, math.nan]) for seed in range(3)]
    found = outcome(
        *base, *finals("2bit", 0.79, 0.81, 0.83), *worse, *diverged, arms=("none", "2bit", "topk", "1bit")
    )
    assert found.target == 0.79
    assert found.target_reason.endswith("(set by 2bit, seed 0; without topk, 1bit)")
    assert found.arms[2].seconds_to_target is None
    assert "topk did not reach 79 % in every run." in found.verdict


def test_a_target_that_is_given_overrides() -> None:
    found = outcome(*finals("none", 0.80), *finals("2bit", 0.79), target=0.795)
    assert (found.target, found.target_reason) == (0.795, "given by --target")
    assert found.arms[1].seconds_to_target is None
    assert found.headline == (
        "No compression was at 79.5 % after 20 s; 2bit did not reach it in every run; "
        "final accuracies 80.0 and 79.0 %."
    )


@pytest.mark.parametrize(
    ("given", "rounded"),
    [
        (0.7431, 0.74),
        (0.57, 0.57),
        (0.9999, 0.9999),
        (0.9537, 0.953),
        (0.99678, 0.9967),
        (1.0, 1.0),
        (0.0, 0.0),
        (0.034, 0.034),
        (0.0345, 0.034),
    ],
)
def test_accuracies_are_rounded_down(given: float, rounded: float) -> None:
    assert accuracy_below(given) == pytest.approx(rounded, abs=1e-12)
    assert accuracy_below(given) <= given


@pytest.mark.parametrize(
    ("given", "rounded"),
    [(2.1761, 2.18), (0.04031, 0.0404), (123.4, 124), (1500.0, 1500), (-1.234, -1.23), (0, 0)],
)
def test_losses_are_rounded_up(given: float, rounded: float) -> None:
    assert loss_above(given) == pytest.approx(rounded)
    assert loss_above(given) >= given


def test_every_run_reaches_the_common_target() -> None:
    for step in range(1, 2000):
        last = run("none", 0, [0.0, step / 2001])
        assert seconds_to(last, common_target([last]).value or 0.0) is not None
        loss = run("none", 0, [9.0, step / 701], metric="loss")
        assert seconds_to(loss, common_target([loss]).value or 0.0) is not None


# The headline


def test_the_headline_compares_times_at_the_target() -> None:
    none = [run("none", seed, [0.60, 0.757], took=30) for seed in range(2)]
    two_bit = [run("2bit", seed, [0.60, 0.762], took=6) for seed in range(2)]
    found = outcome(*none, *two_bit)
    assert found.target == 0.75
    assert found.headline == (
        "2bit was at 75 % after 5.8 s, no compression after 29 s: 5.1 times sooner; final accuracies 76.2 and 75.7 %."
    )
    assert found.record()["headline"] == found.headline
    assert found.record()["arms"][1]["times_sooner"] == pytest.approx(5.077, abs=0.001)


def test_the_headline_is_of_the_soonest_arm() -> None:
    runs = [*finals("none", 0.8, took=30), *finals("2bit", 0.8, took=6), *finals("1bit", 0.8, took=5)]
    assert outcome(*runs, arms=("none", "2bit", "1bit")).headline.startswith(
        "1bit was at 80 % after 5.0 s, no comp"
    )


def test_the_headline_where_compression_is_slower() -> None:
    found = outcome(*finals("none", 0.8, took=5), *finals("2bit", 0.8, took=8))
    assert found.headline == (
        "No compression was at 80 % after 5.0 s, 2bit after 8.0 s: 1.6 times later; final accuracies 80.0 and 80.0 %."
    )
    assert found.conclusions[0] == (
        "Do not compress this job on a link of 100 Mbit/s: no other arm reached 80 % sooner."
    )


def test_the_headline_of_a_loss() -> None:
    found = outcome(
        *finals("none", 2.17, took=30, metric="loss"),
        *finals("int8", 2.18, took=10, metric="loss"),
        arms=("none", "int8"),
    )
    assert found.headline == (
        "int8 was at loss 2.18 after 10 s, no compression after 30 s: 3.0 times sooner; final losses 2.18 and 2.17."
    )


def test_the_headline_where_the_first_arm_failed() -> None:
    failed = RunFailed("none", 0, "worker 1 ended", 9)
    found = outcome(failed, *finals("2bit", 0.8, took=6))
    assert found.headline == (
        "2bit was at 80 % after 6.0 s; no compression failed in 1 of 1 runs (none, seed 0: worker 1 ended)."
    )
    assert found.conclusions[0].startswith(
        "There is nothing to compare with: no compression failed in 1 of 1 runs"
    )


def test_the_headline_before_and_without_a_finite_run() -> None:
    assert outcome().headline == "No run has ended."
    assert outcome(run("none", 0, [math.nan], metric="loss")).headline.startswith(
        "No arm has a run that ended well"
    )


@pytest.mark.parametrize("arms", [("none",), ("none", "2bit"), ("2bit", "none", "1bit")])
@pytest.mark.parametrize("count", range(1, 4))
def test_every_part_of_an_experiment_has_a_verdict(arms: tuple[str, ...], count: int) -> None:
    """The page is written after each run."""
    every = [run(arm, seed, [0.7, 0.8]) for seed in range(2) for arm in arms][:count]
    found = summarise(every, arms, None, "unshaped", 2 * len(arms))
    assert found.verdict.startswith(f"After {len(every)} of ") or len(every) == 2 * len(arms)
    assert "None" not in found.verdict


# What is concluded


def verdict(first: list[float], second: list[float], metric: str = "accuracy") -> str:
    return outcome(
        *finals("none", *first, metric=metric), *finals("2bit", *second, took=5, metric=metric)
    ).verdict


def test_verdicts() -> None:
    same = verdict([0.900, 0.910, 0.905], [0.901, 0.910, 0.904])
    assert same == (
        "2bit was at 90 % after 5.0 s, no compression after 20 s: 4.0 times sooner; final accuracies 90.5 and "
        "90.5 %. Use 2bit for this job on a link of 100 Mbit/s: it is sooner, and no loss of accuracy that matters "
        "was seen. "
        "2bit reached 90 % 4.0 times sooner than no compression [3.99, 4.01]. Its final accuracy differs by "
        "+0.00 [-0.25, +0.25] points: no difference seen. It sends 10 times fewer bytes. "
        "(3 seeds; brackets: 95 % intervals of the paired differences; link: 100 Mbit/s.)"
    )
    assert "points: worse." in verdict([0.90, 0.91, 0.92], [0.88, 0.89, 0.90])
    assert "points: better." in verdict([0.88, 0.89, 0.90], [0.90, 0.91, 0.92])
    # -5.67 +- 1.43: it is worse, though by how much is not known.
    assert "points: worse." in verdict([0.90, 0.91, 0.92], [0.84, 0.85, 0.87])
    assert ": worse." in verdict([1.0, 1.01, 0.99], [1.1, 1.11, 1.09], "loss")


def test_a_difference_that_is_certain_can_be_too_little_to_matter() -> None:
    """Of a codec that loses a tenth of a point enough seeds always show that it loses."""
    said = verdict([0.7660, 0.7591, 0.7726], [0.7651, 0.7583, 0.7715])
    assert "points: too little to matter." in said
    assert "Use 2bit for this job" in said
    assert "points: too little to matter." in verdict([0.7651, 0.7583, 0.7715], [0.7660, 0.7591, 0.7726])
    assert ": too little to matter." in verdict([2.400, 2.410, 2.405], [2.401, 2.411, 2.406], "loss")
    assert "points: worse." in verdict([0.7660, 0.7591, 0.7726], [0.7635, 0.7566, 0.7701])  # all by 0.25
    runs = [*finals("none", 0.766, 0.759), *finals("2bit", 0.765, 0.758, took=5)]
    assert outcome(*runs).target == 0.75  # such an arm is among those that set the target


def test_inconclusive_says_how_many_seeds_would_decide() -> None:
    said = verdict([0.76, 0.74], [0.77, 0.76])
    assert "inconclusive, the interval is wide: about " in said
    assert (
        "2bit is sooner on a link of 100 Mbit/s. Whether it ends at the same accuracy is still open (the"
        in said
    )
    assert "inconclusive, one seed has no spread: run 3 seeds or more" in verdict([0.9], [0.8])
    assert "more than 100 seeds would decide" in verdict([0.5, 0.9], [0.9, 0.5001])
    found = outcome(*finals("none", 0.76, 0.74), *finals("2bit", 0.77, 0.76))
    record = found.record()["arms"][1]
    assert f"about {record['seeds_needed']} seeds" in record["judgement"]


def test_seeds_that_change_nothing_count_as_one() -> None:
    said = verdict([0.9, 0.9, 0.9], [0.85, 0.85, 0.85])
    assert "differs by -5.00 points: inconclusive, one seed has no spread" in said
    assert "All seeds of no compression ended alike, so they count as one: have the script seed" in said
    assert "ended alike" not in verdict([0.9, 0.91], [0.85, 0.85])


def test_two_differences_that_are_alike_prove_little() -> None:
    alike = verdict([0.766, 0.760], [0.7605, 0.7545])
    assert (
        "points: inconclusive, two differences are alike by chance too easily: run 3 seeds or more." in alike
    )
    assert "points: worse." in verdict([0.766, 0.760], [0.744, 0.738])  # by 2.2 points


def test_unshaped_links_are_not_advised_on() -> None:
    runs = [*finals("none", 0.8, 0.81), *finals("2bit", 0.8, 0.81, took=5)]
    said = summarise(runs, ["none", "2bit"], None, "unshaped").conclusions
    assert said[0] == (
        "By their final accuracy, these can be used (no loss of accuracy that matters was seen): 2bit. "
        "No link was shaped, so times say nothing about a slow network: use --bandwidth to try one."
    )


# How many seeds would decide

T = {
    1: 12.7062,
    2: 4.3027,
    3: 3.1824,
    4: 2.7764,
    5: 2.5706,
    6: 2.4469,
    7: 2.3646,
    8: 2.3060,
    9: 2.2622,
    10: 2.2281,
}


@pytest.mark.parametrize(
    ("values", "wide"), [([0.5, 1.5], 1.0), ([-0.4, 1.0], 1.5), ([0.1, 0.9, -0.6], 1.4), ([2.0, -2.0], 8.0)]
)
def test_seeds_to_decide_by_the_tables(values: list[float], wide: float) -> None:
    spread, mean = statistics.stdev(values), statistics.fmean(values)
    expected = next(
        n for n in range(len(values) + 1, 12) if T[n - 1] * spread / math.sqrt(n) <= max(abs(mean), wide / 2)
    )
    assert seeds_to_decide(mean_interval(values), wide) == expected


def test_seeds_to_decide_by_hand() -> None:
    # Differences 0.5 and 1.5: spread 0.7071, mean 1. Of n = 4: 3.1824 * 0.7071 / 2 = 1.125; of n = 5: 0.878.
    assert seeds_to_decide(mean_interval([0.5, 1.5]), 1.0) == 5
    assert seeds_to_decide(mean_interval([1.0, -1.0001]), 0.01) is None
    with pytest.raises(ValueError, match="expected 2 seeds or more"):
        seeds_to_decide(Interval(1.0, None, None, 1), 1.0)


def test_so_many_seeds_do_decide() -> None:
    values = [0.5, 1.5]
    needed = seeds_to_decide(mean_interval(values), 1.0) or 0
    spread = statistics.stdev(values)
    # As many values with the same mean and spread.
    more = [
        1.0 + spread * math.sqrt((needed - 1) / needed) * (1 if i % 2 else -1)
        for i in range(needed - needed % 2)
    ]
    more += [1.0] * (needed % 2)
    interval = mean_interval(more)
    assert interval.low is not None
    assert interval.low > 0


# Words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "250 ms"),
        (6.24, "6.2 s"),
        (9.97, "10 s"),
        (28.9, "29 s"),
        (119.6, "120 s"),
        (240, "4.0 min"),
    ],
)
def test_seconds_in_words(seconds: float, text: str) -> None:
    assert conclusions.write_seconds(seconds) == text


@pytest.mark.parametrize(
    ("link", "name"), [("100mbit", "100 Mbit/s"), ("999.9mbit", "1000 Mbit/s"), ("1tbit", "1000 Gbit/s")]
)
def test_a_link_is_named_without_an_exponent(link: str, name: str) -> None:
    assert link_name(link) == name
