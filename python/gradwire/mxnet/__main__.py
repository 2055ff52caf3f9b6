"""Runs a script that was written for MXNet's own stores on gradwire's, unchanged.

gradwire run -n 2 -s 2 python -m gradwire.mxnet train_mnist.py --kv-store dist_sync --gc-type 2bit
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import gradwire.mxnet


def main() -> None:
    """Does what python does with SCRIPT and its arguments, after patch()."""
    if len(sys.argv) < 2:
        print("usage: python -m gradwire.mxnet SCRIPT [ARGUMENT ...]", file=sys.stderr)
        sys.exit(2)
    gradwire.mxnet.patch()
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
