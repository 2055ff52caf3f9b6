"""Callbacks of options that take a rate, a time or a size. What cannot be read is refused before the work begins, and
the error names the option."""

from __future__ import annotations

from collections.abc import Callable

import typer

from gradwire.settings.units import parse_duration, parse_rate, parse_size


def check_rate(text: str | None) -> str | None:
    return _check(text, parse_rate)


def check_duration(text: str | None) -> str | None:
    return _check(text, parse_duration)


def check_size(text: str | None) -> str | None:
    return _check(text, parse_size)


def _check(text: str | None, parse: Callable[[str], float]) -> str | None:
    if text is not None:
        try:
            parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return text
