"""The committed stub of the extension is what the extension says of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gradwire


def test_committed_stub_is_the_extensions(tmp_path: Path) -> None:
    made = tmp_path / "_core.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "gradwire._core", "-o", made], check=True
    )
    committed = Path(gradwire.__file__).parent / "_core.pyi"
    advice = (
        f"python -m nanobind.stubgen -m gradwire._core -o {committed.name}, in python/gradwire, and commit it"
    )
    assert committed.read_text() == made.read_text(), f"the bindings changed: {advice}"
