"""ConnectionQueue by itself: who waits for a turn, until when, and who is tried once more."""

from __future__ import annotations

from typing import Any

from gradwire.launch.child import Host, Line, LocalHost
from gradwire.launch.job import Process
from gradwire.launch.remote.connection_queue import ConnectionQueue
from gradwire.launch.remote.ssh import GREETING, LAUNCHES_AT_ONCE, SshHost


def by_ssh(rank: int, host: str = "far") -> Process:
    return Process("worker", rank, SshHost(host, "10.0.0.2", ("ssh",), "/"), ["true"], {})


def here(rank: int, host: Host | None = None) -> Process:
    return Process("worker", rank, host or LocalHost(), ["true"], {})


def started(queue: ConnectionQueue, process: Process) -> Any:
    """What stands for the child of a process that need not wait."""
    assert not queue.holds_back(process)
    child: Any = object()
    queue.begin(child, process)
    return child


def greeting(text: str = "") -> Line:
    return Line("worker", 0, "stdout", text + GREETING)


def test_a_host_is_given_a_few_at_a_time_and_the_others_wait_in_order() -> None:
    queue = ConnectionQueue()
    children = [started(queue, by_ssh(rank)) for rank in range(LAUNCHES_AT_ONCE)]
    late = [by_ssh(100), by_ssh(101)]
    assert [queue.holds_back(process) for process in late] == [True, True]
    assert not queue.holds_back(by_ssh(0, "another host"))
    assert queue.take_greeting(children[3], greeting())
    assert queue.take_waiting() == late
    assert queue.waiting == []
    started(queue, late[0])
    assert queue.holds_back(late[1])
    assert queue.end(children[0]) == by_ssh(0)
    started(queue, late[1])


def test_processes_on_this_machine_pass_through() -> None:
    queue = ConnectionQueue()
    for rank in range(3 * LAUNCHES_AT_ONCE):
        child = started(queue, here(rank))
        assert not queue.is_connecting(child)
        assert not queue.take_greeting(child, greeting())
        assert queue.end(child) is None


def test_a_child_connects_until_its_greeting_which_comes_once() -> None:
    queue = ConnectionQueue()
    child = started(queue, by_ssh(0))
    assert not queue.take_greeting(child, Line("worker", 0, "stderr", "Welcome to Ubuntu"))
    assert queue.is_connecting(child)
    assert queue.take_greeting(child, greeting("noise"))
    assert not queue.is_connecting(child)
    assert not queue.take_greeting(child, greeting())
    assert queue.end(child) is None  # its end is the program's


def test_a_process_is_tried_once_more_and_no_third_time() -> None:
    queue = ConnectionQueue()
    process = by_ssh(0)
    for is_tried_again in (True, False):
        assert queue.end(started(queue, process)) == process
        assert queue.retry(process) == is_tried_again
        assert queue.take_waiting() == [process] * is_tried_again
