"""Becomes a program under MXNet's Python, with this gradwire: python mxnet_exec.py WORD ..., as python WORD ...

mxnet_environment.variables() says where both are.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    python = os.environ["TEST_MXNET_PYTHON"]
    path = {"PYTHONPATH": os.environ["TEST_MXNET_PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    os.execve(python, [python, *sys.argv[1:]], {**os.environ, **path})
