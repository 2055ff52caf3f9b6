"""The figures of an A/B experiment: means over seeds, paired differences to the first arm, times to the target."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gradwire.ab import conclusions
from gradwire.ab.experiment import Run, RunFailed, mean_or_none
from gradwire.ab.names import arm_name
from gradwire.ab.target import Target, common_target, first_crossing, seconds_to
from gradwire.report.paired_statistics import (
    MOST_SEEDS,
    Interval,
    paired_difference,
    paired_ratio,
    seeds_to_decide,
)
from gradwire.result import Metric

__all__ = ["ArmSummary", "Outcome", "first_crossing", "seconds_to", "summarise", "write_interval"]

_WIDE_POINTS = 1.0
_WIDE_LOSS = 0.05  # of the first arm's mean loss
# Up to here a difference is too little to matter, though enough seeds would show it of almost any codec.
_NEGLIGIBLE_POINTS = 0.2
_NEGLIGIBLE_LOSS = 0.002  # of the first arm's mean loss
NEGLIGIBLE = "too little to matter"
NOTHING_SEEN = "no difference seen"
GIVEN = "given by --target"


@dataclass(frozen=True)
class ArmSummary:
    """One arm over all seeds. A figure that some run lacks is None.

    Attributes:
        runs: those that ended well, whether their metric is finite or not.
        failures: the other runs.
        final: mean over the runs. None: no run ended, or one diverged.
        seconds_to_target: mean over the runs. None: a run did not reach the target.
        difference: final metric minus the first arm's, over the seeds under which both are finite. None: there is no
            such seed, or this is the first arm.
        speed_ratio: this arm's speed over the first arm's, over the seeds under which both ended.
        sooner: the first arm's seconds to the target over this arm's, paired by seed. None: a run of either arm did
            not reach it, or the arms have no seed in common.
    """

    arm: str
    runs: tuple[Run, ...]
    failures: tuple[RunFailed, ...]
    final: float | None
    final_std: float | None
    images_per_second: float | None
    bytes_per_step: float | None
    codec_seconds: float | None
    seconds_to_target: float | None
    difference: Interval | None
    speed_ratio: Interval | None
    sooner: Interval | None = None

    @property
    def name(self) -> str:
        return arm_name(self.arm)

    @property
    def diverged_runs(self) -> int:
        return sum(run.result.diverged for run in self.runs)

    @property
    def diverged(self) -> bool:
        return self.diverged_runs > 0

    @property
    def mishaps(self) -> list[str]:
        """Says how many runs failed and how many diverged, if any."""
        all_runs = len(self.runs) + len(self.failures)
        texts = []
        if self.failures:
            texts.append(f"failed in {len(self.failures)} of {all_runs} runs ({self.failures[0]})")
        if self.diverged:
            texts.append(f"diverged in {self.diverged_runs} of {all_runs} runs")
        return texts

    def mean_bytes(self) -> float | None:
        """Returns one worker's bytes in a whole run. None: some run does not say."""
        spent = [run.bytes() for run in self.runs]
        return mean_or_none([each[-1] if each is not None else None for each in spent])


