"""The option --json of every command that leaves a record: where it goes, and how it is written there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def _check_file(file: str | None) -> str | None:
    """Looks whether the file can be written, before hours of work end in a record that has no place."""
    if file is None or file == "-":
        return file
    path = Path(file)
    if path.is_dir():
        raise typer.BadParameter(f"{file} is a folder: expected a file, or - for stdout")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}: make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise typer.BadParameter(f"{file} cannot be written here")
    return file


JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Write a JSON record to FILE; - is stdout.", callback=_check_file
    ),
]


def write_json(record: Any, file: str | None) -> None:
    """Writes a command's record where --json says."""
    if file is None:
        return
    text = json.dumps(record, indent=2, allow_nan=False) + "\n"
    if file == "-":
        sys.stdout.write(text)
    else:
        Path(file).write_text(text, encoding="utf-8")
