"""gradwire.integrations on two ranks that torchrun starts, with the frameworks themselves. For each framework one job
runs all cases and leaves a checkpoint, from which a second job goes on.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from integration.processes import HERE, clean_environment
from integration.torch_jobs import case_names, run_cases_by_torchrun, torchrun

FRAMEWORKS = ("accelerate", "lightning", "transformers")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def program_of(framework: str) -> Path:
    return HERE / f"integrations_{framework}_cases.py"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_all_cases_and_a_job_that_goes_on_bit_for_bit(framework: str, tmp_path: Path) -> None:
    first = run_cases_by_torchrun(program_of(framework), tmp_path, OFFLINE)
    text = first.stdout + first.stderr
    assert first.returncode == 0, text
    for name in case_names(program_of(framework)):
        assert first.stdout.count(f"{name} passed") == 2, text
    # The backend and its policy are there, too: they leave models to the integration, and compress others.
    second = subprocess.run(
        torchrun(program_of(framework).name, "resume"),
        capture_output=True,
        text=True,
        timeout=300,
        env=clean_environment(tmp_path, {**OFFLINE, "GRADWIRE_COMPRESSION": "int8"}),
    )
    text = second.stdout + second.stderr
    assert second.returncode == 0, text
    assert second.stdout.count("went on bit for bit") == 2, text


def test_an_absent_framework_is_named_with_how_to_install_it() -> None:
    script = f"""
import importlib, sys
for name in {FRAMEWORKS}:
    sys.modules[name] = None
    try:
        importlib.import_module(f"gradwire.integrations.{{name}}")
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        f"gradwire.integrations.{name} needs the package {name!r}, which is not installed: pip install "
        f"{'transformers accelerate' if name == 'transformers' else name}"
        for name in FRAMEWORKS
    ], done.stderr


def test_gradwire_imports_no_framework() -> None:
    script = (
        "import gradwire, gradwire.integrations, sys; "
        f"print(*{{'torch', *{FRAMEWORKS!r}, 'gradwire.integrations.accelerate'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
