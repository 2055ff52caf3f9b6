"""Horovod's timeline: a file that is there while the job runs, and takes no memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from gradwire.horovod import timeline
from gradwire.horovod.request import Key
from gradwire.horovod.timeline import Timeline


def operation(trace: Timeline, name: str) -> None:
    key = Key(0, "allreduce", name)
    trace.negotiation_begins(key)
    trace.negotiation_ends(key)
    trace.execution_begins(key)
    trace.execution_ends(key)


def test_events_are_in_the_file_as_they_happen(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    trace = Timeline()
    trace.start(str(path), marks_cycles=True)
    trace.cycle_begins()
    operation(trace, "weight")
    so_far = path.read_text()
    assert [event["name"] for event in json.loads(so_far + "]")][
        1:4
    ] == [  # viewers add the bracket themselves
        *("CYCLE_START", "process_name", "NEGOTIATE_ALLREDUCE")
    ]
    assert [event["ph"] for event in json.loads(so_far + "]")][-4:] == ["B", "E", "B", "E"]
    trace.stop()
    assert json.loads(path.read_text()) == json.loads(so_far + "]")


def test_nothing_is_noted_before_a_start_and_after_a_stop(tmp_path: Path) -> None:
    trace = Timeline()
    operation(trace, "early")
    trace.stop()
    for path in (tmp_path / "first.json", tmp_path / "second.json"):
        trace.start(str(path), marks_cycles=False)
        trace.cycle_begins()
        operation(trace, "seen")
    trace.stop()
    operation(trace, "late")
    for path in (tmp_path / "first.json", tmp_path / "second.json"):
        events = json.loads(path.read_text())
        lanes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
        assert lanes == ["allreduce.seen"], path
        assert "CYCLE_START" not in {event["name"] for event in events}


def test_a_long_job_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_MOST_LANES", 10)
    path = tmp_path / "timeline.json"
    trace = Timeline()
    trace.start(str(path), marks_cycles=False)
    operation(trace, "noname.0.0")
    tracemalloc.start()
    for number in range(2000):
        operation(trace, f"noname.0.{number}")
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    trace.stop()
    assert grown < 100_000 < path.stat().st_size
    events = json.loads(path.read_text())
    lanes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert len(lanes) == 2000  # each name has a lane of its own


def test_a_full_disk_ends_the_timeline_and_not_the_job() -> None:
    said: list[str] = []
    trace = Timeline(said.append)
    trace.start("/dev/full", marks_cycles=False)
    operation(trace, "weight")
    trace.stop()
    assert len(said) == 1
    assert "'/dev/full' ends here" in said[0]
    assert "No space left" in said[0]


def test_a_path_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        Timeline().start(str(tmp_path / "missing" / "timeline.json"), marks_cycles=False)
