"""A file of settings, such as `gradwire tune --json` writes: {"settings": {"partition_bytes": 4194304}, ...}.

The environment wins over it, and it wins over the defaults. `gradwire run --settings FILE` hands it to a whole job.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from gradwire.settings.suggestions import did_you_mean, nearest

# What a launcher says of one process, or of the job; a file is the same for all processes and any job.
NOT_IN_A_FILE = frozenset(
    {"settings", "role", "rank", "num_workers", "num_servers", "scheduler", "master", "host_id", "result"}
    | {"job_key"}
)


def load(path: str | Path, known: Collection[str]) -> dict[str, str]:
    """Reads a file's settings, each as the text that its variable would have held.

    Args:
        known: names of all settings.

    Raises: ValueError: it cannot be read, has no settings, or one that may not stand there; says which.
    """
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:  # no JSON, or no text
        raise ValueError(
            f"the settings file {path} cannot be read ({error}): expected what `gradwire tune --json FILE` writes"
        ) from None
    settings = given.get("settings") if isinstance(given, Mapping) else None
    if not isinstance(settings, Mapping):
        meant = nearest("settings", map(str, given)) if isinstance(given, Mapping) else ""
        instead = f" ({meant!r} is another word)" if meant not in ("", "settings") else ""
        raise ValueError(
            f'the settings file {path} has no settings{instead}: expected an object such as {{"settings": '
            '{"partition_bytes": "4MiB"}}'
        )
    return {name: _text(path, name, value, known) for name, value in settings.items()}


def _text(path: str | Path, name: str, value: object, known: Collection[str]) -> str:
    if name in NOT_IN_A_FILE:
        raise ValueError(
            f"the settings file {path} has {name}, which belongs to one process or one job: leave it out"
        )
    if name not in known:
        meant = did_you_mean(name.lower().removeprefix("gradwire_"), sorted(set(known) - NOT_IN_A_FILE))
        lists = "; `gradwire doctor` lists all: here without GRADWIRE_, in small letters"
        raise ValueError(f"the settings file {path} has {name}, which is not a setting{meant or lists}")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"the settings file {path} has {name}={value!r}: expected text or a number")
    return str(value)
