"""The tiny transformer of experiments/char_lm, trained by two workers for 40 steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gradwire.launch.supervisor import run_job

TRAIN = Path(__file__).resolve().parents[2] / "experiments" / "char_lm" / "train.py"
TINY = ["--network", "tiny", "--batch-size", "8", "--limit", "320", "--num-epochs", "2"]


def train(folder: Path, *flags: str) -> dict[str, Any]:
    """Trains it with further flags; returns rank 0's record."""
    path, lines = folder / "record.json", []
    result = run_job(
        [sys.executable, str(TRAIN), *TINY, "--kv-store", "allreduce", "--json", str(path), *flags],
        workers=2,
        servers=0,
        output=lambda line: lines.append(f"{line.role} {line.rank}: {line.text}"),
        report=lines.append,
        timeout=300,
    )
    assert result.exit_code == 0, "\n".join(lines)
    record: dict[str, Any] = json.loads(path.read_text())
    return record
