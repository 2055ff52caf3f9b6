"""experiments/replay: a machine that was busy, for a second or on one core alone, gives no figure."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest
from experiments.tiny_replay import IDLE, Meter, of_row, tiny_plan
from replay import cpu, rows
from replay.cpu import Load, Sample, load
from replay.plan import why_refused


def samples(busy: Sequence[tuple[float, float]], worker: Sequence[float]) -> list[Sample]:
    """One every half a second: of two cores and one process, the seconds that each was busy since the one before."""
    found = [Sample(10.0, {0: 7.0, 1: 9.0}, {(5, 1): 3.0}, {(5, 1): "worker"})]
    for (first, second), own in zip(busy, worker, strict=True):
        before = found[-1]
        cores = {0: before.cores[0] + first, 1: before.cores[1] + second}
        process = {(5, 1): before.processes[5, 1] + own}
        found.append(Sample(before.at + 0.5, cores, process, before.names))
    return found


def test_a_second_of_one_busy_core_is_seen_where_the_mean_is_low() -> None:
    taken = samples([(0, 0), (0.5, 0.1), (0.5, 0.1), (0, 0), (0, 0), (0, 0)], [0, 0.3, 0.5, 0, 0, 0])
    found = load(taken, 10.0, 13.0)
    assert (found.mean, found.core, found.process) == pytest.approx((1.2 / 6, 1.0, 0.8))
    assert (found.process_name, found.window_seconds) == ("worker", 1.0)


def test_half_a_busy_second_is_not_yet_a_limit() -> None:
    found = load(samples([(0.5, 0), (0, 0), (0.5, 0), (0, 0)], [0, 0, 0, 0]), 10.0, 12.0)
    assert (found.mean, found.core) == (0.25, 0.5)


def test_only_what_was_timed_counts_however_short() -> None:
    taken = samples([(0.5, 0.5), (0.1, 0.2), (0.5, 0.5)], [0.5, 0.2, 0.5])
    found = load(taken, 10.5, 11.0)
    assert (found.mean, found.core, found.process) == pytest.approx((0.3, 0.4, 0.4))
    assert found.window_seconds == 0.5


def test_marks_between_two_samples_count_their_share_of_them() -> None:
    taken = samples([(0.5, 0), (0, 0.2), (0.4, 0)], [0, 0, 0])
    found = load(taken, 10.25, 11.25)
    assert (found.mean, found.core) == pytest.approx((0.65 / 2, 0.45))
    assert found.window_seconds == 1.0


def test_a_process_that_begins_in_between_counts_from_then() -> None:
    before = Sample(0.0, {0: 0.0}, {(5, 1): 9.0}, {(5, 1): "old"})
    after = Sample(1.0, {0: 1.0}, {(5, 2): 0.75}, {(5, 2): "new"})  # with the same pid
    assert load([before, after], 0.0, 1.0).process == 0.75


def test_clocks_of_cores_and_processes_are_read() -> None:
    stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 400 500 6 7 8 0 0\ncpu1 0 0 0 1 0 0 0 0 0 0\nintr 5\n"
    assert cpu._cores(stat) == {0: 27, 1: 0}  # neither idle nor waiting for a disk; stolen counts
    line = "42 (a) (b) S 1 1 1 0 -1 0 0 0 0 0 70 5 0 0 20 0 3 0 4711 0"
    assert cpu._process(42, line) == ((42, 4711), "a) (b", 75)


def test_a_watch_sees_a_process_at_work() -> None:
    watch = cpu.Watch()
    begin = time.monotonic()
    done = time.process_time() + 0.3
    while time.process_time() < done:
        pass
    end = time.monotonic()
    watch.close()
    found = watch.load(begin, end)
    assert found.process * (end - begin) >= 0.25
    assert found.core * (end - begin) >= 0.1
    assert 0 < found.mean <= 1.05


def busy(**changes: float) -> Load:
    return Load(**{**vars(IDLE), **changes})


def test_a_busy_machine_gives_no_figure() -> None:
    assert why_refused(busy(mean=0.7), 0.7, polls=False) is None
    assert "71% busy, expected at most 70%" in str(why_refused(busy(mean=0.71), 0.7, polls=False))


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (busy(core=0.91), "one core was 91% busy for 1.0 s"),
        (busy(process=1.2), r"one process \(python\) was 120% busy for 1.0 s"),
    ],
)
def test_a_busy_second_gives_none_either(load: Load, said: str) -> None:
    refused = why_refused(load, 0.7, polls=False)
    assert refused is not None
    assert re.search(said, refused)
    assert why_refused(load, 0.7, polls=True) is None  # it would be as busy with a CPU to spare
    assert why_refused(load, 1.0, polls=False) is None  # nothing is to be refused


def test_openmpi_polls() -> None:
    assert [row.name for row in rows.TABLE if row.polls] == [row.name for row in rows.PEERS["openmpi"]]


def test_a_row_whose_400_mb_took_longer_than_the_wire_is_void() -> None:
    plan = tiny_plan("mxnet-none-8w8s-10gbit", rounds=2, cpu_limit=0.7)  # 0.335 s each way
    [good] = of_row(plan, Meter(), rounds=(0.72, 0.72))
    assert good["efficiency"] is not None
    [void] = of_row(plan, Meter(), rounds=(0.80, 0.80))
    assert void["efficiency"] is None
    assert "400 MB took 19% longer than the wire does there and back, expected at most 10%" in void["refused"]


@pytest.mark.parametrize(
    "row", ["gradwire-none-8w8shared-10gbit", "gradwire-none-peers8-10gbit", "gradwire-2bit-8w8s-10gbit"]
)
def test_where_a_round_waits_for_more_than_the_wire_it_voids_nothing(row: str) -> None:
    [record] = of_row(tiny_plan(row, rounds=2, cpu_limit=0.7), Meter(), rounds=(9.0, 9.0))
    assert record["refused"] is None