@dataclass(frozen=True)
class Outcome:
    """Attributes:
    target: None: no run is finite, so none is chosen.
    target_reason: the rule, and the run that set the target.
    expected_runs: of all arms together. More than have ended while the experiment is under way, or was interrupted.
    """

    metric: Metric
    arms: tuple[ArmSummary, ...]
    target: float | None
    target_reason: str
    link: str
    expected_runs: int

    @property
    def ended_runs(self) -> int:
        return sum(len(arm.runs) + len(arm.failures) for arm in self.arms)

    @property
    def seeds(self) -> int:
        """Returns under how many seeds an arm ran, at most."""
        return max(len(arm.runs) + len(arm.failures) for arm in self.arms)

    @property
    def has_seeds_alike(self) -> bool:
        """Whether the seeds made no difference to the first arm, so that they count as one."""
        return is_repetition(self.arms[0].runs)

    @property
    def headline(self) -> str:
        """One sentence: when the soonest arm and the first arm reached the target, and where they ended."""
        return conclusions.headline(self)

    @property
    def conclusions(self) -> list[str]:
        """What a reader should conclude: advice first, then one paragraph per arm."""
        return conclusions.conclusions(self)

    @property
    def verdict(self) -> str:
        """The headline and all conclusions as one text."""
        return conclusions.verdict(self)

    def times_sooner(self, arm: ArmSummary) -> float | None:
        """Returns the first arm's seconds to the target over arm's. None: one of them did not reach it.

        Over the seeds that both have, else of means: while runs are under way, or after one that failed, an arm has
        fewer seeds, and a slow one must not count for the other alone.
        """
        base = self.arms[0]
        if not arm.seconds_to_target or base.seconds_to_target is None:
            return None
        return arm.sooner.mean if arm.sooner is not None else base.seconds_to_target / arm.seconds_to_target

    def times_fewer_bytes(self, arm: ArmSummary) -> float | None:
        """Returns the first arm's bytes per step over arm's, or of whole runs. None: an arm's bytes are not known."""
        base = self.arms[0]
        if arm.bytes_per_step and base.bytes_per_step:
            return base.bytes_per_step / arm.bytes_per_step
        own, of_base = arm.mean_bytes(), base.mean_bytes()
        return of_base / own if own and of_base else None

    def judge(self, arm: ArmSummary) -> str:
        """Says how an arm compares with the first one, in a few words."""
        base = self.arms[0]
        if arm.failures:
            return "failed"
        if arm.diverged:
            return f"diverged, as {base.name} did" if base.diverged else "diverged: worse"
        if not arm.runs:
            return "no run has ended"
        if arm.difference is None:
            return f"nothing of {base.name} to compare it with"
        return self.judgement(arm.difference)

    def write_difference(self, difference: Interval) -> str:
        if self.metric == "loss":
            final = self.arms[0].final
            decimals = 4 if not final or not math.isfinite(final) else 4 - math.floor(math.log10(abs(final)))
            return write_interval(difference, f"{{:+.{min(12, max(0, decimals))}f}}")
        scaled = [None if v is None else 100 * v for v in (difference.low, difference.high)]
        points = Interval(100 * difference.mean, scaled[0], scaled[1], difference.count)
        return write_interval(points, "{:+.2f}") + " points"

    def ends_as_well(self, arm: ArmSummary) -> bool:
        """Returns whether an arm's final metric is shown to be no worse than the first arm's, but for trifles."""
        return self.judge(arm) in ("better", NEGLIGIBLE, NOTHING_SEEN)

    @property
    def _wide(self) -> float:
        """The width from which an interval that contains 0 says nothing."""
        return self._bound(_WIDE_POINTS, _WIDE_LOSS)

    def _bound(self, points: float, loss: float) -> float:
        """A bound in the metric's unit: points of accuracy, or a share of the first arm's mean loss."""
        scale = self.arms[0].final or 0.0  # None: the first arm diverged under another seed
        return points / 100 if self.metric == "accuracy" else loss * abs(scale)

    def judgement(self, difference: Interval) -> str:
        """Says what an arm's difference to the first arm shows. Where it shows nothing, says how many seeds would."""
        if difference.low is None or difference.high is None:
            return "inconclusive, one seed has no spread: run 3 seeds or more"
        if not difference.low <= 0 <= difference.high:
            if difference.count == 2 and abs(difference.mean) <= self._wide:
                return "inconclusive, two differences are alike by chance too easily: run 3 seeds or more"
            if max(-difference.low, difference.high) <= self._bound(_NEGLIGIBLE_POINTS, _NEGLIGIBLE_LOSS):
                return NEGLIGIBLE
            better = (difference.mean > 0) == (self.metric == "accuracy")
            return "better" if better else "worse"
        if difference.width <= self._wide:
            return NOTHING_SEEN
        needed = seeds_to_decide(difference, self._wide)
        seeds = f"more than {MOST_SEEDS}" if needed is None else f"about {needed}"
        return f"inconclusive, the interval is wide: {seeds} seeds would decide"

    def seeds_needed(self, arm: ArmSummary) -> int | None:
        """Returns how many seeds would decide where an arm's difference is inconclusive. None: it is not, or the number
        is not known."""
        difference = arm.difference
        if difference is None or not self.judge(arm).startswith("inconclusive") or difference.low is None:
            return None
        return seeds_to_decide(difference, self._wide)

    def record(self) -> dict[str, Any]:
        """The record that --json writes."""
        return {
            "metric": self.metric,
            "arms": [self._arm_record(arm) for arm in self.arms],
            "target": self.target,
            "target_reason": self.target_reason,
            "link": self.link,
            "runs": self.ended_runs,
            "expected_runs": self.expected_runs,
            "headline": self.headline,
            "conclusions": self.conclusions,
            "verdict": self.verdict,
        }

    def _arm_record(self, arm: ArmSummary) -> dict[str, Any]:
        accuracy = self.metric == "accuracy"
        own = {} if accuracy else {"loss": arm.final, "loss_std": arm.final_std}
        return own | {
            "arm": arm.arm,
            "name": arm.name,
            "diverged": arm.diverged,
            "judgement": None if arm is self.arms[0] else self.judge(arm),
            "seeds_needed": self.seeds_needed(arm),
            "accuracy": arm.final if accuracy else None,
            "accuracy_std": arm.final_std if accuracy else None,
            "images_per_second": arm.images_per_second,
            "bytes_per_step": arm.bytes_per_step,
            "seconds_to_target": arm.seconds_to_target,
            "codec_seconds": arm.codec_seconds,
            "difference": None if arm.difference is None else asdict(arm.difference),
            "speed_ratio": None if arm.speed_ratio is None else asdict(arm.speed_ratio),
            "times_sooner": self.times_sooner(arm),
            "sooner": None if arm.sooner is None else asdict(arm.sooner),
            "times_fewer_bytes": self.times_fewer_bytes(arm),
            "per_seed": [run.record() for run in arm.runs],
            "failures": [failure.record() for failure in arm.failures],
        }


