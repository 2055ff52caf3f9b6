"""CaughtSignals by itself: what it catches, what it leaves alone, and what is there again afterwards."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator

import pytest
from gradwire.launch.caught_signals import CaughtSignals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those that the tests change, as they were."""
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def is_readable(caught: CaughtSignals) -> bool:
    return bool(select.select([caught], [], [], 0)[0])


def test_signals_can_be_waited_for_and_come_in_order() -> None:
    caught = CaughtSignals((signal.SIGUSR1, signal.SIGUSR2))
    assert not is_readable(caught)
    for number in (signal.SIGUSR2, signal.SIGUSR1):
        os.kill(os.getpid(), number)
        assert is_readable(caught)
    assert [caught.take(), caught.take()] == [signal.SIGUSR2, signal.SIGUSR1]
    assert not is_readable(caught)
    caught.restore()


def test_handlers_are_restored_and_pipes_closed() -> None:
    met: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: met.append(number))
    caught = CaughtSignals((signal.SIGUSR1,))
    descriptor = caught.fileno()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert met == []
    caught.restore()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert met == [signal.SIGUSR1]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    caught = CaughtSignals((signal.SIGUSR1,))
    os.kill(os.getpid(), signal.SIGUSR1)
    assert not is_readable(caught)
    caught.restore()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN


def test_another_thread_catches_none() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    found: list[object] = []

    def run() -> None:
        caught = CaughtSignals((signal.SIGUSR1,))
        found.extend([signal.getsignal(signal.SIGUSR1), is_readable(caught)])
        caught.restore()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before, False]
