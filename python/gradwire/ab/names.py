"""What an arm and a link are called in text. Records keep the arm as it was given."""

from __future__ import annotations

from gradwire.ab.experiment import UNSHAPED
from gradwire.settings.units import parse_rate


def arm_name(arm: str) -> str:
    """Returns "no compression" for the codec none, any other arm as it is."""
    return "no compression" if arm == "none" else arm


def sentence(text: str) -> str:
    """Returns text with a capital at its beginning, where that is "no compression"; codecs keep their case."""
    return "N" + text[1:] if text.startswith("no compression") else text


def link_name(link: str) -> str:
    """Returns "100 Mbit/s" for 100mbit."""
    if link == UNSHAPED:
        return link
    try:
        rate = parse_rate(link)
    except ValueError:
        return link
    unit, name = (1e9, "Gbit/s") if rate >= 1e9 else (1e6, "Mbit/s") if rate >= 1e6 else (1e3, "kbit/s")
    return f"{float(f'{rate / unit:.3g}'):g} {name}"  # 1000, not 1e+03
