"""Numbers in the help of commands are those that the code goes by, which it does not import to write its help."""

from __future__ import annotations

import inspect
import re

import pytest
import typer.main
from gradwire import cli
from gradwire.autotune import duel, launches, search, step_times
from gradwire.launch import supervisor as launch
from gradwire.launch.clusters import yarn
from gradwire.plan import planner, step_profile
from gradwire.settings import definitions as settings
from gradwire.settings.units import format_duration, format_rate

LUCK = 2**duel.REPEATS  # by which a setting as fast as the defaults wins a duel once in so many times


def help_of(command: str) -> str:
    """All of a command's help, in one line."""
    group = typer.main.get_command(cli.app)
    found = group.commands[command]  # type: ignore[attr-defined]
    texts = [inspect.cleandoc(found.help or ""), *(getattr(row, "help", None) or "" for row in found.params)]
    return re.sub(r"\s+", " ", " ".join(texts))


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("plan", f"until it has taken {step_profile.STEPS} steps of its optimizer"),
        ("plan", f"over {format_rate(planner.BANDWIDTHS[0])} to {format_rate(planner.BANDWIDTHS[-1])}"),
        ("plan", f"over {planner.WORKERS[0]} to {planner.WORKERS[-1]} workers"),
        ("plan", f"Unset: {', '.join(planner.CODECS)}."),
        ("tune", f"for {step_times.WARM_UP} steps that do not count"),
        ("tune", f"{search.FEWEST_TRIALS} or more"),
        (
            "tune",
            f"Unset: {launches._STEPS_SECONDS:g} s of them, but {launches._FEWEST_STEPS} to {launches._MOST_STEPS}.",
        ),
        ("tune", f"in {duel.REPEATS} pairs of launches"),
        ("tune", f"fights, up to {('one', 'two', 'three', 'four')[search._MOST_DUELS - 1]} in all"),
        (
            "tune",
            f"one wins once in {LUCK} times, and so one of three once in {round(LUCK / search._MOST_DUELS)}",
        ),
        ("run", f"Ctrl-C ends everything within {launch._STOP_SECONDS:g} s"),
        (
            "run",
            f"GRADWIRE_GRACE_PERIOD, or {format_duration(settings.Settings().grace_period).replace(' ', '')}.",
        ),
        (
            "run",
            f"Default: {yarn.YarnJob.memory >> 30} GiB under yarn",
        ),
    ],
)
def test_a_number_is_the_codes_own(command: str, text: str) -> None:
    assert text in help_of(command)
