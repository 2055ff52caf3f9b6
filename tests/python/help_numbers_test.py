"""The help of commands: its numbers are those of the code, every option has its default, every command an example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

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
        ("plan", f"Default: {', '.join(planner.CODECS)}; for an optimizer like Adam all but 2bit"),
        ("tune", f"runs {step_times.WARM_UP} steps that do not count"),
        ("tune", f"{search.FEWEST_TRIALS} or more"),
        (
            "tune",
            f"as many as take {launches._STEPS_SECONDS:g} s, but {launches._FEWEST_STEPS} to {launches._MOST_STEPS}.",
        ),
        ("tune", f"in {duel.REPEATS} pairs of launches"),
        (
            "tune",
            f"race the defaults, up to {('one', 'two', 'three', 'four')[search._MOST_DUELS - 1]} in all",
        ),
        (
            "tune",
            f"one wins once in {LUCK} times, and one of three once in {round(LUCK / search._MOST_DUELS)}",
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


def commands(group: Any = None, path: str = "gradwire") -> Iterator[tuple[str, Any]]:
    """Yields every command that --help shows, with its words."""
    group = typer.main.get_command(cli.app) if group is None else group
    for name, command in group.commands.items():
        if command.hidden:
            continue
        yield f"{path} {name}", command
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")


@pytest.mark.parametrize(("words", "command"), [pytest.param(*row, id=row[0]) for row in commands()])
def test_every_command_has_an_example_and_every_option_its_default(words: str, command: Any) -> None:
    assert words in command.help.partition("[bold]Example")[2], "an example of the command itself"
    for param in command.params:
        if param.hidden or param.required or param.name == "help":
            continue
        assert "Default: " in (param.help or ""), f"{words}: {param.opts[0]}"
        assert "likewise" not in param.help
        default = param.default
        if default not in (None, False, "", []) and not callable(default):
            assert f"Default: {default}" in param.help, f"{words}: {param.opts[0]}"


def test_what_is_not_for_users_is_hidden_and_works() -> None:
    group = typer.main.get_command(cli.app)
    assert [name for name, row in group.commands.items() if row.hidden] == ["netlab"]  # type: ignore[attr-defined]
