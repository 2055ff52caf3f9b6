"""Ranks as threads of this process: a real job, whose frames stay in memory and whose ranks can wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gradwire import _core, kv
from gradwire.settings import definitions as settings

DEADLINE = 30.0  # seconds


def run_ranks(
    workers: int, body: Callable[[kv.KVStore], None], name: str = "allreduce", **options: Any
) -> None:
    """As errors_of_ranks(); raises the lowest rank's error."""
    errors = errors_of_ranks(workers, body, name, **options)
    if errors:
        raise errors[min(errors)]


def errors_of_ranks(
    workers: int, body: Callable[[kv.KVStore], None], name: str = "allreduce", **options: Any
) -> dict[int, BaseException]:
    """Runs body(store) as every rank of a job. Returns what ranks have raised; fails where one hangs.

    Args:
        name: of the store; whatever it is, every rank hosts the server of its share.
        options: of the engines.
    """
    network = _core.InprocNetwork(workers)
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        try:
            engine = network.connect(rank, **{"codec_threads": 1, **options})
            store = kv.KVStore(name, engine, settings.read())
            try:
                body(store)
            finally:
                store.close()
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * DEADLINE)
    assert errors or not any(thread.is_alive() for thread in threads), "a rank hangs"
    return errors


def await_event(event: threading.Event, what: str) -> None:
    """Waits until another rank has set the event."""
    assert event.wait(DEADLINE), f"{what} has not happened within {DEADLINE} s"
