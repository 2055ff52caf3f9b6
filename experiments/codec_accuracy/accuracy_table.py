"""What results.csv and simulated.csv say: a table per task, one sentence on it, and bars."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arms import BASE, SIXTEEN_BIT, every_arm
from gradwire.report.chart import Bar, Panel, panel_chart, standalone
from gradwire.report.paired_statistics import Interval, mean_interval, paired_difference
from runs import TASKS, WORKERS, Kept, Row
from simulated import Simulated

_DENSE_BITS = 64  # float32 in, float32 back
TITLES = (
    *("codec", "{score}", "difference to none [95 %]", "difference to bf16 [95 %]"),
    *("bits per element, both ways", "codec seconds", "seeds", "weights of the job"),
)


@dataclass(frozen=True)
class Measured:
    """What there is of one task; of jobs and simulated runs one may be missing."""

    task: str
    jobs: Sequence[Row]
    simulated: Sequence[Simulated]

    @property
    def scored(self) -> Sequence[Kept]:
        """Runs of one kind, so that differences are of like and like."""
        return self.simulated or self.jobs

    @property
    def is_loss(self) -> bool:
        return self.scored[0].metric == "loss"


@dataclass(frozen=True)
class Arm:
    """One arm of a task over its seeds.

    Attributes:
        score: the mean; deviation: of the seeds, None with one.
        to_base, to_sixteen_bit: score minus theirs over the seeds that both have; None: there is no such seed.
        bits: at the socket per element, both ways together, headers and what is not compressed included.
        codec_seconds: of one worker in one run.
        same_weights: whether simulated workers ended with the weights of a job's of the same seed, bit for bit; None:
            there are not both.
    """

    name: str
    score: float
    deviation: float | None
    to_base: Interval | None
    to_sixteen_bit: Interval | None
    bits: float | None
    codec_seconds: float | None
    seeds: int
    same_weights: bool | None


def summarise(measured: Measured) -> list[Arm]:
    """Sums up one task's rows, in the order of the arms; arms that are not in the table any more come last."""
    known = every_arm()
    names = {row.arm for row in measured.scored}
    ordered = sorted(names, key=lambda name: (name not in known, _place(known, name), name))
    return [_summarise(name, measured) for name in ordered]


def _place(known: list[str], name: str) -> int:
    return known.index(name) if name in known else 0


def _summarise(name: str, measured: Measured) -> Arm:
    rows, jobs = measured.scored, [row for row in measured.jobs if row.arm == name]
    own = [row for row in rows if row.arm == name]
    dense = [row.bytes_per_step for row in measured.jobs if row.arm == BASE]
    scores = [row.score for row in own]
    return Arm(
        name,
        statistics.fmean(scores),
        statistics.stdev(scores) if len(scores) > 1 else None,
        _difference(own, [row for row in rows if row.arm == BASE]),
        _difference(own, [row for row in rows if row.arm == SIXTEEN_BIT]),
        _DENSE_BITS * statistics.fmean(row.bytes_per_step for row in jobs) / dense[0]
        if dense and jobs
        else None,
        statistics.fmean(row.codec_seconds for row in jobs) if jobs else None,
        len(own),
        _same_weights(name, measured),
    )


def _same_weights(name: str, measured: Measured) -> bool | None:
    of_jobs = {row.seed: row.weights for row in measured.jobs if row.arm == name}
    pairs = [
        (run.weights, of_jobs[run.seed])
        for run in measured.simulated
        if run.arm == name and run.seed in of_jobs
    ]
    return all(ours == theirs for ours, theirs in pairs) if pairs else None


def _difference(own: Sequence[Kept], other: Sequence[Kept]) -> Interval | None:
    """Paired over the seeds that both have; None too where the two are the same arm."""
    by_seed = {row.seed: row.score for row in other}
    pairs = [(row.score, by_seed[row.seed]) for row in own if row.seed in by_seed]
    if not pairs or own[0].arm == other[0].arm:
        return None
    return paired_difference([own for own, _ in pairs], [base for _, base in pairs])


