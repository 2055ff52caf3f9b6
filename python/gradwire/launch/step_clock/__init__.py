"""What a profiled or timed process starts with; see sitecustomize.py."""

from __future__ import annotations

import os
from pathlib import Path


def python_path() -> str:
    """Returns the PYTHONPATH of a process that is to start with the clock: this process's, and its folder before."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
