"""Reads and writes what people type: sizes ("64KiB", "4MB"), durations ("500ms", "2min"), rates ("100mbit").

KB, MB, GB are powers of 1000, and KiB, MiB, GiB of 1024. Rates are bits per second, as `tc` writes them.
"""

from __future__ import annotations

import math
import re

_SIZES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_DURATIONS = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}
_LONGEST = (
    10 * 365 * 24 * 3600
)  # seconds; clocks of the C++ core and of the system take more, but not without end
_LARGEST = 2**60  # bytes; more fits in no machine, and in no 64 bits once it is multiplied
_RATES = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_PER_SECOND = re.compile(r"(?:bit/s|bits/s|bits|bps)\s*$", re.IGNORECASE)
_BYTES = re.compile(r"B(?!IT)")
_QUANTITY = re.compile(r"\s*(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)


def _quantity(text: str, units: dict[str, float] | dict[str, int], expected: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} is not {expected}")
    value = float(match[1]) * units[match[2].lower()]
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not {expected}")
    return value


def parse_size(text: str) -> int:
    """Returns bytes. A plain number is bytes.

    Raises: ValueError: not a size, not a whole number of bytes, or above 2^60.
    """
    expected = "a size: expected a number of bytes, or one with KB, MB, GB, KiB, MiB or GiB, such as 64KiB"
    value = _quantity(text, _SIZES, expected)
    if value != math.floor(value):
        raise ValueError(f"{text!r} is not {expected}")
    if value > _LARGEST:
        raise ValueError(f"{text!r} is too large: expected 1048576TiB (2^60 bytes) or less")
    return int(value)


def parse_duration(text: str) -> float:
    """Returns seconds. A plain number is seconds.

    Raises: ValueError: not a duration, or one above ten years.
    """
    expected = "a duration: expected a number of seconds, or one with us, ms, s, min or h, such as 500ms"
    seconds = _quantity(text, _DURATIONS, expected)
    if seconds > _LONGEST:
        raise ValueError(f"{text!r} is too long: expected 87600h (ten years) or less")
    return seconds


def parse_rate(text: str) -> int:
    """Returns bits per second. The unit is required: bytes and bits are too easily confused.

    Raises: ValueError: not a rate, or zero.
    """
    expected = "a rate: expected a number with kbit, mbit or gbit, such as 100mbit"
    if _BYTES.search(text):
        raise ValueError(f"{text!r} is not {expected}; a rate counts bits, not bytes")
    value = _quantity(_PER_SECOND.sub("bit", text), _RATES, expected)
    if value < 1:
        raise ValueError(f"{text!r} is not {expected}")
    return int(value)


def _format(value: float, units: list[tuple[float, str]]) -> str:
    """Writes value in the largest unit that leaves at least 1, with three significant digits."""
    scale, unit = next((row for row in units if abs(value) >= row[0]), units[-1])
    return f"{_digits(value / scale, 3)} {unit}"


def _digits(value: float, count: int) -> str:
    """Writes a number with so many significant digits, or all those before its point."""
    if value == 0:
        return "0"
    decimals = max(0, count - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_bytes(value: float) -> str:
    """Writes 12_300_000 as "12.3 MB"."""
    return _format(value, [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1, "B")])


def format_duration(seconds: float) -> str:
    """Writes 0.0123 as "12.3 ms", 90 as "1.5 min"."""
    return _format(seconds, [(3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "us")])


def format_share(share: float) -> str:
    """Writes 0.987 as "98.7", per cent without their sign; below 1 %, two digits."""
    per_cent = 100 * share
    return f"{per_cent:.1f}" if per_cent >= 0.95 else _digits(per_cent, 2)


def format_rate(bits_per_second: float) -> str:
    """Writes 100_000_000 as "100mbit", the form that parse_rate and `tc` read."""
    return _format(bits_per_second, [(1e9, "gbit"), (1e6, "mbit"), (1e3, "kbit"), (1, "bit")]).replace(
        " ", ""
    )
