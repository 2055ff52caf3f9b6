"""The reference of settings, from their definitions."""

from __future__ import annotations

import typing
from typing import Any

from gradwire.settings.definitions import DEFINITIONS, PREFIX, Definition, Settings

# What a setting is about. The order is that of the page.
TOPICS: dict[str, tuple[str, ...]] = {
    "The job and its processes": (
        *("role", "rank", "local_rank", "num_workers", "num_servers", "scheduler", "master", "interface"),
        *("bind_host", "host_id", "server_program", "settings"),
    ),
    "Compression": ("compression", "reply", "residual_dtype", "code_sums"),
    "Where gradients are summed": (
        *("placement", "payload_bytes", "server_hosts", "hierarchy", "replicas", "staleness_bound"),
        *("overlap_step", "device", "nccl_share_gpu"),
    ),
    "Messages and threads": (
        *("partition_bytes", "bigarray_bound", "fusion_bytes", "credit_bytes", "push_ahead_bytes"),
        *("streams", "ipc", "codec_threads", "server_threads"),
    ),
    "Timeouts and failures": (
        *("rendezvous_timeout", "liveness_timeout", "retry_timeout", "slow_warning", "slow_abort"),
        *("on_failure", "min_workers", "regroup_timeout", "grace_period", "faults"),
    ),
    "Encryption and integrity": ("encrypt", "job_key", "checksum"),
    "Logs, records and measurements": (
        *(
            "log_level",
            "log_format",
            "result",
            "seed",
            "timeline",
            "metrics",
            "metrics_interval",
            "step_profile",
            "step_times",
            "timed_steps",
        ),
    ),
}
_TYPES = typing.get_type_hints(Settings)


def all_settings() -> str:
    """Returns the Markdown of all settings, by topic."""
    by_name = {definition.name: definition for definition in DEFINITIONS}
    sections = []
    for title, names in TOPICS.items():
        found = [_setting(by_name.pop(name)) for name in names if name in by_name]
        sections.append(f"## {title}\n\n" + "\n\n".join(found))
    if by_name:
        sections.append("## Others\n\n" + "\n\n".join(map(_setting, by_name.values())))
    return "\n\n".join(sections)


def _setting(definition: Definition) -> str:
    facts = [("Values", values(definition.name)), ("Default", default(definition))]
    others = [" and ".join(f"`{name}`" for name in alias.variables) for alias in definition.aliases]
    if others:
        facts.append(("Also read from", "; ".join(others)))
    rows = "\n".join(f"<dt>{title}</dt><dd markdown>{text}</dd>" for title, text in facts)
    listing = f'<dl class="facts" markdown>\n{rows}\n</dl>'
    heading = f"### `{definition.variable}` {{ #{definition.variable.lower()} }}"
    return f"{heading}\n\n{sentence(definition.help)}\n\n{listing}"


def sentence(text: str) -> str:
    """Returns a help text as a sentence, its setting names as code."""
    text = text.strip()
    first = text.split(maxsplit=1)[0]
    starts = text if first.endswith(":") or not first.isalpha() else text[0].upper() + text[1:]
    return starts if starts.endswith((".", "!")) else f"{starts}."


def values(name: str) -> str:
    """Returns what a setting may hold, and its unit."""
    kind = next((each for each in typing.get_args(_TYPES[name]) if each is not type(None)), _TYPES[name])
    words = [word for word in typing.get_args(_TYPES[name]) if isinstance(word, str)]
    if words:
        return ", ".join(f"`{word}`" for word in words)
    if kind is float:
        return "a duration: `500ms`, `30s`, `5min`; without a unit, seconds"
    if name.endswith("_bytes"):
        return "a size: `4KiB`, `100MB`; without a unit, bytes"
    return "a whole number" if kind is int else "text"


def default(definition: Definition) -> str:
    """Returns a default with its unit."""
    value: Any = definition.default
    if value is None:
        return "unset"
    if isinstance(value, float):
        return f"`{value:g}s`"
    if definition.name.endswith("_bytes"):
        return f"`{size(value)}`"
    return f"`{value}`"


def size(count: int) -> str:
    """Returns bytes as a person writes them: 256KiB, 100MB."""
    units = [("GiB", 2**30), ("MiB", 2**20), ("GB", 10**9), ("MB", 10**6), ("KiB", 2**10), ("KB", 10**3)]
    for unit, factor in units:
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)


def missing_topics() -> set[str]:
    """Returns settings that no topic lists, and listed names that no setting has."""
    listed = {name for names in TOPICS.values() for name in names}
    return listed ^ {definition.name for definition in DEFINITIONS}


__all__ = ["PREFIX", "TOPICS", "all_settings", "default", "missing_topics", "sentence", "size", "values"]
