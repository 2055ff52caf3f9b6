"""Starts a clock in a Python process that `gradwire plan -- CMD` profiles or `gradwire tune` times.

Its folder is on PYTHONPATH. Python imports the first sitecustomize that it finds, so this one also runs the one that it
hides.
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
    from gradwire.settings import definitions as settings

    values = settings.read()
    if importlib.util.find_spec("torch") is None:
        return
    if values.step_profile is not None:
        from gradwire.plan.step_profile import start_clock

        start_clock(values.step_profile)
    if values.step_times is not None and values.rank is not None:
        from gradwire.autotune.step_times import start_timer

        start_timer(values.step_times, values.rank, values.num_workers, values.timed_steps)


_run_the_hidden_one()
_start()
