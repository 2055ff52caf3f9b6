"""Writes result files whole or not at all: a full disk, or an end in between, leaves what stood there before."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes text beside path, and then puts it in path's place.

    What UTF-8 lacks, such as an odd byte of a file's name, becomes "?". Links, devices and pipes, and a file in
    a folder in which no other can be made, are written in place.

    Raises: OSError: it cannot be written.
    """
    coded = text.encode("utf-8", errors="replace")
    is_plain = path.is_file() or not path.exists()
    if path.is_symlink() or not is_plain or not os.access(path.parent, os.W_OK):
        path.write_bytes(coded)
        return
    draft = path.with_name(f".gradwire-{os.getpid()}.unfinished")
    try:
        draft.write_bytes(coded)
        if path.exists():
            shutil.copymode(path, draft)
        os.replace(draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
