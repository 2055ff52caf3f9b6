"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import typer.main

_BOLD = re.compile(r"\[bold\](.*?)\[/bold\]")
_MARKUP = re.compile(r"\[/?(?:bold|dim|italic|cyan|green|yellow|red)[^\]]*\]")


def all_commands() -> str:
    """Returns the Markdown of every command: what it does, its options, their values and defaults."""
    from gradwire import cli

    return "\n\n".join(_sections("gradwire", typer.main.get_command(cli.app)))


def _sections(name: str, command: Any) -> Iterator[str]:
    """Yields a group's commands by panel, or a command itself."""
    subcommands = [(n, c) for n, c in getattr(command, "commands", {}).items() if not c.hidden]
    if name == "gradwire":
        yield _table_of_commands(subcommands)
    else:
        yield _section(name, command)
    for subname, subcommand in subcommands:
        yield from _sections(f"{name} {subname}", subcommand)


def _table_of_commands(commands: Sequence[tuple[str, Any]]) -> str:
    rows = []
    for panel in dict.fromkeys(_panel(command) for _, command in commands):
        for name, command in commands:
            if _panel(command) == panel:
                first = re.split(r"(?<=[.:])\s", plain(_help(command)), maxsplit=1)[0]
                rows.append(f"| {panel} | [`gradwire {name}`](#gradwire-{name}) | {cell(first)} |")
    return "\n".join(["| Group | Command | What it does |", "|---|---|---|", *rows])


def _panel(command: Any) -> str:
    found = getattr(command, "rich_help_panel", None)
    return found if isinstance(found, str) else "Other"


def _help(command: Any) -> str:
    return inspect.cleandoc(command.help or "")


def _section(name: str, command: Any) -> str:
    level = "##" if name.count(" ") == 1 else "###"
    parts = [f"{level} {name} {{ #{name.replace(' ', '-')} }}"]
    if not getattr(command, "commands", None):
        parts.append(f"```text\n{usage(name, command)}\n```")
    parts.append(markdown(_help(command)))
    parts.extend(_options(command))
    return "\n\n".join(part for part in parts if part)


def usage(name: str, command: Any) -> str:
    """Returns a command's line of usage."""
    arguments = [param for param in command.params if not is_option(param)]
    required = [param for param in command.params if is_option(param) and param.required]
    words = [f"{param.opts[0]} {value_name(param)}" for param in required]
    words += ["[OPTIONS]"]
    words += [_argument_name(p) if p.required else f"[{_argument_name(p)}]" for p in arguments]
    return " ".join([name, *words])


def _argument_name(param: Any) -> str:
    return param.metavar or str(param.name).upper()


def is_option(param: Any) -> bool:
    """Whether a parameter is an option; else it is an argument."""
    return str(param.opts[0]).startswith("-")


def _options(command: Any) -> Iterator[str]:
    """Yields a command's arguments and options, a table for each group of options."""
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    arguments = [param for param in shown if not is_option(param)]
    options = [param for param in shown if is_option(param)]
    panels = dict.fromkeys(getattr(param, "rich_help_panel", None) for param in options)
    if arguments:
        yield _table("Arguments", arguments)
    for panel in sorted(panels, key=lambda panel: panel is not None):
        of_panel = [param for param in options if getattr(param, "rich_help_panel", None) == panel]
        yield _table(panel or "Options", of_panel)


def _table(title: str, params: Sequence[Any]) -> str:
    rows = [
        f"| {names(param)} | {values(param)} | {default(param)} | {cell(meaning(param))} |"
        for param in params
    ]
    return "\n".join([f"| {title} | Value | Default | Meaning |", "|---|---|---|---|", *rows])


def names(param: Any) -> str:
    """Returns an option's names, as code."""
    if not is_option(param):
        return f"`{_argument_name(param)}`"
    return ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])


def annotation(param: Any) -> Any:
    """Returns the Python type of a parameter, without None and list."""
    described = getattr(param, "type_descriptor", None)
    kind = described.annotation if described is not None else None
    while kind is not None and typing.get_origin(kind) is not typing.Literal and typing.get_args(kind):
        kind = next(each for each in typing.get_args(kind) if each is not type(None))
    return kind


def value_name(param: Any) -> str:
    """Returns the placeholder of an option's value."""
    kind = annotation(param)
    if param.metavar:
        return str(param.metavar)
    return {int: "N", float: "X", str: "TEXT"}.get(
        kind, "PATH" if getattr(kind, "__name__", "") == "Path" else "VALUE"
    )


def values(param: Any) -> str:
    """Returns what an option takes."""
    if getattr(param, "is_flag", False):
        return "flag"
    kind = annotation(param)
    words = typing.get_args(kind) or getattr(getattr(param, "type", None), "choices", ())
    if words:
        return ", ".join(f"`{word}`" for word in words)
    text = f"`{value_name(param)}`"
    least, most = getattr(param, "min", None), getattr(param, "max", None)
    if least is not None and most is not None:
        text += f", {least} to {most}"
    elif least is not None:
        text += f", {least} or more"
    return text + (", repeatable" if getattr(param, "multiple", False) else "")


def default(param: Any) -> str:
    """Returns an option's default; where its help says it, that counts."""
    if param.required:
        return "required"
    said = re.search(r"Default: (.*?)\.?$", getattr(param, "help", None) or "", re.DOTALL)
    if said:
        return cell(plain(said[1]))
    value = param.default
    if callable(value):
        value = None
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value}`"


def meaning(param: Any) -> str:
    """Returns an option's help, without its default."""
    text = plain(getattr(param, "help", None) or "")
    return re.sub(r"\s*Default: .*$", "", text, flags=re.DOTALL)


def plain(text: str) -> str:
    """Returns text without the terminal's markup, in one line."""
    return re.sub(r"\s+", " ", _MARKUP.sub("", _BOLD.sub(r"**\1**", text)).replace("\\[", "[")).strip()


def cell(text: str) -> str:
    """Returns text as a table's cell: words that are code as code."""
    text = text.replace("|", "\\|").replace("<", "&lt;")
    return "`".join(
        part if at % 2 else re.sub(r"(?<![\w`])(GRADWIRE_\w+|--[a-z][\w-]*)", r"`\1`", part)
        for at, part in enumerate(text.split("`"))
    )


def markdown(text: str) -> str:
    """Returns a command's help as Markdown: paragraphs, and indented lines as a block of shell."""
    blocks: list[list[str]] = []
    code = False
    for line in text.splitlines():
        indented = line.startswith("  ")
        if not line.strip():
            if blocks and not code:
                blocks.append([])
            continue
        if indented != code or not blocks:
            blocks.append(["```sh"] if indented else [])
            code = indented
        blocks[-1].append(line[2:] if indented else line)
    done = []
    for block in filter(None, blocks):
        if block[0] == "```sh":
            done.append("\n".join([*block, "```"]))
        else:
            paragraph = _MARKUP.sub("", _BOLD.sub(r"**\1**", " ".join(block))).replace("\\[", "[")
            done.append(cell(paragraph))
    return "\n\n".join(done)
