"""A whole job is traced: every partition, on every rank, on one clock; and whoever dies costs the others nothing."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from gradwire.timeline.command import load
from gradwire.timeline.span import Span, Timeline
from integration.overlap_trace_worker import FORWARD_SECONDS
from integration.processes import PROGRAMS, ByHand, agreed, clean_environment, python, run_to_the_end
from python.trace_event_format import expect_trace_event_format

STEPS = 4
ERROR = 1_000_000  # nanoseconds that clocks may differ by
# In causal order. What is on the wire may arrive before its sender knows that all of it has gone.
ON_THE_WAY = (
    *(
        "ready",
        "encode",
        "queue",
        "send",
        "server receive",
        "sum",
        "reply encode",
        "reply queue",
        "reply send",
    ),
    *("receive", "decode"),
)
TRAINING = python(
    "sums_worker.py", f"steps={STEPS}", "codecs=2bit:threshold=0.5", "sizes=large", "clocks_apart=0.05"
)


def rounds_of(timeline: Timeline) -> dict[tuple[object, ...], dict[str, Span]]:
    """Stages of every worker's every partition and round, with what servers did for it."""
    rounds: dict[tuple[object, ...], dict[str, Span]] = defaultdict(dict)
    for span in timeline.spans:
        if span.stage == "wait":
            continue
        of_all = span.process.role == "server" and span.peer < 0
        worker = span.process.rank if span.process.role == "worker" else span.peer
        for rank in range(timeline.workers) if of_all else [worker]:
            name = (rank, *span.round_id)
            rounds[name][span.stage] = span
    return rounds


def expect_causal_order(timeline: Timeline) -> None:
    rounds = rounds_of(timeline)
    assert {rank for rank, *_ in rounds} == set(range(timeline.workers))
    assert {step for *_, step in rounds} == set(range(STEPS))
    for name, stages in rounds.items():
        assert sorted(stages) == sorted(ON_THE_WAY), name
        for before, after in itertools.pairwise(ON_THE_WAY):
            one, next_one = stages[before], stages[after]
            earliest = one.begin if before.endswith("send") else one.end
            assert next_one.begin >= earliest - ERROR, (name, before, after)


def expect_waits(timeline: Timeline) -> None:
    decoded: dict[tuple[int, str, int], int] = defaultdict(int)
    for span in timeline.spans:
        if span.stage == "decode":
            key = span.process.rank, span.key, span.step
            decoded[key] = max(decoded[key], span.end)
    waits = {(s.process.rank, s.key, s.step): s for s in timeline.spans if s.stage == "wait"}
    assert set(waits) == set(decoded)
    assert all(waits[key].end >= end for key, end in decoded.items())