def negligible(metric: Metric) -> str:
    """Returns the difference up to which it is too little to matter, in words."""
    return (
        f"{_NEGLIGIBLE_POINTS} points of the first arm's"
        if metric == "accuracy"
        else f"{100 * _NEGLIGIBLE_LOSS} % of the first arm's"
    )


def write_interval(interval: Interval, form: str) -> str:
    """Writes "1.2 [1.1, 1.3]", without brackets where there is no interval."""
    mean = form.format(interval.mean)
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} [{form.format(interval.low)}, {form.format(interval.high)}]"


def summarise(
    ended: Sequence[Run | RunFailed],
    arms: Sequence[str],
    target: float | None,
    link: str,
    expected_runs: int | None = None,
    target_reason: str = GIVEN,
) -> Outcome:
    """Summarises the runs that have ended, be they few. Arms are compared over the seeds that they have in common.

    Args:
        target: None: the one that common_target() chooses from the arms that are neither diverged nor judged worse
            than the first arm.
        expected_runs: None: there will be no more.
        target_reason: why target is what it is, where it is given.
    """
    runs = sorted((run for run in ended if isinstance(run, Run)), key=lambda run: run.seed)
    failures = [failure for failure in ended if isinstance(failure, RunFailed)]
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in arms}
    rows = tuple(
        _summarise_arm(
            arm,
            by_arm[arm],
            [failure for failure in failures if failure.arm == arm],
            None if arm == arms[0] else by_arm[arms[0]],
        )
        for arm in arms
    )
    metric: Metric = runs[0].result.metric if runs else "loss"
    expected = len(ended) if expected_runs is None else expected_runs
    outcome = Outcome(metric, rows, target, target_reason, link, expected)
    if target is None:
        chosen = _choose_target(outcome)
        outcome = replace(outcome, target=chosen.value, target_reason=chosen.reason)
    timed = tuple(_with_times(arm, by_arm[arms[0]], outcome.target) for arm in rows)
    return replace(outcome, arms=timed)


def _choose_target(outcome: Outcome) -> Target:
    """Leaves out arms that diverged or are worse: a target that they reach would say little of the others."""
    judged = {arm: arm.difference and outcome.judgement(arm.difference) for arm in outcome.arms}
    fit = [arm for arm in outcome.arms if not arm.diverged and judged[arm] != "worse"]
    left_out = [arm.arm for arm in outcome.arms if arm not in fit]
    return common_target([run for arm in fit for run in arm.runs], left_out)


def _with_times(arm: ArmSummary, base: Sequence[Run], target: float | None) -> ArmSummary:
    if target is None:
        return arm
    of_base = {run.seed: seconds_to(run, target) for run in base}
    times = {run.seed: seconds_to(run, target) for run in arm.runs}
    pairs = [(of_base[seed], times[seed]) for seed in times if seed in of_base]
    known = [(theirs, own) for theirs, own in pairs if theirs and own]  # neither None, nor at once
    is_whole = bool(known) and len(known) == len(pairs) and arm.runs != tuple(base)
    return replace(
        arm,
        seconds_to_target=mean_or_none(list(times.values())),
        sooner=paired_ratio([theirs for theirs, _ in known], [own for _, own in known]) if is_whole else None,
    )


def is_repetition(runs: Sequence[Run]) -> bool:
    """Whether all seeds of an arm, at least two, did the same: its script does not use them."""
    return len(runs) > 1 and len({run.result.per_epoch for run in runs}) == 1


def _summarise_arm(
    arm: str, runs: Sequence[Run], failures: Sequence[RunFailed], base: Sequence[Run] | None
) -> ArmSummary:
    finals = [run.result.final for run in runs] if not any(run.result.diverged for run in runs) else []
    difference = speed_ratio = None
    by_seed = {run.seed: run for run in base or ()}
    pairs = [(run, by_seed[run.seed]) for run in runs if run.seed in by_seed]
    if pairs:
        speed_ratio = paired_ratio([run.speed() for run, _ in pairs], [other.speed() for _, other in pairs])
    finite = [pair for pair in pairs if not any(run.result.diverged for run in pair)]
    if is_repetition(base or ()):
        finite = finite[:1]
    if finite:
        difference = paired_difference(
            [run.result.final for run, _ in finite], [other.result.final for _, other in finite]
        )
    return ArmSummary(
        arm=arm,
        runs=tuple(runs),
        failures=tuple(failures),
        final=statistics.fmean(finals) if finals else None,
        final_std=statistics.stdev(finals) if len(finals) > 1 else None,
        images_per_second=mean_or_none([run.result.images_per_second for run in runs]),
        bytes_per_step=mean_or_none([run.result.bytes_per_step for run in runs]),
        codec_seconds=mean_or_none([run.result.codec_seconds for run in runs]),
        seconds_to_target=None,
        difference=difference,
        speed_ratio=speed_ratio,
    )
