"""Finds out what gradwire has to work with here: `gradwire doctor`."""

from __future__ import annotations

import importlib.metadata


def gradwire_version() -> str:
    """Returns the installed version, or "source" where gradwire is used without being installed."""
    try:
        return importlib.metadata.version("gradwire")
    except importlib.metadata.PackageNotFoundError:
        return "source"
