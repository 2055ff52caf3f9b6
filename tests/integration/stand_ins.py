"""Programs of ours on PATH under the name of a cluster's own, where there is no such cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from integration.processes import HERE, PROGRAMS


def stand_in(name: str, folder: Path) -> dict[str, str]:
    """Puts NAME_here.py on PATH as NAME. Returns the variables under which it is found, and keeps what it knows in
    folder/state."""
    (folder / "bin").mkdir()
    (folder / "state").mkdir()
    program = folder / "bin" / name
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / f"{name}_here.py"} "$@"\n')
    program.chmod(0o755)
    path = f"{folder / 'bin'}:{PROGRAMS}:{os.environ['PATH']}"
    return {"PATH": path, f"{name.upper()}_HERE": str(folder / "state")}
