"""compression="auto" in a real training: two processes, their own link, the arm that `gradwire ab` would give."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from gradwire.launch.supervisor import run_job

TRAIN = Path(__file__).resolve().parents[2] / "experiments" / "char_lm" / "train.py"
TINY = "--network tiny --batch-size 8 --limit 480 --num-epochs 1"


@pytest.mark.parametrize(
    ("store", "servers", "flags", "env"),
    [
        ("allreduce", 0, ["--gc-type", "auto", "--gc-budget", "5 points"], {}),
        ("dist_sync", 1, ["--overlap-step"], {"GRADWIRE_COMPRESSION": "auto:budget=5 points"}),
    ],
)
def test_a_training_is_told_what_was_chosen_for_it(
    tmp_path: Path, store: str, servers: int, flags: list[str], env: dict[str, str]
) -> None:
    record, lines = tmp_path / "record.json", []
    command = [sys.executable, str(TRAIN), *TINY.split(), "--kv-store", store, "--json", str(record), *flags]
    result = run_job(
        command,
        workers=2,
        servers=servers,
        env=env,
        output=lambda line: lines.append(line.text),
        timeout=300,
    )
    assert result.exit_code == 0, "\n".join(lines)
    done = json.loads(record.read_text())
    assert done["steps"] == 30
    assert math.isfinite(done["loss"])
    assert not done["momentum_correction"]  # of the codecs that are chosen none needs it
    chosen = done["decisions"][0]
    assert (chosen["event"], chosen["step"]) == ("chosen", 20)
    assert chosen["link"]["bytes_per_second"] > 0
    assert set(chosen["predicted_baselines"]) == {"none", "fp16"}
    said = [line for line in lines if "compression auto, step 20: a link of" in line]
    assert len(said) == 1  # rank 0 alone


def test_a_budget_needs_something_to_choose() -> None:
    command = [sys.executable, str(TRAIN), "--gc-type", "2bit", "--gc-budget", "1 points"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "give --gc-type auto, or leave the budget out" in done.stderr
