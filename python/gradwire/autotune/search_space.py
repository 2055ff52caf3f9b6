"""The box that is searched: which settings, and which values of each. The defaults are in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from gradwire.settings.cores import default_codec_threads, usable_cores
from gradwire.settings.definitions import DEFINITIONS, PREFIX
from gradwire.settings.units import format_bytes

Setting = tuple[int, ...]  # a value for each knob of a box, in their order

_KIB, _MIB = 2**10, 2**20
_MOST_THREADS = 16
_DEFAULTS = {definition.name: definition.default for definition in DEFINITIONS}


@dataclass(frozen=True)
class Knob:
    """One setting, by its name in settings/definitions.py, and its values in an order in which neighbours do
    nearly the same."""

    name: str
    values: tuple[int, ...]
    default: int
    unit: Literal["bytes", "count"]

    def __post_init__(self) -> None:
        if self.default not in self.values or len(set(self.values)) != len(self.values):
            raise ValueError(
                f"tune: {self.name} has the values {self.values}: expected each once, and the default {self.default} "
                "among them"
            )

    def text(self, value: int) -> str:
        """Writes a value for people: "4.19 MB"."""
        return format_bytes(value) if self.unit == "bytes" else str(value)


@dataclass(frozen=True)
class Box:
    knobs: tuple[Knob, ...]

    @property
    def default(self) -> Setting:
        return tuple(knob.default for knob in self.knobs)

    @property
    def size(self) -> int:
        """How many settings there are."""
        product = 1
        for knob in self.knobs:
            product *= len(knob.values)
        return product

    def __contains__(self, setting: object) -> bool:
        if not isinstance(setting, tuple) or len(setting) != len(self.knobs):
            return False
        return all(value in knob.values for knob, value in zip(self.knobs, setting, strict=True))

    def neighbour(self, setting: Setting, index: int, by: int) -> Setting | None:
        """Returns the setting whose index-th value lies `by` places further; None: the box ends before."""
        knob = self.knobs[index]
        place = knob.values.index(setting[index]) + by
        if not 0 <= place < len(knob.values):
            return None
        return (*setting[:index], knob.values[place], *setting[index + 1 :])

    def of(self, values: Mapping[str, int]) -> Setting:
        """Returns the setting with these values, and defaults for the rest.

        Raises: ValueError: it is not in the box.
        """
        setting = tuple(values.get(knob.name, knob.default) for knob in self.knobs)
        unknown = values.keys() - {knob.name for knob in self.knobs}
        if unknown or setting not in self:
            raise ValueError(f"tune: {dict(values)} is not in the box: {self.record()}")
        return setting

    def changes(self, setting: Setting) -> dict[str, int]:
        """Returns what differs from the defaults, by name."""
        return {
            knob.name: value for knob, value in zip(self.knobs, setting, strict=True) if value != knob.default
        }

    def environment(self, setting: Setting) -> dict[str, str]:
        """Returns the variables of a job that runs under the setting, defaults included."""
        return {
            PREFIX + knob.name.upper(): str(value) for knob, value in zip(self.knobs, setting, strict=True)
        }

    def text(self, setting: Setting) -> str:
        """Writes for people what differs from the defaults."""
        texts = [
            f"{knob.name} {knob.text(value)}"
            for knob, value in zip(self.knobs, setting, strict=True)
            if value != knob.default
        ]
        return ", ".join(texts) or "defaults"

    def record(self) -> dict[str, list[int]]:
        """Returns each knob's values, by name."""
        return {knob.name: list(knob.values) for knob in self.knobs}


def of_this_machine(fixed: Collection[str] = (), cores: int | None = None) -> Box:
    """Returns the box of a job here.

    Args:
        fixed: names of settings to leave out, since somebody has chosen them.
        cores: by which the engine chooses its codec threads. Default: those of this process.

    Raises: ValueError: nothing is left to be searched.
    """
    sizes = {  # those that matter most come first: they are tried first
        "credit_bytes": (64 * _KIB, 256 * _KIB, _MIB, 4 * _MIB, 16 * _MIB),
        "partition_bytes": (256 * _KIB, _MIB, 4 * _MIB, 16 * _MIB),
        "fusion_bytes": (0, 64 * _KIB, 256 * _KIB, _MIB, 4 * _MIB),
    }
    knobs = [Knob(name, values, _DEFAULTS[name], "bytes") for name, values in sizes.items()]
    threads = _thread_counts(cores or usable_cores())
    knobs.append(Knob("codec_threads", threads, _DEFAULTS["codec_threads"], "count"))
    knobs.append(Knob("streams", (1, 2, 4), _DEFAULTS["streams"], "count"))
    searched = tuple(knob for knob in knobs if knob.name not in fixed and len(knob.values) > 1)
    if not searched:
        raise ValueError(
            f"tune: {', '.join(sorted(fixed))} are set in the environment, and nothing else is tuned: unset at least "
            "one"
        )
    return Box(searched)


def _thread_counts(cores: int) -> tuple[int, ...]:
    """Powers of two up to the cores. 0, by which the engine chooses, stands in the place of what it chooses."""
    chosen = default_codec_threads(cores)
    counts = {1 << power for power in range(_MOST_THREADS.bit_length()) if 1 << power <= cores} | {chosen}
    return tuple(0 if count == chosen else count for count in sorted(counts))
