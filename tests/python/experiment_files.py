"""Files that are in no package: scripts, and those of experiments, which import each other by their names."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


def load(file: Path) -> ModuleType:
    """Imports one file, under the name of its folder and its own; again each time."""
    spec = importlib.util.spec_from_file_location(f"{file.parent.name}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@contextmanager
def imported(folder: Path, names: Sequence[str]) -> Iterator[dict[str, ModuleType]]:
    """Imports a folder's files, by name; what other folders have under those names comes back at the end."""
    before = {name: sys.modules.pop(name, None) for name in names}
    sys.path.insert(0, str(folder))
    try:
        yield {name: __import__(name) for name in names}
    finally:
        sys.path.remove(str(folder))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
