"""Commands that the documentation shows, and that no test runs, are ones that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from gradwire import cli
from python.docs_blocks import ROOT, blocks, pages

NAMES = [str(page.relative_to(ROOT)) for page in pages()]
IN_TEXT = re.compile(r"`gradwire ([a-z][^`]*)`")
IN_BLOCKS = re.compile(r"^(?:\w+=\S+ )*gradwire ([a-z].*)$", re.MULTILINE)
# What a shell reads itself, and three dots for more words.
OF_THE_SHELL = re.compile(r"\s(?:[|&;<>]|\.\.\.|…).*")
INCOMPLETE = ("MissingParameter", "BadOptionUsage")  # click's errors of a command that a text only mentions


def commands(text: str) -> Iterator[list[str]]:
    """Yields the words of each command of a page, after `gradwire`."""
    found = IN_TEXT.findall(text)
    for block in blocks(text):
        if block.language == "sh" and not block.is_run:
            found += IN_BLOCKS.findall(block.code.replace("\\\n", " "))
    for command in found:
        words = shlex.split(OF_THE_SHELL.sub("", command), comments=True)
        yield ["1" if re.fullmatch("[A-Z]", word) else word for word in words]


def fault(words: list[str]) -> str | None:
    """Says why the command line refuses a command, which is not run. None: it takes it, or more of it."""
    command: Any = typer.main.get_command(cli.app)
    while words and words[0] in getattr(command, "commands", ()):
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands"):
        return f"there is no command {words[0]}" if words else None
    try:
        context = command.make_context(command.name, [*words])  # it empties the list
    except typer.Exit:  # of --help
        return None
    except cli.CommandLineError as error:
        if type(error).__name__ not in INCOMPLETE:
            return str(error.format_message())
        context = command.make_context(command.name, words, resilient_parsing=True)
    for param in command.params:
        value = str(context.params.get(param.name))
        if param.opts[0].startswith("-") and re.fullmatch("[A-Z]{2,}", value) and value != param.metavar:
            return f"{param.opts[-1]} takes {param.metavar}, not {value}"
    if context.params.get("hosts") and context.params["launcher"] == "local":
        return "-H needs --launcher ssh or mpi"
    return None


@pytest.mark.parametrize("name", NAMES)
def test_commands_are_taken(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # options that name files look at their folders
    text = (ROOT / name).read_text(encoding="utf-8")
    faults = [f"gradwire {shlex.join(words)}: {why}" for words in commands(text) if (why := fault(words))]
    assert not faults, "\n".join(faults)


def test_planted_faults_are_found() -> None:
    page = """
| `gradwire run -n 2 --encrypt-all true` | `gradwire run -n 4 -H a:2,b:2 python train.py` |
| `gradwire run --timeline FOLDER` | `gradwire run -n 2 --timeline FILE true` |
| `gradwire run --timeline`, `gradwire run -s S ...` | `gradwire stat` |

```sh notest: needs two machines
GRADWIRE_STREAMS=2 gradwire bench allreduce -n 2 \\
  --codecs int8 > out  # slow
```
"""
    found = [why and re.split(r" \(| Did", why)[0] for why in map(fault, commands(page))]
    assert found == [
        "No such option: --encrypt-all",
        "-H needs --launcher ssh or mpi",
        "--timeline takes FILE, not FOLDER",
        None,
        None,
        None,
        "there is no command stat",
        "No such option: --codecs",
    ]
