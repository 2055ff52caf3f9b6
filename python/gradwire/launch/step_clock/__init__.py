"""The start-up code of a profiled or timed process; see sitecustomize.py."""

from __future__ import annotations

import os
from pathlib import Path


def python_path() -> str:
    """Returns the PYTHONPATH of a process that starts with the clock: the clock's folder, then this process's."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
