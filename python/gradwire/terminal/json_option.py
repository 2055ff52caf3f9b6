"""The option --json of every command that writes a record. Output files are checked before the work begins."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from gradwire.terminal.whole_file import write_whole


def check_folder(folder: Path) -> None:
    """Makes a folder, if it is not there, and writes and removes a file in it: permissions, a read-only file system and
    a full disk show in no other way.

    Raises: OSError: it cannot be made, or nothing can be written there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder, prefix=".gradwire-") as file:
        file.write(b"x" * 4096)


def check_output(file: Path | None) -> Path | None:
    """Checks that the file can be written, before hours of work end in a record that cannot be."""
    if file is None:
        return None
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder: expected a file")
    if not file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.parent}: make it first")
    if file.exists() and not os.access(file, os.W_OK):
        raise typer.BadParameter(f"{file} cannot be written here")
    if not file.exists():
        try:
            check_folder(file.parent)
        except OSError as error:
            raise typer.BadParameter(f"{file} cannot be written here ({error.strerror})") from None
    return file


def check_report(folder: Path | None) -> Path | None:
    """Checks that files can be written in a folder, before hours of work end without a report. A folder that does not
    exist is made and removed again, so that a command that is refused later leaves none behind."""
    if folder is None:
        return None
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        check_folder(folder)
    except OSError as error:
        raise typer.BadParameter(
            f"{folder} cannot be written ({error.strerror}): name another folder"
        ) from None
    with contextlib.suppress(OSError):  # somebody else has put something there meanwhile: it stays
        for path in made:
            path.rmdir()
    return folder


def _check_file(file: str | None) -> str | None:
    if file is not None and file != "-":
        if Path(file).is_dir():
            raise typer.BadParameter(f"{file} is a folder: expected a file, or - for stdout")
        check_output(Path(file))
    return file


def _check_new_file(file: str | None) -> str | None:
    """As check_output(), and there is none yet: others may have one open, or may read it."""
    if file is not None and file != "-" and os.path.lexists(file):
        raise typer.BadParameter(
            f"{file} is there already: name a new file, which you alone will be able to read"
        )
    return _check_file(file)


JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write a JSON record to FILE. With -, stdout gets the record and nothing else. Default: no record.",
        callback=_check_file,
    ),
]
# Of a command whose record is a secret.
SecretJsonOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write a JSON record to FILE, which must be new and only you can read. With -, stdout gets the record "
        "and nothing else. Default: no record.",
        callback=_check_new_file,
    ),
]


def write_json(record: Any, file: str | None) -> None:
    """Writes a command's record where --json says.

    Raises: OSError: it cannot be written any more; names the file.
    """
    if file == "-":
        sys.stdout.write(_text_of(record))
    elif file is not None:
        try:
            write_whole(Path(file), _text_of(record))
        except OSError as error:
            raise OSError(f"--json {file} cannot be written ({error.strerror})") from error


def write_secret_json(record: Any, file: str | None) -> None:
    """As write_json, for a SecretJsonOption: the file is made here, and nobody but its owner may ever read it."""
    if file is None or file == "-":
        return write_json(record, file)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as made:
        made.write(_text_of(record))
    return None


def _text_of(record: Any) -> str:
    return json.dumps(record, indent=2, allow_nan=False) + "\n"
