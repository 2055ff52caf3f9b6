"""Text of users, such as settings, keys and file names, is shown as it is, whatever brackets and colons it has."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from gradwire.plan import layer_profile
from gradwire.timeline.merge import merge
from gradwire.timeline.trace_event import write_trace
from python.timeline_test import two_workers

# To rich, a tag that it drops, one that it refuses, and an emoji.
TEXTS = ["run[adam]", "a[/b]", "a:100:b"]


def gradwire(*arguments: str, **environ: str) -> str:
    """Returns what the command shows, without spaces and line ends, as text breaks anywhere on a narrow terminal."""
    words = [sys.executable, "-m", "gradwire.cli", *arguments]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300, env={**os.environ, "COLUMNS": "200", **environ}
    )
    assert "Traceback" not in done.stderr
    return "".join(done.stdout.split())


@pytest.mark.parametrize("text", ["tcp://[fd00::2]:9000", *TEXTS])
def test_doctor_shows_the_value_of_a_setting(text: str) -> None:
    assert f"GRADWIRE_INTERFACE{text}" in gradwire("doctor", GRADWIRE_INTERFACE=text)
    assert f"GRADWIRE_STREAMS:'{text}'isnotvalid" in gradwire("doctor", GRADWIRE_STREAMS=text)


@pytest.mark.parametrize("text", TEXTS)
def test_a_timeline_names_the_key(text: str, tmp_path: Path) -> None:
    merged = merge(two_workers())
    file = tmp_path / "out.json"
    write_trace(replace(merged, spans=[span._replace(key=text) for span in merged.spans]), file)
    assert f"Longesttensor:{text}(64B)" in gradwire("timeline", str(file))


@pytest.mark.parametrize("text", TEXTS)
def test_a_plan_names_the_profile(text: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    profile = replace(layer_profile.find("vgg16"), name=text)
    file.write_text(layer_profile.text_of(profile), encoding="utf-8")
    shown = gradwire("plan", "--model", str(file), "-n", "2", "--bandwidth", "1gbit", "--codec", "2bit")
    assert shown.startswith(f"{text}:16layers,")
