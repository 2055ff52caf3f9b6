"""How ranks find each other through a store of torch's: rank 0's address, who is missing, and errors of one rank, of
which all hear. Ranks are threads; the store is torch's HashStore."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import gradwire as gw
import pytest
import torch.distributed as dist
from gradwire import _core
from gradwire.settings import definitions as settings
from gradwire.settings import endpoints
from gradwire.stores import rendezvous
from gradwire.stores.rendezvous import Meeting, TorchStore
from gradwire.stores.torch_group import Group

Options = Callable[[], dict[str, Any]]
WORKERS = 3
SECONDS = 60.0  # for what comes at once on a machine that is not busy


def values(rank: int, workers: int, **changes: Any) -> settings.Settings:
    given = {"rank": rank, "num_workers": workers, "rendezvous_timeout": SECONDS, "encrypt": "off"}
    return dataclasses.replace(settings.read({}), **(given | changes))


def meet_as(
    rank: int,
    store: dist.Store,
    options: Options | None = None,
    *,
    workers: int = WORKERS,
    host: str | None = None,
    **changes: Any,
) -> Meeting:
    group = Group(rank, workers, store, "test", host, None)
    here = values(rank, workers, **changes)
    return TorchStore(group).meet(here, options or (lambda: {"workers": workers}))


def meet_all(store: dist.Store, **keywords: Any) -> list[Meeting]:
    with ThreadPoolExecutor(WORKERS) as pool:
        ranks = [pool.submit(meet_as, rank, store, **keywords) for rank in range(WORKERS)]
        return [rank.result(SECONDS) for rank in ranks]


def error_of(future: Future[Any]) -> str:
    error = future.exception(SECONDS)
    assert error is not None
    return f"{type(error).__name__}: {error}"


def test_ranks_of_one_machine_meet_on_loopback_at_a_free_port() -> None:
    meetings = meet_all(dist.HashStore())
    assert [meeting.scheduler is None for meeting in meetings] == [False, True, True]
    at = {meeting.options["scheduler"] for meeting in meetings}
    assert len(at) == 1, at
    assert endpoints.host_of(at.pop()) == "127.0.0.1"
    assert not any("bind_host" in meeting.options for meeting in meetings)


def test_what_an_earlier_job_has_left_in_the_store_is_not_taken() -> None:
    """torchrun starts ranks anew and keeps its store: they would have joined a scheduler that is gone."""
    store = dist.HashStore()
    first = meet_all(store)
    with ThreadPoolExecutor(WORKERS) as pool:
        early = [pool.submit(meet_as, rank, store) for rank in (1, 2)]
        while not all(store.check([f"test/{store.get('test/call').decode()}/{rank}"]) for rank in (1, 2)):
            time.sleep(0.01)
        time.sleep(0.5)  # in which they would take the first job's answer
        assert not any(rank.done() for rank in early)
        meetings = [pool.submit(meet_as, 0, store).result(SECONDS), *(rank.result(SECONDS) for rank in early)]
    at = {meeting.options["scheduler"] for meeting in meetings}
    assert len(at) == 1
    assert at != {first[0].options["scheduler"]}


def test_a_rank_that_does_not_come_is_named_on_all_others() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(WORKERS) as pool:
        ranks = [pool.submit(meet_as, rank, store, rendezvous_timeout=1.0) for rank in (0, 2)]
        errors = [error_of(rank) for rank in ranks]
    for error in errors:
        assert error.startswith(
            "TimeoutError: rendezvous: still waiting for worker 1 (2 of 3 workers are here)"
        )
        assert "GRADWIRE_RENDEZVOUS_TIMEOUT" in error


def test_without_rank_0_the_others_say_so() -> None:
    with pytest.raises(gw.TimeoutError, match=r"worker 0 has not come within 0\.3 s"):
        meet_as(1, dist.HashStore(), rendezvous_timeout=0.3)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_one_rank_ends_all_at_once(failing: int) -> None:
    def fail() -> dict[str, Any]:
        raise ValueError("GRADWIRE_ENCRYPT=on, but GRADWIRE_JOB_KEY is not set")

    store = dist.HashStore()
    with ThreadPoolExecutor(WORKERS) as pool:
        ranks = [
            pool.submit(meet_as, rank, store, fail if rank == failing else None) for rank in range(WORKERS)
        ]
        errors = [error_of(rank) for rank in ranks]
    for rank, error in enumerate(errors):
        if rank == failing:
            assert error == "ValueError: GRADWIRE_ENCRYPT=on, but GRADWIRE_JOB_KEY is not set"
        else:
            told = f"TransportError: worker {failing} failed before it joined the job: ValueError: GRADWIRE_ENCRYPT=on"
            assert error.startswith(told), error


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (("a", "a", "b"), "worker 2 has another job key than worker 0"),
        (("a", "", "a"), "worker 1 has no job key, and worker 0 has one"),
        (("", "a", ""), "worker 1 has a job key, and worker 0 has none"),
    ],
)
def test_ranks_with_other_keys_are_named_to_all(keys: tuple[str, str, str], told: str) -> None:
    def options(key: str) -> dict[str, Any]:
        return {"workers": WORKERS} | ({"key": key * 128} if key else {})

    store = dist.HashStore()
    with ThreadPoolExecutor(WORKERS) as pool:
        ranks = [
            pool.submit(meet_as, rank, store, functools.partial(options, key))
            for rank, key in enumerate(keys)
        ]
        errors = [error_of(rank) for rank in ranks]
    for error in errors:
        assert error.startswith(f"TransportError: rendezvous: {told}: set GRADWIRE_JOB_KEY"), error


def test_rank_0_that_cannot_listen_tells_the_others() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(WORKERS) as pool:
        ranks = [
            pool.submit(meet_as, rank, store, bind_host="no-such-host.invalid") for rank in range(WORKERS)
        ]
        errors = [error_of(rank) for rank in ranks]
    assert all("cannot resolve host 'no-such-host.invalid'" in error for error in errors), errors


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> threading.local:
    """Each thread may be on a machine of its own."""
    here = threading.local()
    monkeypatch.setattr(rendezvous, "_machine", lambda: getattr(here, "name", "a"))
    return here


def test_ranks_of_several_machines_are_heard_on_all_interfaces(machines: threading.local) -> None:
    def meet(rank: int, store: dist.Store) -> Meeting:
        machines.name = "b" if rank == 2 else "a"
        return meet_as(rank, store, host="localhost")

    store = dist.HashStore()
    with ThreadPoolExecutor(WORKERS) as pool:
        ranks = [pool.submit(meet, rank, store) for rank in range(WORKERS)]
        first, beside, elsewhere = (rank.result(SECONDS) for rank in ranks)
    assert first.scheduler is not None
    assert first.scheduler.address == "*"
    port = endpoints.port_of(first.scheduler.endpoint)
    # Beside rank 0: over loopback, and its own server is to be reached from elsewhere.
    assert beside.options["scheduler"] == f"tcp://127.0.0.1:{port}"
    assert beside.options["bind_host"] == "*"
    # Elsewhere: where the store is reached.
    assert elsewhere.options["scheduler"] == f"tcp://localhost:{port}"
    assert "bind_host" not in elsewhere.options


def test_rank_0_listens_where_it_is_told_to(machines: threading.local) -> None:
    def meet(rank: int, store: dist.Store) -> Meeting:
        machines.name = str(rank)
        own = {"bind_host": "127.0.0.9"} if rank == 0 else {}
        return meet_as(rank, store, host="localhost", **own)

    store = dist.HashStore()
    with ThreadPoolExecutor(WORKERS) as pool:
        ranks = [pool.submit(meet, rank, store) for rank in range(WORKERS)]
        meetings = [rank.result(SECONDS) for rank in ranks]
    assert {endpoints.host_of(meeting.options["scheduler"]) for meeting in meetings} == {"127.0.0.9"}


def test_an_address_in_use_is_named_with_the_cure() -> None:
    first = _core.Scheduler(workers=1, scheduler="tcp://127.0.0.1:0")
    with pytest.raises(
        gw.TransportError, match=r"cannot listen on tcp://127.*GRADWIRE_MASTER=tcp://HOST:PORT"
    ):
        rendezvous.KnownAddress(first.endpoint).meet(values(0, 2), lambda: {"workers": 2})


def test_an_explicit_address_counts_before_any_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
    }.items():
        monkeypatch.setenv(name, value)
    found = rendezvous.find(settings.read())
    assert isinstance(found, rendezvous.KnownAddress)
    assert found.endpoint.startswith("tcp://node0:")
    monkeypatch.setenv("GRADWIRE_MASTER", "tcp://node0:7")
    assert rendezvous.find(settings.read()) == rendezvous.KnownAddress("tcp://node0:7")
    assert settings.is_given("master")
    monkeypatch.delenv("GRADWIRE_MASTER")
    assert not settings.is_given("master")
