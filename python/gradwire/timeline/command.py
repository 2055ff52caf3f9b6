"""`gradwire timeline`: reads a trace, and shows where the time of its steps went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gradwire.settings.units import format_bytes, format_duration
from gradwire.terminal.wide_table import print_table
from gradwire.timeline.merge import merge_folder
from gradwire.timeline.span import Timeline
from gradwire.timeline.summary import RankTime, Summary
from gradwire.timeline.trace_event import read_trace


def load(path: Path) -> Timeline:
    """Reads a trace file, or merges a folder of parts.

    Raises:
        ValueError: path is neither; says what was expected.
        OSError: it cannot be read.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"timeline: there is no {path}: expected a file that `gradwire run --timeline FILE` wrote, or a folder of "
            "parts (GRADWIRE_TIMELINE)"
        )
    return merge_folder(path) if path.is_dir() else read_trace(path)


def show(summary: Summary, console: Console) -> None:
    """Prints the tables, and conclusions below them, on a plain_console()."""
    print_table(_workers_table(summary), console)
    print_table(_stages_table(summary), console)
    for text in [*conclusions(summary), *_of_which_steps(summary), *reservations(summary.timeline)]:
        console.print(text, highlight=False, soft_wrap=True)


def _workers_table(summary: Summary) -> Table:
    what = f"step {summary.step}" if summary.step is not None else "a step"
    table = Table(box=SIMPLE_HEAD, title=f"Where {what} went", title_justify="left")
    table.add_column("rank", no_wrap=True)
    for title in ("steps", "a step", "compute", "exposed", "communication", "hidden", "codec"):
        table.add_column(title, justify="right", no_wrap=True)
    for rank in summary.workers:
        hidden = "-" if rank.hidden_share is None else f"{100 * rank.hidden_share:.0f} %"
        table.add_row(
            f"worker {rank.rank}",
            str(rank.steps),
            *(_seconds(rank.step), _share(rank.compute, rank), _share(rank.exposed, rank)),
            *(_seconds(rank.communication), hidden, _seconds(rank.codec)),
        )
    return table


def _stages_table(summary: Summary) -> Table:
    table = Table(box=SIMPLE_HEAD, title="Stages, per step", title_justify="left")
    table.add_column("rank")
    table.add_column("stage")
    for title in ("spans", "bytes", "seconds", "busy", "of the step"):
        table.add_column(title, justify="right")
    for rank in summary.ranks:
        for index, stage in enumerate(rank.stages):
            table.add_row(
                f"{rank.role} {rank.rank}" if index == 0 else "",
                stage.stage,
                f"{stage.spans:.3g}",
                format_bytes(stage.bytes) if stage.stage != "wait" else "-",
                format_duration(stage.seconds),
                format_duration(stage.busy),
                f"{100 * stage.share:.0f} %",
            )
        table.add_section()
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_duration(value)


def _share(value: float | None, rank: RankTime) -> str:
    if value is None or not rank.step:
        return "-"
    return f"{format_duration(value)} ({100 * value / rank.step:.0f} %)"


def conclusions(summary: Summary) -> list[str]:
    """Names the slowest rank and tensor in words."""
    texts = []
    if (first := summary.first_step) is not None:
        texts.append(
            f"The mean leaves out the first step ({format_duration(first.seconds)}), in which a worker pushed "
            f"{format_bytes(first.pushed_bytes)}. In each later step it pushed "
            f"{format_bytes(first.later_pushed_bytes)}."
        )
    if (late := summary.waiting_for) is not None:
        texts.append(
            f"Slowest rank: worker {late.worker}. It was the last to push {100 * late.share:.0f} % of the partitions. "
            f"For {format_duration(late.seconds)} a step, partitions waited for this worker only."
        )
    if (longest := summary.longest_tensor) is not None:
        texts.append(
            f"Longest tensor: {longest.key} ({format_bytes(longest.bytes)}), {format_duration(longest.seconds)} from "
            f"ready to decoded on worker {longest.worker}, most of it in: {longest.stage}."
        )
    return texts


def _of_which_steps(summary: Summary) -> list[str]:
    """Says what the figures are not of, where that is not what a reader would expect."""
    texts = []
    idle = [f"worker {rank.rank}" for rank in summary.workers if not rank.steps]
    if idle and summary.step is not None:
        texts.append(
            f"Without step {summary.step}: {_listed(idle)}. The figures are those of the other workers."
        )
    if summary.unended:
        workers = _listed([f"worker {rank}" for rank in summary.unended])
        texts.append(
            f"No end is known of this step of {workers}: it is the last that was traced. It is counted up to its last "
            "exchange, so what was computed after that is missing."
        )
    elif summary.step is None and summary.first_step is None:
        texts.append(
            "These are figures of the first step alone, in which keys are declared and connections made: trace more "
            "steps."
        )
    return texts


def reservations(timeline: Timeline) -> list[str]:
    """Describes what the trace does not show."""
    texts = []
    if without := [name for name in timeline.missing if name not in timeline.of_another_time]:
        texts.append(
            f"Missing: {_listed(without)} wrote no part (killed, or on a host whose files are not here)."
        )
    if timeline.of_another_time:
        texts.append(
            f"Left out: the part of {_listed(timeline.of_another_time)} ends before the others begin, so it is of an "
            "earlier job, and this job wrote none in its place. Use a new folder for each job."
        )
    if timeline.unaligned:
        texts.append(
            f"Not aligned: the clock of {_listed(timeline.unaligned)} could not be compared with the others'."
        )
    for process, count in timeline.dropped.items():
        texts.append(
            f"Dropped: {count} spans of {process}, because its trace buffer was full; trace fewer steps."
        )
    if timeline.clock_error > 1e-3:
        error = format_duration(timeline.clock_error)
        texts.append(
            f"Clocks: some effects appear {error} before their causes; compare ranks no closer than that."
        )
    return texts


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
