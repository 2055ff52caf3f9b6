"""How commands show their help: flags without a type, filled paragraphs, help where no command is given.

Pass `Command` as cls of a command and `Group` as cls of a typer.Typer.
"""

from __future__ import annotations

import inspect
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

MISUSE = 2  # exit code
COMMAND_ARGUMENTS = ("CMD...", "[CMD...]")  # a program of the user's, with its arguments


def paragraphs(text: str) -> str:
    """Joins the lines of each paragraph, which typer would print as they stand in the docstring. Lines that are
    indented, such as examples, keep their line ends."""
    lines: list[str] = []
    is_open = False  # the last line goes on
    for line in inspect.cleandoc(text).splitlines():
        continues = bool(line) and not line[0].isspace()
        if continues and is_open:
            lines[-1] += f" {line}"
        else:
            lines.append(line)
        is_open = continues and not line.startswith("[bold]")
    return "\n".join(lines)


def _show_plainly(params: list[Any]) -> list[Any]:
    """Takes what says nothing from the table of options: the type of a flag, and a default that the text has."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
        if param.metavar in COMMAND_ARGUMENTS:
            param.display_type_rich = lambda ctx: ""
        if "Default: " in (getattr(param, "help", None) or ""):
            param.show_default = False
    return params


class Command(TyperCommand):
    """A command whose help reads as this module's first lines say."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.help = paragraphs(self.help or "")

    def get_params(self, ctx: Any) -> list[Any]:
        return _show_plainly(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As typer's, but for arguments that say themselves how often they may come: "CMD..." """
        pieces = super().collect_usage_pieces(ctx)
        plain = {"{CMD...}...": "CMD...", "[[CMD...]]...": "[CMD...]", "[[CODEC]]": "[CODEC]"}
        return [plain.get(piece, piece) for piece in pieces]


class Group(TyperGroup):
    """A group of commands that prints its help where none is given, and then exits with 2."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.help = paragraphs(self.help or "")

    def get_params(self, ctx: Any) -> list[Any]:
        return _show_plainly(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args and not ctx.resilient_parsing:
            if text := ctx.get_help():  # "" where it was printed already, by rich
                typer.echo(text)
            ctx.exit(MISUSE)
        return super().parse_args(ctx, args)


def public_commands(context: Any) -> list[str]:
    """Names the commands of a group that its help shows; none for what is no group."""
    commands = getattr(context.command, "commands", {})
    return [name for name, command in commands.items() if not command.hidden]


def public_options(context: Any) -> list[str]:
    """Names the options of a command that its help shows, short forms too."""
    shown = [p for p in context.command.get_params(context) if not getattr(p, "hidden", False)]
    return [name for param in shown for name in (*param.opts, *param.secondary_opts) if name.startswith("-")]
