"""The text: Debian's fortunes, or Python's own sources where they are missing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

FORTUNES = Path("/usr/share/games/fortunes")
ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))
"""What is left of a text: other characters are dropped, tabs become spaces."""
WINDOW = 64
"""Characters that the network sees at a time."""
_HELD_OUT = 20
"""Of so many pieces of text, one is for validation."""


@dataclass(frozen=True)
class Text:
    """Windows are (count, WINDOW + 1) int64: indices into ALPHABET; the last of a window is the next one's first."""

    name: str
    train: torch.Tensor
    validation: torch.Tensor


def load(limit: int | None = None, folder: Path = FORTUNES) -> Text:
    """Loads every fortune file in folder; one fortune in 20 is for validation. Without them, Python's sources.

    Args:
        limit: keep only so many training windows, the first ones; None: all.
    """
    if folder.is_dir():
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.suffix)
        pieces = [piece for path in files for piece in _read(path).split("\n%\n")]
        name = "fortunes"
    else:
        pieces = [_read(path) for path in sorted(Path(os.__file__).parent.glob("*.py"))]
        name = "python-sources"
    held_out = pieces[::_HELD_OUT]
    kept = [piece for i, piece in enumerate(pieces) if i % _HELD_OUT]
    return Text(name, _windows(kept)[:limit], _windows(held_out))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore").replace("\t", " ")


def _windows(pieces: list[str]) -> torch.Tensor:
    table = np.full(128, -1)
    table[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    raw = np.frombuffer("\n\n".join(pieces).encode("ascii", "ignore"), dtype=np.uint8)
    indices = table[raw]
    indices = indices[indices >= 0]
    count = (len(indices) - 1) // WINDOW
    starts = np.arange(count)[:, None] * WINDOW
    return torch.from_numpy(indices[starts + np.arange(WINDOW + 1)])
