"""Callbacks of options that take a rate, a time, a size or another text to be read. What cannot be read is refused
before the work begins, and the error names the option."""

from __future__ import annotations

from collections.abc import Callable

import typer

from gradwire.settings.units import parse_duration, parse_rate, parse_size


def checked_by(parse: Callable[[str], object]) -> Callable[[str | None], str | None]:
    """Makes the callback of an option whose text parse() reads later: an error there would not name the option."""

    def check(text: str | None) -> str | None:
        if text is not None:
            try:
                parse(text)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
        return text

    return check


check_rate = checked_by(parse_rate)
check_duration = checked_by(parse_duration)
check_size = checked_by(parse_size)
