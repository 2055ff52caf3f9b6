"""What an A/B experiment says: means, paired differences to the first arm, time to a target, a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradwire.ab import Run, mean_or_none
from gradwire.paired import Interval, paired_difference, paired_ratio
from gradwire.result import Metric

_TARGET_MARGIN = 0.005  # of accuracy: half a point
_LOSS_MARGIN = 0.02  # of the loss itself
_WIDE_POINTS = 1.0
_WIDE_LOSS = 0.05  # of the first arm's mean loss


@dataclass(frozen=True)
class ArmSummary:
    """One arm over all seeds. Figures that a script did not give are None."""

    arm: str
    runs: tuple[Run, ...]
    final: float
    final_std: float | None
    images_per_second: float | None
    bytes_per_step: float | None
    codec_seconds: float | None
    seconds_to_target: float | None  # None: a run did not reach it
    difference: Interval | None  # final metric minus the first arm's; None for the first arm
    speed_ratio: Interval | None


@dataclass(frozen=True)
class Outcome:
    metric: Metric
    arms: tuple[ArmSummary, ...]
    target: float
    target_reason: str
    link: str

    @property
    def verdict(self) -> str:
        """One sentence on every arm after the first."""
        base = self.arms[0]
        if len(self.arms) == 1:
            return f"Nothing to compare: {base.arm} was the only arm."
        clauses = "; ".join(self._clause(arm, base) for arm in self.arms[1:])
        seeds = len(base.runs)
        how = "95 % intervals of the paired differences" if seeds > 1 else "one seed gives no interval"
        return f"{clauses} ({seeds} seed{'s' if seeds > 1 else ''}, {how}; link: {self.link})."

    def _clause(self, arm: ArmSummary, base: ArmSummary) -> str:
        assert arm.speed_ratio is not None
        assert arm.difference is not None
        speed = write_interval(arm.speed_ratio, "{:.3g}")
        return (
            f"{arm.arm} runs at {speed} times the speed of {base.arm}, {self.metric} differs by "
            f"{self.write_difference(arm.difference)}: {self.judgement(arm.difference)}"
        )

    def write_difference(self, difference: Interval) -> str:
        if self.metric == "loss":
            return write_interval(difference, "{:+.3g}")
        scaled = [None if v is None else 100 * v for v in (difference.low, difference.high)]
        points = Interval(100 * difference.mean, scaled[0], scaled[1], difference.count)
        return write_interval(points, "{:+.2f}") + " points"

    def judgement(self, difference: Interval) -> str:
        """Says what an arm's difference to the first one tells: nothing, where a wide interval has 0 in it."""
        if difference.low is None or difference.high is None:
            return "inconclusive, more seeds are needed"
        if not difference.low <= 0 <= difference.high:
            better = (difference.mean > 0) == (self.metric == "accuracy")
            return "better" if better else "worse"
        wide = _WIDE_POINTS / 100 if self.metric == "accuracy" else _WIDE_LOSS * abs(self.arms[0].final)
        if difference.width > wide:
            return "inconclusive, the interval is wide; more seeds narrow it"
        return "no difference seen"

    def record(self) -> dict[str, Any]:
        """The record that --json writes."""
        return {
            "metric": self.metric,
            "arms": [self._arm_record(arm) for arm in self.arms],
            "target": self.target,
            "target_reason": self.target_reason,
            "link": self.link,
            "verdict": self.verdict,
        }

    def _arm_record(self, arm: ArmSummary) -> dict[str, Any]:
        accuracy = self.metric == "accuracy"
        own = {} if accuracy else {"loss": arm.final, "loss_std": arm.final_std}
        return own | {
            "arm": arm.arm,
            "accuracy": arm.final if accuracy else None,
            "accuracy_std": arm.final_std if accuracy else None,
            "images_per_second": arm.images_per_second,
            "bytes_per_step": arm.bytes_per_step,
            "seconds_to_target": arm.seconds_to_target,
            "codec_seconds": arm.codec_seconds,
            "difference": None if arm.difference is None else asdict(arm.difference),
            "speed_ratio": None if arm.speed_ratio is None else asdict(arm.speed_ratio),
            "per_seed": [run.record() for run in arm.runs],
        }


def write_interval(interval: Interval, form: str) -> str:
    """Writes "1.2 [1.1, 1.3]", without brackets where there is no interval."""
    mean = form.format(interval.mean)
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} [{form.format(interval.low)}, {form.format(interval.high)}]"


def seconds_to(run: Run, target: float) -> float | None:
    """Returns when a run reached target; None: never."""
    return first_crossing(run.result.per_epoch, run.seconds(), target, run.result.metric == "accuracy")


def first_crossing(
    values: Sequence[float], times: Sequence[float], target: float, upwards: bool
) -> float | None:
    """Returns when values reached target, between two of them by a straight line; None: never.

    A target reached by the first value counts at its time: what was before it is not known.
    """
    sign = 1 if upwards else -1
    for index, value in enumerate(values):
        if sign * value >= sign * target:
            if index == 0:
                return times[0]
            share = (target - values[index - 1]) / (value - values[index - 1])
            return times[index - 1] + share * (times[index] - times[index - 1])
    return None


def default_target(runs: Sequence[Run]) -> tuple[float, str]:
    """Chooses a target from the first arm's runs such that each of them reaches it."""
    mean = statistics.fmean(run.result.final for run in runs)
    arm = runs[0].arm
    if runs[0].result.metric == "accuracy":
        wanted, reached = mean - _TARGET_MARGIN, min(run.result.best for run in runs)
        if wanted <= reached:
            return wanted, f"half a point below the mean final accuracy of {arm}"
        return reached, f"the best accuracy that every run of {arm} reached"
    wanted, reached = mean + _LOSS_MARGIN * abs(mean), max(run.result.best for run in runs)
    if wanted >= reached:
        return wanted, f"2 % above the mean final loss of {arm}"
    return reached, f"the lowest loss that every run of {arm} reached"


def summarise(runs: Sequence[Run], arms: Sequence[str], target: float | None, link: str) -> Outcome:
    """Draws the conclusions. Every arm must have run under the same seeds, the first arm included."""
    by_arm = {arm: sorted((run for run in runs if run.arm == arm), key=lambda run: run.seed) for arm in arms}
    base = by_arm[arms[0]]
    reason = "given by --target"
    if target is None:
        target, reason = default_target(base)
    rows = tuple(_summarise_arm(by_arm[arm], None if arm == arms[0] else base, target) for arm in arms)
    return Outcome(base[0].result.metric, rows, target, reason, link)


def _summarise_arm(runs: Sequence[Run], base: Sequence[Run] | None, target: float) -> ArmSummary:
    finals = [run.result.final for run in runs]
    difference = speed_ratio = None
    if base is not None:
        difference = paired_difference(finals, [run.result.final for run in base])
        speed_ratio = paired_ratio([run.speed() for run in runs], [run.speed() for run in base])
    return ArmSummary(
        arm=runs[0].arm,
        runs=tuple(runs),
        final=statistics.fmean(finals),
        final_std=statistics.stdev(finals) if len(finals) > 1 else None,
        images_per_second=mean_or_none([run.result.images_per_second for run in runs]),
        bytes_per_step=mean_or_none([run.result.bytes_per_step for run in runs]),
        codec_seconds=mean_or_none([run.result.codec_seconds for run in runs]),
        seconds_to_target=mean_or_none([seconds_to(run, target) for run in runs]),
        difference=difference,
        speed_ratio=speed_ratio,
    )
