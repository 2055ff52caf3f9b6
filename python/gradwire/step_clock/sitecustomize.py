"""Starts the step clock in a Python process that `gradwire plan -- CMD` profiles: its folder is on PYTHONPATH.

Python imports the first sitecustomize it finds at start-up; the one that this one hides is run too.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_hidden_one() -> None:
    elsewhere = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _start() -> None:
    from gradwire import settings

    file = settings.read().step_profile
    if file is not None and importlib.util.find_spec("torch") is not None:
        from gradwire.step_profile import start_clock

        start_clock(file)


_run_the_hidden_one()
_start()
