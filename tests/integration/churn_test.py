"""Jobs that come and go in one process leave nothing in it: descriptors, threads and memory stay what they were."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from integration.processes import clean_environment, python

WARM_UP = 4  # jobs in which libraries and pools take what they keep


def churn(folder: Path, seconds: float) -> dict[str, np.ndarray]:
    """What the process held after each job, the first ones left out."""
    command = python("churn_worker.py", f"seconds={seconds:g}")
    done = subprocess.run(
        command, env=clean_environment(folder, {}), capture_output=True, text=True, timeout=seconds + 120
    )
    assert done.returncode == 0, done.stderr
    samples = [json.loads(line) for line in done.stdout.splitlines()][WARM_UP:]
    return {name: np.array([sample[name] for sample in samples], float) for name in samples[0]}


def slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Least squares, and half of the 95 % interval (the samples taken as independent)."""
    centred = x - x.mean()
    estimate = float(centred @ y / (centred @ centred))
    rest = y - y.mean() - estimate * centred
    error = float(np.sqrt(rest @ rest / (len(x) - 2) / (centred @ centred)))
    return estimate, 1.96 * error


def test_descriptors_and_threads_do_not_grow(tmp_path: Path) -> None:
    held = churn(tmp_path, seconds=0)
    for name in ("descriptors", "threads"):
        assert held[name].max() == held[name].min(), held[name]


@pytest.mark.soak
def test_thirty_minutes_of_jobs_leave_nothing(tmp_path: Path) -> None:
    held = churn(tmp_path, seconds=1800)
    jobs = np.arange(len(held["seconds"]))
    for name, most in (("descriptors", 0.0), ("threads", 0.0), ("resident_bytes", 4096.0)):
        per_job, half = slope(jobs, held[name])
        print(f"{name}: {per_job:.6g} a job, 95 % interval +- {half:.2g}, over {len(jobs)} jobs")
        assert per_job - half <= most, f"{name} grow by {per_job:.6g} a job (+- {half:.2g})"
