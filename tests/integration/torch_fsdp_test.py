"""FSDP2 with the compressed reduce-scatter: two ranks that torchrun starts, on Gloo. One job
runs all cases.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from integration.torch_jobs import case_names, run_cases_by_torchrun

PROGRAM = Path(__file__).with_name("torch_fsdp_cases.py")


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that metrics are written to."""
    return tmp_path_factory.mktemp("metrics")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, metrics: Path) -> subprocess.CompletedProcess[str]:
    variables = {"GRADWIRE_METRICS": f"textfile:{metrics}"}
    return run_cases_by_torchrun(PROGRAM, tmp_path_factory.mktemp("torch_fsdp"), variables)


@pytest.mark.parametrize("name", case_names(PROGRAM))
def test_two_ranks(name: str, outcome: subprocess.CompletedProcess[str]) -> None:
    assert outcome.stdout.count(f"{name} passed") == 2, outcome.stdout + outcome.stderr


def test_the_job_ends_by_itself(outcome: subprocess.CompletedProcess[str]) -> None:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("ended") == 2


def test_rank_0_says_what_was_saved(outcome: subprocess.CompletedProcess[str]) -> None:
    said = [line for line in outcome.stderr.splitlines() if "compressed: " in line]
    assert len(said) == 1, outcome.stderr
    assert "of gradients were sent as" in said[0]


def test_metrics_have_what_the_sums_did(outcome: subprocess.CompletedProcess[str], metrics: Path) -> None:
    for rank in range(2):
        text = (metrics / f"gradwire-rank-{rank}.prom").read_text(encoding="utf-8")
        lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
        found = {name.partition("{")[0]: float(value) for name, value in lines}
        raw, encoded = found["gradwire_bytes_raw_total"], found["gradwire_bytes_encoded_total"]
        assert raw > encoded > 0, text
        assert found["gradwire_compression_ratio"] == pytest.approx(raw / encoded)
        for name in ("gradwire_codec_seconds_total", "gradwire_exposed_seconds_total"):
            assert found[name] > 0, text
