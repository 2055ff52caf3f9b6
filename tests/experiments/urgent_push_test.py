"""experiments/urgent_push: a short run of it, whole, and its table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from integration.hosts import needs_hosts

RUN = Path(__file__).resolve().parents[2] / "experiments" / "urgent_push" / "run.py"


@needs_hosts
def test_a_short_run(tmp_path: Path) -> None:
    size = ["--bandwidth", "100mbit", "--bytes", "2MB", "--turns", "2", "--rounds", "1"]
    command = [sys.executable, str(RUN), "--folder", str(tmp_path), *size]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (record,) = json.loads((tmp_path / "results.json").read_text())
    assert record["wire_seconds"] == pytest.approx(2e6 * 8 / 95.5e6)
    for arm in ("bounded", "unbounded"):
        rounds = [taken for launched in record["taken"][arm] for taken in launched["bulk"]]
        assert len(rounds) == 2
        assert min(rounds) > record["wire_seconds"] * 0.9, "bulk crossed the link"
    tables = subprocess.run(
        [*command[:4], "--tables"], capture_output=True, text=True, timeout=300, check=True
    )
    assert tables.stdout == done.stdout
