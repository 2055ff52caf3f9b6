"""Settings that all workers of a job must have alike: what a worker that is added to a running job says of its own, and
what it is to be given."""

from __future__ import annotations

from gradwire.settings.definitions import DEFINITIONS, Definition, Settings

__all__ = ["lines", "to_be_given"]

_NAMES = ("partition_bytes", "bigarray_bound", "fusion_bytes", "compression", "reply")


def _line(definition: Definition, values: Settings) -> str:
    value = getattr(values, definition.name)
    return f"{definition.variable}={'' if value is None else value}"  # empty is as if unset


def lines(values: Settings) -> list[str]:
    """GRADWIRE_PARTITION_BYTES=1048576, ...: all of them, in one order."""
    return [_line(definition, values) for definition in DEFINITIONS if definition.name in _NAMES]


def to_be_given(values: Settings) -> list[str]:
    """Those that a worker does not have by itself."""
    return [line for line in lines(values) if line not in lines(Settings())]
