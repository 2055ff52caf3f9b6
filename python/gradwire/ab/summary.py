"""What an A/B experiment says: means, paired differences to the first arm, time to a target, a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradwire.ab.experiment import Run, RunFailed, mean_or_none
from gradwire.report.paired_statistics import Interval, paired_difference, paired_ratio
from gradwire.result import Metric

_TARGET_MARGIN = 0.005  # of accuracy: half a point
_LOSS_MARGIN = 0.02  # of the loss itself
_WIDE_POINTS = 1.0
_WIDE_LOSS = 0.05  # of the first arm's mean loss


@dataclass(frozen=True)
class ArmSummary:
    """One arm over all seeds. Figures that a script did not give are None.

    Attributes:
        runs: that ended well, with a finite metric or without.
        failures: the other runs.
        final: mean over the runs; None: none ended, or one of them diverged.
        seconds_to_target: None: a run did not reach it.
        difference: final metric minus the first arm's, of the seeds under which both are finite; None: of none, or
            this is the first arm.
        speed_ratio: of the seeds under which both ended.
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

    @property
    def diverged_runs(self) -> int:
        return sum(run.result.diverged for run in self.runs)

    @property
    def diverged(self) -> bool:
        return self.diverged_runs > 0

    @property
    def mishaps(self) -> list[str]:
        """Says how many runs failed, and how many diverged, if any."""
        all_runs = len(self.runs) + len(self.failures)
        texts = []
        if self.failures:
            texts.append(f"failed in {len(self.failures)} of {all_runs} runs ({self.failures[0]})")
        if self.diverged:
            texts.append(f"diverged in {self.diverged_runs} of {all_runs} runs")
        return texts


@dataclass(frozen=True)
class Outcome:
    """Attributes:
    target: None: no run is finite, so none is chosen.
    expected_runs: of all arms together; more than there are while the experiment is under way, or was interrupted.
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
    def verdict(self) -> str:
        """One sentence on every arm after the first, and on the first where it failed or diverged."""
        base = self.arms[0]
        clauses = [f"{base.arm} {text}" for text in base.mishaps]
        clauses += [self._clause(arm, base) for arm in self.arms[1:]]
        if len(self.arms) == 1:
            clauses.append(f"Nothing to compare: {base.arm} was the only arm")
        so_far = ""
        if self.ended_runs < self.expected_runs:
            so_far = f"After {self.ended_runs} of {self.expected_runs} runs: "
        text = so_far + "; ".join(clauses)
        if len(self.arms) == 1:
            return f"{text}."
        seeds = max(len(arm.runs) + len(arm.failures) for arm in self.arms)
        how = "95 % intervals of the paired differences" if seeds > 1 else "one seed gives no interval"
        return f"{text} ({seeds} seed{'s' if seeds != 1 else ''}, {how}; link: {self.link})."

    def _clause(self, arm: ArmSummary, base: ArmSummary) -> str:
        said = [*arm.mishaps]
        if arm.speed_ratio is not None:
            speed = write_interval(arm.speed_ratio, "{:.3g}")
            said.append(f"runs at {speed} times the speed of {base.arm}")
        if arm.difference is not None:
            said.append(f"{self.metric} differs by {self.write_difference(arm.difference)}")
        return f"{arm.arm} {', '.join(said)}: {self.judge(arm)}" if said else f"{arm.arm}: {self.judge(arm)}"

    def judge(self, arm: ArmSummary) -> str:
        """Says what became of an arm beside the first one."""
        base = self.arms[0]
        if arm.failures:
            return "failed"
        if arm.diverged:
            return f"diverged, as {base.arm} did" if base.diverged else "diverged: worse"
        if not arm.runs:
            return "no run has ended"
        if arm.difference is None:
            return f"nothing of {base.arm} to compare it with"
        return self.judgement(arm.difference)

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
        scale = self.arms[0].final or 0.0  # None: the first arm diverged under another seed
        wide = _WIDE_POINTS / 100 if self.metric == "accuracy" else _WIDE_LOSS * abs(scale)
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
            "runs": self.ended_runs,
            "expected_runs": self.expected_runs,
            "verdict": self.verdict,
        }

    def _arm_record(self, arm: ArmSummary) -> dict[str, Any]:
        accuracy = self.metric == "accuracy"
        own = {} if accuracy else {"loss": arm.final, "loss_std": arm.final_std}
        return own | {
            "arm": arm.arm,
            "diverged": arm.diverged,
            "judgement": None if arm is self.arms[0] else self.judge(arm),
            "accuracy": arm.final if accuracy else None,
            "accuracy_std": arm.final_std if accuracy else None,
            "images_per_second": arm.images_per_second,
            "bytes_per_step": arm.bytes_per_step,
            "seconds_to_target": arm.seconds_to_target,
            "codec_seconds": arm.codec_seconds,
            "difference": None if arm.difference is None else asdict(arm.difference),
            "speed_ratio": None if arm.speed_ratio is None else asdict(arm.speed_ratio),
            "per_seed": [run.record() for run in arm.runs],
            "failures": [failure.record() for failure in arm.failures],
        }


def write_interval(interval: Interval, form: str) -> str:
    """Writes "1.2 [1.1, 1.3]", without brackets where there is no interval."""
    mean = form.format(interval.mean)
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} [{form.format(interval.low)}, {form.format(interval.high)}]"


def seconds_to(run: Run, target: float) -> float | None:
    """Returns when a run reached target; None: never, or it diverged, so that it has nothing to keep."""
    if run.result.diverged:
        return None
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


def summarise(
    ended: Sequence[Run | RunFailed],
    arms: Sequence[str],
    target: float | None,
    link: str,
    expected_runs: int | None = None,
) -> Outcome:
    """Draws the conclusions from what has ended, be it little. Runs are compared that have their seed in common.

    Args:
        expected_runs: None: there will be no more.
    """
    runs = sorted((run for run in ended if isinstance(run, Run)), key=lambda run: run.seed)
    failures = [failure for failure in ended if isinstance(failure, RunFailed)]
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in arms}
    reason = "given by --target"
    if target is None:
        finite = {arm: [run for run in by_arm[arm] if not run.result.diverged] for arm in arms}
        first = next((arm for arm in arms if finite[arm]), None)
        target, reason = (None, "no run is finite") if first is None else default_target(finite[first])
    rows = tuple(
        _summarise_arm(
            arm,
            by_arm[arm],
            [failure for failure in failures if failure.arm == arm],
            None if arm == arms[0] else by_arm[arms[0]],
            target,
        )
        for arm in arms
    )
    metric: Metric = runs[0].result.metric if runs else "loss"
    return Outcome(metric, rows, target, reason, link, len(ended) if expected_runs is None else expected_runs)


def _summarise_arm(
    arm: str,
    runs: Sequence[Run],
    failures: Sequence[RunFailed],
    base: Sequence[Run] | None,
    target: float | None,
) -> ArmSummary:
    finals = [run.result.final for run in runs] if not any(run.result.diverged for run in runs) else []
    difference = speed_ratio = None
    by_seed = {run.seed: run for run in base or ()}
    pairs = [(run, by_seed[run.seed]) for run in runs if run.seed in by_seed]
    if pairs:
        speed_ratio = paired_ratio([run.speed() for run, _ in pairs], [other.speed() for _, other in pairs])
    finite = [pair for pair in pairs if not any(run.result.diverged for run in pair)]
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
        seconds_to_target=mean_or_none([None if target is None else seconds_to(run, target) for run in runs]),
        difference=difference,
        speed_ratio=speed_ratio,
    )
