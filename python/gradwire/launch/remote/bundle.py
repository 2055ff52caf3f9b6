"""Programs for machines that may not have gradwire: a module and its dependencies as one text."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from gradwire.launch import process_session
from gradwire.launch.remote import supervised_process

_NEEDED = (process_session, supervised_process)  # each after those that it needs itself


def program(module: ModuleType, **values: Any) -> str:
    """Returns a Python program that runs module as `__main__`, with globals of these names and values."""
    needed = [(each.__name__, inspect.getsource(each)) for each in _NEEDED]
    names = {"__name__": "__main__", **values}
    return (
        "import sys, types\n"
        f"for name, source in {needed!r}:\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "    exec(source, sys.modules[name].__dict__)\n"
        f"exec({inspect.getsource(module)!r}, {names!r})\n"
    )
