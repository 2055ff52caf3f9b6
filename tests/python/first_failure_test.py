"""FirstFailure by itself: which failure is the cause, and what a job says of it last."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

from gradwire.launch.child import Line
from gradwire.launch.first_failure import FirstFailure


def child(role: str, rank: int | None) -> Any:
    name = role if rank is None else f"{role} {rank}"
    return SimpleNamespace(role=role, rank=rank, name=name, pid=40 + (rank or 0))


def write(failure: FirstFailure, role: str, rank: int | None, error: str) -> None:
    for text in ("Traceback (most recent call last):", '  File "train.py", line 3', error):
        failure.take_line(Line(role, rank, "stderr", text))


def fail(failure: FirstFailure, role: str, rank: int | None, code: int = 1) -> None:
    process = child(role, rank)
    failure.begin(process, f"{process.name} (pid {process.pid}) ended with exit code {code}", code)


def test_nothing_has_failed() -> None:
    failure = FirstFailure()
    failure.note_message()
    assert (failure.child, failure.cause, failure.exit_code, failure.interrupted) == (None, None, 0, None)
    assert failure.last_line() is None


def test_a_failure_that_was_the_last_thing_said_is_not_said_again() -> None:
    failure = FirstFailure()
    write(failure, "worker", 1, "ValueError: boom")
    fail(failure, "worker", 1)
    assert failure.last_line() is None
    failure.note_message()
    assert failure.last_line() == "worker 1 failed first: ValueError: boom; see its traceback above"


def test_a_process_without_a_traceback_is_named_with_its_end() -> None:
    failure = FirstFailure()
    fail(failure, "worker", 2, 7)
    write(failure, "worker", 0, "gradwire.TransportError: rank 2 is gone")
    assert failure.last_line() == "worker 2 failed first: it ended with exit code 7"


def test_of_one_child_for_all_ranks_the_rank_with_an_error_of_its_own_is_named() -> None:
    failure = FirstFailure()
    fail(failure, "worker", None)
    write(failure, "worker", 0, "gradwire.TransportError: rank 3 is gone")
    write(failure, "worker", 3, "KeyError: 'x'")
    assert failure.last_line() == "worker 3 failed first: KeyError: 'x'; see its traceback above"


def test_a_failure_of_the_job_itself_names_no_process() -> None:
    failure = FirstFailure()
    failure.begin(None, "the job was not done after 3 s and was stopped", 124)
    failure.note_message()
    assert failure.last_line() is None
    assert failure.exit_code == 124


def test_the_first_signal_is_the_cause_and_a_failure_before_it_keeps_its_child() -> None:
    failure = FirstFailure()
    fail(failure, "worker", 1)
    failure.note_message()
    failure.interrupt(signal.SIGTERM)
    failure.interrupt(signal.SIGINT)
    assert (failure.interrupted, failure.cause, failure.exit_code) == (
        signal.SIGTERM,
        "stopped by SIGTERM",
        143,
    )
    assert failure.child.rank == 1
    assert failure.last_line() is None


def test_a_worker_that_heard_of_another_gives_way_to_the_one_that_failed_by_itself() -> None:
    failure = FirstFailure()
    write(failure, "worker", 0, "gradwire.TransportError: rank 1 is gone")
    fail(failure, "worker", 0)
    failure.reconsider(child("worker", 1), "worker 1 ended", 9, hears_late=False)
    assert (failure.child.rank, failure.cause, failure.exit_code) == (1, "worker 1 ended", 9)
    write(failure, "worker", 2, "gradwire.TimeoutError: rank 0 did not come")
    failure.reconsider(child("worker", 2), "worker 2 ended", 1, hears_late=False)
    assert failure.child.rank == 1  # it had an error of its own


def test_a_server_that_ended_with_1_gives_way_to_a_worker_and_to_no_server() -> None:
    failure = FirstFailure()
    fail(failure, "server", 0)
    failure.reconsider(child("server", 1), "server 1 ended", 1, hears_late=False)
    assert failure.child.name == "server 0"
    failure.reconsider(child("worker", 1), "worker 1 ended", 3, hears_late=False)
    assert failure.child.name == "worker 1"


def test_a_server_gives_way_to_the_worker_that_cannot_listen() -> None:
    failure = FirstFailure()
    fail(failure, "server", 0)
    write(
        failure, "worker", 1, "gradwire._core.TransportError: worker 0: zmq: cannot listen on tcp://9.9.9.9:*"
    )
    failure.reconsider(child("worker", 1), "worker 1 ended", 1, hears_late=False)
    assert failure.child.name == "server 0"
    write(failure, "worker", 0, "gradwire._core.TransportError: zmq: cannot listen on tcp://9.9.9.9:*")
    failure.reconsider(child("worker", 0), "worker 0 ended", 1, hears_late=False)
    assert failure.child.name == "worker 0"


def test_a_worker_with_an_error_of_its_own_stays_the_first() -> None:
    failure = FirstFailure()
    write(failure, "worker", 0, "ValueError: boom")
    fail(failure, "worker", 0)
    failure.reconsider(child("worker", 1), "worker 1 ended", 3, hears_late=False)
    assert failure.child.rank == 0


def test_where_other_programs_watch_an_exit_code_that_is_not_1_is_the_cause() -> None:
    failure = FirstFailure()
    fail(failure, "worker", 0, 1)
    failure.reconsider(child("server", 0), "server 0 was killed", 137, hears_late=True)
    assert (failure.child.name, failure.exit_code) == ("server 0", 137)
    failure.reconsider(child("worker", 1), "worker 1 ended", 5, hears_late=True)
    assert failure.exit_code == 137


def test_there_is_nothing_to_reconsider_without_a_process() -> None:
    failure = FirstFailure()
    failure.begin(None, "too late", 124)
    failure.reconsider(child("worker", 1), "worker 1 ended", 5, hears_late=True)
    assert (failure.child, failure.exit_code) == (None, 124)
