"""Runs a script that imports Horovod on gradwire, unchanged:

gradwire run -n 4 python -m gradwire.horovod.run script.py ARGUMENTS
gradwire run -n 4 python -m gradwire.horovod.run -m MODULE ARGUMENTS
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from gradwire.horovod import shim

_USAGE = "usage: python -m gradwire.horovod.run [-m MODULE | SCRIPT] [ARGUMENTS ...]"


def main() -> None:
    arguments = sys.argv[1:]
    wants_help = arguments[:1] in (["-h"], ["--help"])
    if wants_help or arguments in ([], ["-m"]):
        print(f"{_USAGE}\n\n{__doc__}", file=sys.stdout if wants_help else sys.stderr)
        sys.exit(0 if wants_help else 2)
    shim.install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
