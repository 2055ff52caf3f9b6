"""Becomes a program under MXNet's Python, with this gradwire: python mxnet_exec.py WORD ..., as python WORD ..."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from integration.mxnet_environment import environment, mxnet_python

if __name__ == "__main__":
    python = mxnet_python()
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("TEST_FOLDER")))
    os.execve(python, [str(python), *sys.argv[1:]], environment(folder))