def markdown(measured: Measured) -> str:
    """Returns a task's sentence, table and conditions."""
    task, is_loss = measured.task, measured.is_loss
    scale = 1.0 if is_loss else 100.0
    arms = summarise(measured)
    titles = [title.format(score="loss, nats" if is_loss else "accuracy, %") for title in TITLES]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for arm in arms:
        cells = [
            *(f"`{arm.name}`", _score(arm, scale), _interval(arm.to_base, scale)),
            *(_interval(arm.to_sixteen_bit, scale), "" if arm.bits is None else f"{arm.bits:.2f}"),
            *("" if arm.codec_seconds is None else f"{arm.codec_seconds:.2f}", str(arm.seeds)),
            {True: "yes", False: "no", None: ""}[arm.same_weights],
        ]
        lines.append("| " + " | ".join(cells) + " |")
    conditions = f"{WORKERS} workers, `{TASKS[task].script} {TASKS[task].flags}`. {_extent(measured)}"
    return "\n".join([f"**{task}.** {answer(arms, is_loss)}", "", *lines, "", conditions])


def _extent(measured: Measured) -> str:
    """Says how many runs of each kind there are, and what one takes."""
    kinds = []
    if jobs := measured.jobs:
        wall = statistics.median(row.wall_seconds for row in jobs)
        load = statistics.median(row.load for row in jobs)
        kinds.append(
            f"{len(jobs)} jobs of {jobs[0].steps} steps; median {wall:.0f} s at a load of {load:.1f}"
        )
    if own := measured.simulated:
        cpu = statistics.median(row.cpu_seconds for row in own)
        kinds.append(
            f"{len(own)} simulated runs, which the scores are of; median {cpu:.0f} s of one processor"
        )
    return "; ".join(kinds) + "."


def answer(arms: Sequence[Arm], is_loss: bool) -> str:
    """Says which arms the interval of their difference to none puts behind it, and how far, and which not."""
    judged = [(arm, arm.to_base) for arm in arms if arm.to_base is not None and arm.to_base.low is not None]
    if not judged:
        return "One seed has no interval: nothing can be said of small differences."
    worse = sorted(
        ((arm, gap) for arm, gap in judged if _is_worse(gap, is_loss)), key=lambda pair: abs(pair[1].mean)
    )
    others = [arm.name for arm, gap in judged if not _is_worse(gap, is_loss)]
    scale = 1.0 if is_loss else 100.0
    behind = ", ".join(f"`{arm.name}` by {abs(scale * gap.mean):.2f}" for arm, gap in worse)
    unit = "nats" if is_loss else "points"
    return (
        f"Behind `{BASE}`, by an interval that leaves 0 out: {behind or 'none of them'} ({unit}). "
        f"Not seen to be behind: {', '.join(f'`{name}`' for name in others) or 'none of them'}."
    )


def _is_worse(gap: Interval, is_loss: bool) -> bool:
    assert gap.low is not None
    assert gap.high is not None
    return gap.low > 0 if is_loss else gap.high < 0


def _score(arm: Arm, scale: float) -> str:
    spread = "" if arm.deviation is None else f" ± {scale * arm.deviation:.2f}"
    return f"{scale * arm.score:.2f}{spread}"


def _interval(gap: Interval | None, scale: float) -> str:
    if gap is None:
        return ""
    mean = f"{scale * gap.mean:+.2f}"
    if gap.low is None or gap.high is None:
        return mean
    return f"{mean} [{scale * gap.low:+.2f}, {scale * gap.high:+.2f}]"


def by_task(jobs: Sequence[Row], simulated: Sequence[Simulated]) -> list[Measured]:
    """Returns what there is of each task that has any, in the order of the tasks."""
    tasks = [
        Measured(
            task, [row for row in jobs if row.task == task], [row for row in simulated if row.task == task]
        )
        for task in TASKS
    ]
    return [task for task in tasks if task.scored]


def draw(tasks: Sequence[Measured]) -> str:
    """Returns an SVG of the tasks' errors, a panel each: less is better, and bars from 0 then tell them apart."""
    return standalone(panel_chart([_panel(task) for task in tasks], lambda value: f"{value:.2f}"))


def _panel(measured: Measured) -> Panel:
    is_loss = measured.is_loss
    of: Callable[[float], float] = (lambda score: score) if is_loss else (lambda score: 100 * (1 - score))
    bars = []
    for arm in summarise(measured):
        interval = mean_interval([of(row.score) for row in measured.scored if row.arm == arm.name])
        ends = None if interval.low is None or interval.high is None else (interval.low, interval.high)
        note = "" if arm.bits is None else f"{arm.bits:.1f} bits"
        bars.append(
            Bar(arm.name, interval.mean, ends, note=note, colour=int(arm.name not in (BASE, SIXTEEN_BIT)))
        )
    unit = "validation loss, nats" if is_loss else "test error, %"
    return Panel(f"{measured.task}: {unit}; line: 95 % interval of the mean", tuple(bars))
