"""Timelines: parts of processes on clocks of their own become one trace, and the trace says where the steps went."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from gradwire.timeline import clocks, picture
from gradwire.timeline.command import conclusions, reservations
from gradwire.timeline.merge import merge, merge_folder
from gradwire.timeline.part import Part, Reading, read_part
from gradwire.timeline.recorder import Recorder, folder_of_job
from gradwire.timeline.recording import Recording
from gradwire.timeline.span import STAGES, Process, Span, Timeline
from gradwire.timeline.steps import steps_of, union
from gradwire.timeline.summary import summarise
from gradwire.timeline.trace_event import events, read_trace, write_trace
from python.trace_event_format import expect_trace_event_format

MS = 1_000_000  # nanoseconds
W0, W1, S0 = Process("worker", 0), Process("worker", 1), Process("server", 0)


def part_of(process: Process, **fields: object) -> Part:
    known: dict[str, object] = {"workers": 2, "servers": 1, "servers_in_workers": False, "store": "dist_sync"}
    known |= {"boot": "", "dropped": 0, **fields}
    return Part(process, **known)  # type: ignore[arg-type]


def row(stage: str, begin: int, end: int, *, key: int = 0, step: int = 0, peer: int = 0) -> list[int]:
    return [STAGES.index(stage), begin, end, key, 0, 64, step, 0, peer, 0]


def one_step(start: int, step: int, *, worker: int, late: int = 0) -> list[list[int]]:
    """10 ms of one worker and key: 6 computed, 4 waited, of 8 in which the key was on its way. Sent `late` later."""
    at = [start + n * MS for n in range(11)]
    sent = at[3] + late
    return [
        row("ready", at[0], at[1], step=step),
        row("encode", at[1], at[2], step=step),
        row("queue", at[2], sent, step=step),
        row("send", sent, at[5], step=step),
        row("receive", at[6], at[7], step=step),
        row("decode", at[7], at[8], step=step),
        row("wait", at[4], at[8], step=step),
    ]


def two_workers(steps: int = 4, late: int = 0) -> list[Part]:
    """Two workers and their server, whose clock is 50 ms ahead; worker 1's is 20 ms behind worker 0's."""
    shift = {0: 0, 1: -20 * MS}
    parts = []
    for worker in (0, 1):
        part = part_of(Process("worker", worker))
        part.keys[0, 0] = "weight"
        part.readings.append(Reading(0, 50 * MS - shift[worker], 40_000, 1))
        for step in range(steps):
            rows = one_step(100 * MS + 10 * MS * step, step, worker=worker, late=late * worker)
            part.rows += [[r[0], r[1] + shift[worker], r[2] + shift[worker], *r[3:]] for r in rows]
        parts.append(part)
    server = part_of(S0)
    for step in range(steps):
        start = 150 * MS + 10 * MS * step
        for worker in (0, 1):
            arrived = start + 3 * MS + MS // 2 + late * worker
            server.rows.append(row("server receive", arrived, start + 5 * MS, step=step, peer=worker))
            server.rows.append(row("reply send", start + 5 * MS, start + 6 * MS, step=step, peer=worker))
        server.rows.append(row("sum", start + 5 * MS, start + 5 * MS + 1000, step=step, peer=-1))
    return [*parts, server]


# ---------------------------------------------------------------- clocks


def test_a_process_is_reached_over_others() -> None:
    known, unknown = clocks.align(two_workers())
    assert not unknown
    assert known[W0](7 * MS) == 7 * MS
    assert known[S0](50 * MS) == 0
    assert known[W1](0) == 20 * MS


def test_the_way_of_short_round_trips_is_taken() -> None:
    parts = [part_of(process, servers=2) for process in (W0, W1)]
    parts[0].readings = [Reading(0, 0, 10, 1), Reading(1, 0, 10, 1)]
    parts[1].readings = [Reading(0, 5 * MS, 900, 1), Reading(1, 3 * MS, 20, 1)]
    assert clocks.align(parts)[0][W1](0) == 3 * MS


def test_a_drift_counts_where_it_is_more_than_the_readings_errors() -> None:
    hour = 3600 * 10**9
    steady = clocks.fit([Reading(0, 1000, 400, 0), Reading(0, 1300, 400, hour)])
    assert (steady.drift, steady.to_server(hour)) == (0.0, hour + 1000)
    drifting = clocks.fit([Reading(0, 1000, 400, 0), Reading(0, 1000 + 72 * MS, 600, hour)])
    assert drifting.to_server(hour) == hour + 1000 + 72 * MS
    assert drifting.to_server(hour // 2) == hour // 2 + 1000 + 36 * MS
    assert abs(drifting.to_worker(drifting.to_server(hour // 3)) - hour // 3) <= 1


def test_without_a_reading_one_machine_has_one_clock_and_another_is_said_not_to_be_aligned() -> None:
    parts = [part_of(W0, boot="here"), part_of(W1, boot="here"), part_of(S0, boot="elsewhere")]
    for part, begin in zip(parts, (100, 130, 900), strict=True):
        part.rows.append(row("send", begin, begin + 1))
    known, unknown = clocks.align(parts)
    assert known[W1](130) == 130
    assert unknown == [S0]
    assert known[S0](900) == 100


def test_without_worker_0_the_next_one_is_the_reference() -> None:
    known, unknown = clocks.align(two_workers()[1:])
    assert not unknown
    assert known[W1](5) == 5
    assert known[S0](70 * MS) == 0


# ---------------------------------------------------------------- merging


def test_merged_spans_are_on_one_clock_by_name() -> None:
    merged = merge(two_workers())
    assert (merged.workers, merged.servers, merged.store) == (2, 1, "dist_sync")
    assert not merged.missing
    assert not merged.unaligned
    assert merged.clock_error == 0
    assert merged.spans[0].begin == 0
    assert {span.key for span in merged.spans} == {"weight"}
    begins = {(s.process, s.stage, s.step, s.peer): s.begin for s in merged.spans}
    assert begins[W0, "send", 1, 0] == begins[W1, "send", 1, 0] == 13 * MS
    assert begins[S0, "server receive", 1, 1] == 13 * MS + MS // 2


def test_a_clock_that_is_wrong_shows() -> None:
    parts = two_workers()
    parts[2].readings.clear()
    for part in parts[:2]:
        part.readings = [Reading(0, 53 * MS + (20 * MS if part.process == W1 else 0), 40_000, 1)]
    assert merge(parts).clock_error == pytest.approx(2.5e-3)


def test_who_left_no_part_is_named() -> None:
    assert merge(two_workers()[:1]).missing == ["worker 1", "server 0"]
    hosted = part_of(W0, servers=2, servers_in_workers=True)
    assert merge([hosted]).missing == ["worker 1"]


def test_parts_of_two_jobs_are_refused() -> None:
    with pytest.raises(
        ValueError, match="several jobs: worker 0 of 2 workers and 1 servers, worker 1 of 3 and 1"
    ):
        merge([part_of(W0), part_of(W1, workers=3)])


def test_a_part_that_ends_before_the_others_begin_is_an_earlier_jobs() -> None:
    earlier, last = two_workers(), two_workers()
    for part in (last[0], last[2]):  # worker 1 was killed this time
        part.rows = [[r[0], r[1] + 9000 * MS, r[2] + 9000 * MS, *r[3:]] for r in part.rows]
        part.readings = [replace(reading, at=reading.at + 9000 * MS) for reading in part.readings]
    merged = merge([last[0], earlier[1], last[2]])
    assert {str(span.process) for span in merged.spans} == {"worker 0", "server 0"}
    assert (merged.missing, merged.of_another_time) == (["worker 1"], ["worker 1"])
    [text] = reservations(merged)
    assert text.startswith("Left out: the part of worker 1 ends before the others begin")
    assert merge(last).of_another_time == ["worker 1"]
    assert merge(earlier).of_another_time == []


class Engine:
    """Of rank 1, and without anything to tell."""

    rank = 1

    def __init__(self) -> None:
        self.calls: list[str] = []

    def read_clocks(self, seconds: float) -> None:
        self.calls.append("read_clocks")

    def start_timeline(self) -> None:
        self.calls.append("start_timeline")


def test_a_process_removes_the_part_that_an_earlier_job_left_in_its_place(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"worker-{rank}.jsonl").touch()
    Recorder(Engine(), "dist_sync", str(tmp_path))  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["worker-0.jsonl"]


def test_clocks_are_read_after_the_start_which_forgets_earlier_readings(tmp_path: Path) -> None:
    engine = Engine()
    Recorder(engine, "dist_sync", str(tmp_path))  # type: ignore[arg-type]
    assert engine.calls == ["start_timeline", "read_clocks"]


def test_a_recording_makes_no_folder_and_removes_parts_alone(tmp_path: Path) -> None:
    parts = tmp_path / "out.json.parts"
    Recording(tmp_path / "out.json")
    assert not parts.exists()
    parts.mkdir()
    for name in ("worker-0.jsonl", "worker-1.jsonl.unfinished"):  # of a launcher that was killed
        (parts / name).touch()
    recording = Recording(tmp_path / "out.json")
    assert not parts.exists()
    parts.mkdir()
    (parts / "worker-0.jsonl").write_text(HEAD)
    assert recording.finish(print)
    assert not parts.exists()


def test_each_job_that_ranks_have_formed_gets_a_file(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "out.json")
    for rank in (0, 2):
        folder = Path(folder_of_job(str(recording.folder), rank))
        folder.mkdir()
        (folder / "worker-0.jsonl").write_text(HEAD)
    said: list[str] = []
    assert recording.finish(said.append)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.job-of-rank-2.json", "out.json"]
    assert "those of the other jobs that its ranks have formed are in" in said[1]
    (recording.folder / "job-of-rank-1").mkdir(parents=True)  # of a launcher that was killed
    (recording.folder / "job-of-rank-1" / "worker-0.jsonl").write_text(HEAD)
    Recording(tmp_path / "out.json")
    assert not recording.folder.exists()
    (recording.folder / "job-of-rank-1").mkdir(parents=True)
    (recording.folder / "job-of-rank-1" / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"thesis\.tex is not part of a trace"):
        Recording(tmp_path / "out.json")


def test_the_command_that_a_recording_prints_can_be_run_as_it_is(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "a b.json")
    recording.folder.mkdir()
    (recording.folder / "worker-0.jsonl").write_text(HEAD)
    said: list[str] = []
    assert recording.finish(said.append)
    assert said[0].endswith(f" gradwire timeline '{tmp_path / 'a b.json'}'")


def test_a_recording_refuses_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    parts = tmp_path / "out.json.parts"
    parts.mkdir()
    for name in ("thesis.tex", "worker-0.jsonl"):
        (parts / name).write_text("mine")
    with pytest.raises(ValueError, match=r"out\.json: .*thesis\.tex is not part of a trace"):
        Recording(tmp_path / "out.json")
    assert len(list(parts.iterdir())) == 2


def test_a_recording_refuses_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "out.json.parts").write_text("mine")
    with pytest.raises(ValueError, match="is in the way"):
        Recording(tmp_path / "out.json")


def test_parts_of_other_machines_are_written_where_all_machines_can(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "out.json", fetched=True)
    assert recording.environment == {"GRADWIRE_TIMELINE": str(recording.there)}
    assert recording.there.parent == Path("/tmp")
    assert Recording(tmp_path / "out.json", fetched=True).there != recording.there
    recording.there.mkdir()  # by a process of the job on this machine
    (recording.there / "worker-0.jsonl").write_text(HEAD)
    assert recording.finish(print)
    assert not recording.there.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_command_begins_only_where_the_folder_of_the_parts_is_seen(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "out.json")

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        command = [*words, "printf", "%s|", "a 'b'", "$c"]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    with recording.seen() as words:
        begun = run(words)
    assert (begun.returncode, begun.stdout, begun.stderr) == (0, "a 'b'|$c|", "")
    assert list(tmp_path.iterdir()) == []
    recording.folder.mkdir()  # as an earlier job may have left it on a machine of its own
    refused = run(words)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"does not see {recording.folder}, where parts are gathered" in refused.stderr


def test_the_mark_goes_and_the_parts_stay(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "out.json")
    with recording.seen():
        (recording.folder / "worker-0.jsonl").write_text(HEAD)
    assert [path.name for path in recording.folder.iterdir()] == ["worker-0.jsonl"]
    assert recording.finish(print)
    assert not recording.folder.exists()


def test_a_folder_without_parts_says_who_writes_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no process has written a part to .*gradwire\.kv\.create"):
        merge_folder(tmp_path)


HEAD = (
    '{"gradwire_timeline":1,"role":"worker","rank":0,"workers":1,"servers":1,"servers_in_workers":true,'
    '"store":"local","host":"h","boot":"b","pid":1,"dropped":4}'
)


def test_a_part_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    path.write_text(f'{HEAD}\n{{"key":[1,7,"w"]}}\n{{"clock":[2,-5,80,9]}}\n[8,100,250,7,64,32,2,-1,-1,1]\n')
    part = read_part(path)
    assert part.readings == [Reading(2, -5, 80, 9)]
    [span] = part.spans(part.keys)
    assert span == Span(S0, "sum", 100, 250, "w", 64, 32, 2, -1, -1, "host")
    assert merge([part]).dropped == {"worker 0": 4}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("{}", 1),
        (HEAD.replace('"gradwire_timeline":1', '"gradwire_timeline":2'), 1),
        (f"{HEAD}\n[1,2]", 2),
        (f"{HEAD}\n[99,1,2,3,4,5,6,7,8,0]", 2),
        (f'{HEAD}\n{{"clock":[1]}}', 2),
        (f"{HEAD}\n[8,100,250,7,64", 2),
        (f"{HEAD}\nnull", 2),
        (f"{HEAD}\n[8,100,250,7,64,32,2,-1,-1,2]", 2),
        (f"{HEAD}\n[8,100,250,7,64,32,2,-1,-1,-1]", 2),
        (f'{HEAD}\n{{"clock":[2,"-5",80,9]}}', 2),
    ],
)
def test_a_damaged_part_is_refused_by_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "worker-0.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"line {line} of .*worker-0.jsonl is not a line of a trace"):
        read_part(path)


# ---------------------------------------------------------------- the file


def test_the_file_has_the_trace_event_format_and_comes_back(tmp_path: Path) -> None:
    merged = merge(two_workers())
    write_trace(merged, tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    expect_trace_event_format(found)
    assert read_trace(tmp_path / "out.json") == merged


def test_spans_of_a_stage_that_overlap_have_threads_of_their_own() -> None:
    spans = [
        Span(W0, "queue", b, e, f"k{b}", 0, 1, 0, 0, 0, "job")
        for b, e in ((0, 50), (10, 20), (30, 40), (60, 70))
    ]
    tids = [event["tid"] for event in events(spans) if event["ph"] == "X"]
    assert tids[0] == tids[3]
    assert tids[1] == tids[2] != tids[0]


def test_arrows_lead_from_a_push_to_its_answer() -> None:
    found = [event for event in events(merge(two_workers(steps=1)).spans) if event["ph"] in "stf"]
    by_id: dict[str, list[str]] = {}
    for event in found:
        by_id.setdefault(event["id"], []).append(event["ph"])
    assert sorted(by_id) == ["0/job/weight/0/0", "1/job/weight/0/0"]
    assert all(phases == ["s", "t", "t", "f"] for phases in by_id.values())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not complete JSON"),
        ("[]", "is JSON but not a trace of gradwire"),
        ('{"traceEvents": []}', "is JSON but not a trace of gradwire"),
        ('{"otherData": {"gradwire": {"version": 99}}, "traceEvents": []}', "another version"),
        (
            '{"otherData": {"gradwire": {"version": 1, "workers": 1, "servers": 1, "store": "local"}}, "traceEvents": '
            '[{"ph": "X", "pid": 1, "cat": "sum", "ts": Infinity, "dur": 0, "name": "w", "args": {}}]}',
            "is JSON but not a trace of gradwire (OverflowError",
        ),
    ],
)
def test_a_broken_file_is_an_error_that_says_what_was_expected(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "out.json").write_text(text)
    done = gradwire("timeline", str(tmp_path / "out.json"))
    assert done.returncode == 2
    assert why in done.stderr
    assert "gradwire run --timeline FILE" in done.stderr
    assert "Traceback" not in done.stderr


def test_bytes_that_are_no_text_are_such_an_error_too(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_bytes(b"\xff\xfe\x00")
    assert "is not complete JSON" in gradwire("timeline", str(tmp_path / "out.json")).stderr


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = gradwire("timeline", str(tmp_path / "none.json"))
    assert done.returncode == 1
    assert "there is no" in done.stderr


# ---------------------------------------------------------------- where the steps went


def test_a_step_begins_when_a_key_comes_again() -> None:
    steps = steps_of(merge(two_workers(steps=3)))
    assert [(step.number, step.begin // MS, step.end // MS) for step in steps[0]] == [
        (0, 0, 10),
        (1, 10, 20),
        (2, 20, 28),
    ]
    assert [step.is_last for step in steps[0]] == [False, False, True]
    assert all(len(step.spans) == 7 for step in steps[1])


def test_a_key_of_every_other_step_does_not_make_two_of_one() -> None:
    spans = [
        Span(W0, "ready", begin, begin + 1, key, 0, 1, step, 0, 0, "job")
        for begin, key, step in ((0, "a", 0), (1, "b", 0), (10, "a", 1), (20, "a", 2), (21, "b", 1))
    ]
    steps = steps_of(Timeline(spans, 1, 1, "x"))[0]
    assert [(step.begin, [span.key for span in step.spans]) for step in steps] == [
        (0, ["a", "b"]),
        (10, ["a"]),
        (20, ["a", "b"]),
    ]


def test_union_joins_what_touches() -> None:
    assert union([(5, 7), (0, 2), (1, 3), (7, 9), (20, 20)]) == [(0, 3), (5, 9), (20, 20)]


def test_the_summary_says_what_was_hidden_and_who_was_late() -> None:
    found = summarise(merge(two_workers(late=MS // 5)))
    record = found.record()
    assert record["steps"] == 2  # without the first, and without the last, whose end is not known
    assert record["step_seconds"] == pytest.approx(10e-3)
    assert record["compute"] == pytest.approx(6e-3)
    assert record["communication"] == pytest.approx(8e-3)
    assert record["exposed_communication"] == pytest.approx(4e-3)
    assert record["hidden_share"] == pytest.approx(0.5)
    assert record["codec"] == pytest.approx(2e-3)
    assert record["waiting_for"] == {"worker": 1, "seconds": pytest.approx(0.2e-3), "share": 1.0}
    longest = record["longest_tensor"]
    assert isinstance(longest, dict)
    assert (longest["key"], longest["seconds"]) == ("weight", pytest.approx(8e-3))
    stages = {(rank.role, rank.rank, s.stage): s for rank in found.ranks for s in rank.stages}
    assert stages["worker", 0, "encode"].seconds == pytest.approx(1e-3)
    assert stages["worker", 0, "encode"].share == pytest.approx(0.1)
    assert stages["server", 0, "sum"].spans == 1
    assert stages["server", 0, "reply send"].seconds == pytest.approx(2e-3)
    assert stages["server", 0, "reply send"].busy == pytest.approx(1e-3)


def test_the_first_step_is_said_apart() -> None:
    parts = two_workers()
    for part in parts[:2]:
        part.rows = [[*r[:5], 32 * r[5], *r[6:]] if r[6] == 0 else r for r in part.rows]  # float32 for 1 bit
    found = summarise(merge(parts))
    record = found.record()
    assert record["first_step"] == {
        "seconds": pytest.approx(10e-3),
        "pushed_bytes": 32 * 64,
        "later_pushed_bytes": 64,
    }
    sent = {(rank.role, rank.rank): s.bytes for rank in found.ranks for s in rank.stages if s.stage == "send"}
    assert sent == {("worker", 0): 64, ("worker", 1): 64}
    assert any(
        "in which a worker pushed 2.05 KB. In each later step it pushed 64 B." in text
        for text in conclusions(found)
    )
    assert summarise(merge(parts), 0).first_step is None
    only = summarise(merge(two_workers(steps=2)))  # the second has no end: the first is all there is
    assert (only.record()["steps"], only.first_step) == (1, None)


def test_one_step_can_be_asked_for() -> None:
    merged = merge(two_workers())
    assert summarise(merged, 2).record()["step_seconds"] == pytest.approx(10e-3)
    with pytest.raises(ValueError, match="--step 9: no worker has such a step; worker 0 has 0 to 3"):
        summarise(merged, 9)


@pytest.mark.parametrize(
    ("steps", "asked", "unended", "said"),
    [
        (4, None, [], ""),
        (4, 2, [], ""),
        (
            4,
            3,
            [0, 1],
            "No end is known of this step of worker 0 and worker 1: it is the last that was traced.",
        ),
        (
            1,
            None,
            [0, 1],
            "No end is known of this step of worker 0 and worker 1: it is the last that was traced.",
        ),
        (2, None, [], "These are figures of the first step alone"),
    ],
)
def test_a_step_that_says_little_of_others_is_told(
    tmp_path: Path, steps: int, asked: int | None, unended: list[int], said: str
) -> None:
    write_trace(merge(two_workers(steps=steps)), tmp_path / "out.json")
    words = [] if asked is None else ["--step", str(asked)]
    shown = gradwire("timeline", str(tmp_path / "out.json"), *words).stdout
    told = [text for text in ("No end is known", "These are figures of the first") if text in shown]
    assert told == ([said[: len(told[0])]] if said else [])
    assert said in shown
    assert summarise(merge(two_workers(steps=steps)), asked).record()["unended"] == unended


def without_step(worker: int, *steps: int) -> list[Part]:
    parts = two_workers()
    parts[worker].rows = [r for r in parts[worker].rows if r[6] not in steps]
    return parts


def test_a_worker_without_the_step_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    write_trace(merge(without_step(1, 2, 3)), tmp_path / "out.json")
    done = gradwire("timeline", str(tmp_path / "out.json"), "--step", "2")
    assert done.returncode == 0, done.stderr
    assert "Without step 2: worker 1. The figures are those of the other workers." in done.stdout
    found = summarise(read_trace(tmp_path / "out.json"), 2)
    assert found.record()["step_seconds"] == pytest.approx(10e-3)
    assert [rank.step is None for rank in found.workers] == [False, True]


def test_a_worker_without_steps_counts_for_nothing() -> None:
    parts = two_workers()
    alone = summarise(merge(parts)).mean("compute")
    parts[1].rows = [r for r in parts[1].rows if STAGES[r[0]] == "send"]
    found = summarise(merge(parts))
    assert (found.workers[1].steps, found.workers[1].step, found.workers[1].compute) == (0, None, None)
    assert found.mean("compute") == pytest.approx(alone)


def test_a_timeline_without_a_push_says_so() -> None:
    with pytest.raises(ValueError, match="no worker pushed anything"):
        summarise(Timeline([], 1, 1, "local"))


def test_the_picture_has_a_lane_for_every_stage_of_every_rank() -> None:
    root = ElementTree.fromstring(picture.draw(merge(two_workers()), 1))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"worker 0", "worker 1", "server 0"} <= set(texts)
    assert texts.count("encode") == 2
    assert texts.count("sum") == 1


def test_the_picture_is_of_one_step_that_all_workers_have() -> None:
    parts = two_workers(steps=6)
    parts[1].rows = [r for r in parts[1].rows if r[6] < 3]  # 0 to 2, of worker 0's 0 to 5
    text = picture.draw(merge(parts), None)
    assert text == picture.draw(merge(parts), 1)
    assert "time in step 1 of" in text


def test_a_step_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="no worker has a step 9 to draw"):
        picture.draw(merge(two_workers()), 9)
    parts = two_workers()
    for worker in (0, 1):
        parts[worker].rows = [r for r in parts[worker].rows if (r[6] < 2) == (worker == 0)]
    with pytest.raises(ValueError, match="no step was traced on all workers"):
        picture.draw(merge(parts), None)


# ---------------------------------------------------------------- the command


def gradwire(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradwire.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_shows_a_table_a_record_and_a_picture(tmp_path: Path) -> None:
    write_trace(merge(two_workers(late=MS // 5)), tmp_path / "out.json")
    done = gradwire(
        *("timeline", str(tmp_path / "out.json"), "--svg", str(tmp_path / "out.svg")),
        *("--json", str(tmp_path / "record.json")),
    )
    assert done.returncode == 0, done.stderr
    for words in ("worker 1", "server receive", "Slowest rank: worker 1", "Longest tensor: weight"):
        assert words in done.stdout
    assert (tmp_path / "out.svg").read_text().startswith("<svg")
    record = json.loads((tmp_path / "record.json").read_text())
    assert {"compute", "exposed_communication", "codec", "waiting_for"} <= set(record)


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    parts = two_workers()
    parts[0].dropped = 12
    write_trace(merge(parts[:1]), tmp_path / "out.json")
    done = gradwire("timeline", str(tmp_path / "out.json"))
    assert "worker 1 and server 0 wrote no part" in done.stdout
    assert "12 spans of worker 0" in done.stdout


def test_json_alone_goes_to_stdout(tmp_path: Path) -> None:
    write_trace(merge(two_workers()), tmp_path / "out.json")
    done = gradwire("timeline", str(tmp_path / "out.json"), "--json", "-")
    assert json.loads(done.stdout)["steps"] == 2
