"""Where metrics are written, as GRADWIRE_METRICS gives it: "prometheus:9400,textfile:/var/lib/node_exporter"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradwire.settings.suggestions import nearest

Kind = Literal["prometheus", "textfile", "tensorboard", "opentelemetry"]

FORMS: dict[Kind, str] = {
    "prometheus": "prometheus:PORT or prometheus:HOST:PORT",
    "textfile": "textfile:FOLDER",
    "tensorboard": "tensorboard:FOLDER",
    "opentelemetry": "opentelemetry",
}
LARGEST_PORT = 65_535


@dataclass(frozen=True)
class MetricsTarget:
    """One place for metrics.

    Attributes:
        kind: what is written there.
        folder: of textfile and tensorboard; else empty.
        host: address on which prometheus listens; empty: all interfaces.
        port: of prometheus, of the worker with local rank 0; else 0.
    """

    kind: Kind
    folder: str = ""
    host: str = ""
    port: int = 0


def parse(text: str) -> tuple[MetricsTarget, ...]:
    """Reads targets, separated by commas.

    Raises: ValueError: says what is not valid and what was expected.
    """
    return tuple(_one(part.strip()) for part in text.split(","))


def checked(text: str) -> str:
    """Returns the text as it is.

    Raises: ValueError: as parse().
    """
    parse(text)
    return text


def _one(text: str) -> MetricsTarget:
    name, _, place = text.partition(":")
    kind = next((each for each in FORMS if each == name), None)
    if kind is None:
        near = nearest(name, list(FORMS))
        meant = f"did you mean {near}? " if near else ""
        raise ValueError(f"{text!r} is not valid: {meant}expected {', '.join(FORMS.values())}")
    if kind == "prometheus":
        return _prometheus(text, place)
    if bool(place) != FORMS[kind].endswith(":FOLDER"):
        raise ValueError(f"{text!r} is not valid: expected {FORMS[kind]}")
    return MetricsTarget(kind, folder=place)


def _prometheus(text: str, place: str) -> MetricsTarget:
    host, _, port = place.rpartition(":")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= LARGEST_PORT):
        raise ValueError(
            f"{text!r} is not valid: expected {FORMS['prometheus']}, with a port of 1 to {LARGEST_PORT}"
        )
    return MetricsTarget("prometheus", host=host.strip("[]"), port=int(port))