@pytest.mark.parametrize(
    ("store", "servers"), [("dist_sync", 2), ("allreduce", 0)], ids=["servers of their own", "peers"]
)
def test_every_partition_has_every_stage_in_causal_order(store: str, servers: int, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = ["--timeline", str(out), *TRAINING, f"store={store}"]
    agreed(run_to_the_end(tmp_path, command, servers=servers), 2)
    expect_trace_event_format(json.loads(out.read_text()))
    timeline = load(out)
    assert (timeline.workers, timeline.servers, timeline.store) == (2, 2, store)
    assert (timeline.missing, timeline.unaligned, timeline.dropped) == ([], [], {})
    assert timeline.clock_error < ERROR * 1e-9
    expect_causal_order(timeline)
    expect_waits(timeline)
    assert not out.with_name("out.json.parts").exists()


def front_layer_began_early(timeline: Timeline) -> bool:
    """Whether some rank's front layer went forward once its own sum was there, while others of that step were not."""
    of_step: dict[tuple[int, int], dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for span in timeline.spans:
        of_step[span.process.rank, span.step][span.stage].append(span)

    def is_early(wait: Span, next_wait: Span, decodes: list[Span]) -> bool:
        worked = next_wait.begin - wait.end >= FORWARD_SECONDS * 1e9
        return worked and any(decode.end > wait.end for decode in decodes)

    waits = {step: sorted(stages["wait"], key=lambda span: span.begin) for step, stages in of_step.items()}
    return any(
        is_early(one, other, of_step[step]["decode"])
        for step, spans in waits.items()
        for one, other in itertools.pairwise(spans)
    )


@pytest.mark.parametrize("mode", ["overlap", "drain"])
def test_the_next_forward_begins_before_the_last_sum_has_come(mode: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = ["--timeline", str(out), *python("overlap_trace_worker.py", mode)]
    ended = run_to_the_end(tmp_path, command)
    assert ended.code == 0, str(ended)
    assert front_layer_began_early(load(out)) == (mode == "overlap")


def test_the_command_explains_it(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ended = run_to_the_end(tmp_path, ["--timeline", str(out), *TRAINING])
    assert ended.code == 0, str(ended)
    assert f"gradwire timeline {out}" in ended.err
    words = [str(PROGRAMS / "gradwire"), "timeline", str(out), "--json", str(tmp_path / "record.json")]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout
    assert "server 1" in shown
    assert "Slowest rank: worker" in shown
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["steps"] == STEPS - 2  # the first is said apart, and nobody knows when the last one ended
    assert 0 < record["exposed_communication"] <= record["step_seconds"]
    assert 0 < record["codec"] < record["step_seconds"]
    assert record["waiting_for"]["worker"] in (0, 1)


def test_the_others_parts_are_merged_when_a_rank_dies(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ended = run_to_the_end(
        tmp_path, ["--timeline", str(out), *TRAINING, "die=1"], GRADWIRE_LIVENESS_TIMEOUT="2s"
    )
    assert ended.code == 3, str(ended)
    timeline = load(out)
    assert timeline.missing == ["worker 1"]
    assert "worker 1 wrote no part" in ended.err
    assert {str(span.process) for span in timeline.spans} == {"worker 0", "server 0", "server 1"}
    assert timeline.clock_error < ERROR * 1e-9


def test_a_job_without_a_store_has_no_timeline_and_says_so(tmp_path: Path) -> None:
    ended = run_to_the_end(tmp_path, ["--timeline", str(tmp_path / "out.json"), "true"], servers=0)
    assert ended.code == 1, str(ended)
    assert "no process has written a part" in ended.err


def test_a_place_that_cannot_be_written_to_is_refused_before_the_job(tmp_path: Path) -> None:
    ended = run_to_the_end(tmp_path, ["--timeline", str(tmp_path / "none" / "out.json"), "true"], servers=0)
    assert ended.code == 2, str(ended)
    assert "expected a file in an existing folder" in ended.err


def test_a_job_without_the_launcher_leaves_its_parts(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    variables = {"GRADWIRE_TIMELINE": str(parts)}
    serve = [*python("sums_worker.py")]  # in a server's role kv.create() serves
    with ByHand(tmp_path, variables, servers=1) as job:
        job.start_scheduler()
        job.start(("server", 0), serve, job.identity("server", 0))
        for rank in range(2):
            job.start_worker(rank, TRAINING)
        for ended in job.end(90).values():
            assert ended.code == 0, str(ended)
    assert sorted(path.name for path in parts.iterdir()) == [
        "server-0.jsonl",
        "worker-0.jsonl",
        "worker-1.jsonl",
    ]
    expect_causal_order(load(parts))
    out = tmp_path / "out.json"
    words = [str(PROGRAMS / "gradwire"), "timeline", str(parts), "--out", str(out)]
    subprocess.run(words, capture_output=True, timeout=300, check=True)
    assert load(out) == load(parts)


def test_stats_tell_bytes_always_and_stages_while_they_are_traced(tmp_path: Path) -> None:
    code = (
        "import json, sys, numpy, gradwire\n"
        "kv = gradwire.kv.create('allreduce')\n"
        "kv.set_gradient_compression('2bit:threshold=0.5,reply=2bit')\n"
        "kv.init('w', numpy.zeros(655_360, 'f'))\n"
        "step = lambda: kv.pushpull('w', numpy.ones(655_360, 'f'))\n"
        "step()\n"
        "before = kv.stats()\n"
        "with kv.timeline(sys.argv[1]):\n"
        "    kv.barrier()\n"  # all are traced before any pushes, and until all have their sums
        "    step()\n"
        "    kv.barrier()\n"
        "sys.stdout.write(json.dumps({'rank': kv.rank, 'before': before, 'after': kv.stats()}) + '\\n')\n"
    )
    ended = run_to_the_end(tmp_path, [sys.executable, "-c", code, str(tmp_path / "parts")], servers=0)
    assert ended.code == 0, str(ended)
    raw = 4 * 655_360
    for record in ended.records():
        before, after = record["before"], record["after"]
        assert isinstance(before, dict)
        assert isinstance(after, dict)
        assert (before["bytes_raw"], after["bytes_raw"]) == (raw, 2 * raw)
        assert before["ratio"] == pytest.approx(16, rel=0.01)
        assert 2 * raw / 16 <= after["bytes_encoded"] <= 2.1 * raw / 16
        assert (
            after["bytes_sent"] >= after["bytes_encoded"]
        )  # half of the pushes, and half of the answers to two
        assert set(before["stage_seconds"].values()) == {0}
        assert all(seconds > 0 for stage, seconds in after["stage_seconds"].items() if stage != "wait")
        assert after["codec_seconds"] >= after["stage_seconds"]["encode"] > 0


def test_some_steps_can_be_traced_alone(tmp_path: Path) -> None:
    code = (
        "import sys, numpy, gradwire\n"
        "kv = gradwire.kv.create('local')\n"
        "kv.init('w', numpy.zeros(8, 'f'))\n"
        "step = lambda: kv.pushpull('w', numpy.ones(8, 'f'))\n"
        "step()\n"
        "with kv.timeline(sys.argv[1]):\n"
        "    step()\n"
        "step()\n"
    )
    words = [*python("sums_worker.py")[:1], "-c", code, str(tmp_path / "parts")]
    subprocess.run(words, env=clean_environment(tmp_path, {}), timeout=300, check=True)
    assert {span.step for span in load(tmp_path / "parts").spans} == {1}
