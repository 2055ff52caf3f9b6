"""How the workers of a job without a scheduler process find each other: rank 0 serves as the scheduler, and the others
learn where.

There are two kinds of place. One is an address that all ranks know before (GRADWIRE_MASTER, or what a launcher's
variables give). The other is one of torch's stores, in which rank 0 leaves the address of a free port (torch_group.py).
A store also tells whether all ranks are on one machine, and takes an error of one rank to the others.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gradwire import _core
from gradwire.settings import definitions as settings
from gradwire.settings import encryption, endpoints, launch_environment
from gradwire.settings.definitions import Settings
from gradwire.stores import torch_group
from gradwire.stores.torch_group import Group

__all__ = [
    "CURE",
    "KnownAddress",
    "Meeting",
    "Place",
    "TorchStore",
    "find",
    "of_group",
    "with_ranks_of_the_group",
]

CURE = (
    "set GRADWIRE_BIND_HOST to the address by which the other machines reach this one, or GRADWIRE_INTERFACE"
)

_EVERYWHERE = "*"
_LOOPBACK = "127.0.0.1"
_OUTSIDE = "192.0.2.1"  # of no machine (RFC 5737): the route to it is the route out of this network
_SOONEST, _LATEST = 0.005, 0.2  # seconds between two looks into a store
_LAST_WORDS = 5.0  # seconds for which the others are awaited once a rank has failed


@dataclass(frozen=True)
class Meeting:
    """Where a process joins its job.

    Attributes:
        scheduler: the job's, where this process serves as it (rank 0).
        options: of the engine; where the scheduler is reached is among them.
    """

    scheduler: _core.Scheduler | None
    options: dict[str, Any]


class Place(Protocol):
    """Where the ranks of a job find each other."""

    def meet(self, values: Settings, options: Callable[[], dict[str, Any]]) -> Meeting:
        """Has rank 0 listen, and returns where to join. A collective of all ranks.

        Args:
            values: with this process's rank and the number of workers.
            options: makes the engine's options.

        Raises:
            gradwire.TimeoutError: ranks are missing; names them.
            gradwire.TransportError: rank 0 cannot listen, or, where the place can tell, another rank has failed.
            What options() raises.
        """
        ...


def with_ranks_of_the_group(values: Settings) -> Settings:
    """Returns the settings with the rank and size of torch's process group, where the environment gives none."""
    if values.scheduler is not None or values.rank is not None or values.num_workers > 1:
        return values
    group = torch_group.current()
    if group is None:
        return values
    return dataclasses.replace(values, rank=group.rank, num_workers=group.size)


def find(values: Settings) -> Place | None:
    """Returns where the ranks of the job that the settings describe find each other; None: nothing tells.

    Raises: gradwire.TimeoutError: torchrun's store cannot be reached.
    """
    if values.rank is None:
        return None
    group = torch_group.current()
    if group is not None and (group.rank, group.size) != (values.rank, values.num_workers):
        group = None  # of other ranks than this job
    if (place := of_group(group, values)) is not None:
        return place
    if (address := launch_environment.store_of_torchrun()) is not None:
        ranks = torch_group.of_torchrun(*address, values.rank, values.num_workers, values.rendezvous_timeout)
        if ranks is not None:
            return TorchStore(ranks)
    return None if values.master is None else KnownAddress(values.master)


def of_group(group: Group | None, values: Settings) -> Place | None:
    """Returns where the ranks of a process group find each other; None: there is no group, or its backend has no store,
    and GRADWIRE_MASTER is not set.
    """
    if values.master is not None and settings.is_given("master"):
        return KnownAddress(values.master)
    return None if group is None or group.store is None else TorchStore(group)


@dataclass(frozen=True)
class KnownAddress:
    """The Place at an address that all ranks know: tcp://host:port, on rank 0's host."""

    endpoint: str

    def meet(self, values: Settings, options: Callable[[], dict[str, Any]]) -> Meeting:
        """As Place.meet()."""
        made = options()
        if values.rank != 0:
            return Meeting(None, made | {"scheduler": self.endpoint})
        try:
            scheduler = _listen(self.endpoint, values, made)
        except _core.TransportError as error:
            if os.strerror(errno.EADDRINUSE) not in str(error):
                raise
            raise _core.TransportError(
                f"rendezvous: rank 0 cannot serve it: {error}; set GRADWIRE_MASTER=tcp://HOST:PORT, alike on all "
                "ranks, to a free port of rank 0's host"
            ) from None
        return Meeting(scheduler, made | {"scheduler": scheduler.endpoint})


@dataclass(frozen=True)
class TorchStore:
    """The Place in a store of torch's, where rank 0 leaves the address of a free port."""

    group: Group

    def meet(self, values: Settings, options: Callable[[], dict[str, Any]]) -> Meeting:
        """As Place.meet()."""
        words = _Words(self.group, values.rendezvous_timeout)
        made: dict[str, Any] = {}
        failure: Exception | None = None
        try:
            made = options()
        except Exception as error:
            failure = error
        own = {"machine": _machine(), "key": _fingerprint(made)}
        if self.group.rank != 0:
            answer = words.ask(own, failure)
            return Meeting(None, made | self._way_to(answer["at"], answer["machine"], made))
        others = words.gather(failure)
        try:
            _require_one_key(own, others)
            machines = {other["machine"] for other in others.values()}
            scheduler = _listen(endpoints.written(self._address(values, machines), 0), values, made)
            words.answer({"at": self._published(scheduler), "machine": _machine()})
        except Exception as error:
            words.answer_with(error)
            raise
        return Meeting(scheduler, made | {"scheduler": scheduler.endpoint})

    def _way_to(self, endpoint: str, machine: str, made: dict[str, Any]) -> dict[str, Any]:
        """Returns the options by which this rank joins rank 0, which listens on a machine at an endpoint."""
        if endpoints.host_of(endpoint) != _EVERYWHERE:
            return {"scheduler": endpoint}
        port = endpoints.port_of(endpoint)
        if machine != _machine():
            assert self.group.host is not None
            return {"scheduler": endpoints.written(self.group.host, port)}
        # This rank's server, too, is reached from other machines (transport/zmq/listening.h).
        own = {} if {"bind_host", "interface"} & made.keys() else {"bind_host": _EVERYWHERE}
        return {"scheduler": endpoints.written(_LOOPBACK, port)} | own

    def _address(self, values: Settings, machines: set[str]) -> str:
        """Where rank 0 listens: where it was told to, else on loopback alone if all ranks are on this machine."""
        if values.bind_host is not None:
            return values.bind_host
        if values.interface is not None:
            return _core.address_of_interface(values.interface, self._store_address())
        return _LOOPBACK if machines <= {_machine()} else _EVERYWHERE

    def _published(self, scheduler: _core.Scheduler) -> str:
        """Where others reach rank 0. The host "*": where they reach the store."""
        if scheduler.address != _EVERYWHERE:
            return scheduler.endpoint
        return endpoints.written(self._own_host(), endpoints.port_of(scheduler.endpoint))

    def _own_host(self) -> str:
        if self.group.host is None:
            return _own_address()
        store = self._store_address()
        own = _core.address_towards(store)
        # A name may be the address of a machine in front of this one, as a cloud has them; then the store is here too.
        is_here = own == store or not encryption.reaches_beyond(own) or _listens_here(self.group.port)
        return _EVERYWHERE if is_here else own

    def _store_address(self) -> str:
        return "" if self.group.host is None else _core.resolve(self.group.host)


class _Words:
    """What ranks leave for each other in a store: a word of each for rank 0, and its answer to all.

    A store may hold what an earlier job has left under the same names: torchrun starts ranks anew and keeps its store.
    So rank 0 begins with a call of its own, under which the others leave their words, and its answer repeats the token
    of each rank that it has heard. A rank whose token is not there goes on looking for a later call.
    """

    def __init__(self, group: Group, seconds: float) -> None:
        self._store = group.store
        self._name = group.name
        self._rank = group.rank
        self._size = group.size
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._token = secrets.token_hex(8)
        self._heard: dict[int, dict[str, str]] = {}  # by rank 0: what each of the others has said

    def gather(self, failure: Exception | None) -> dict[int, dict[str, str]]:
        """Of rank 0: returns the words of the others, by rank. failure: its own, which they are to hear of.

        Raises: failure; gradwire.TransportError: another rank has failed; gradwire.TimeoutError: ranks are missing.
        """
        try:
            if failure is not None:
                self._hasten()
            with _failures_of_torch():
                self._store.set(f"{self._name}/call", self._token)
                self._until(self._all_are_heard)
            if failure is not None:
                raise failure
            self._require_all()
        except Exception as error:
            self.answer_with(error)
            raise
        return dict(sorted(self._heard.items()))

    def answer(self, answer: dict[str, Any]) -> None:
        """Of rank 0: answers those that it has heard."""
        tokens = {rank: said["token"] for rank, said in self._heard.items()}
        with _failures_of_torch():
            self._store.set(f"{self._name}/{self._token}/answer", json.dumps({"tokens": tokens, **answer}))

    def answer_with(self, error: Exception) -> None:
        """Of rank 0: has those that it has heard fail, too."""
        is_own = not isinstance(error, _core.TimeoutError | _core.TransportError)
        text = f"worker 0 failed before it joined the job: {_in_words(error)}" if is_own else str(error)
        with suppress(_core.TransportError):  # the store has gone, and the others will notice
            self.answer({"error": text, "is_late": isinstance(error, _core.TimeoutError)})

    def ask(self, words: dict[str, str], failure: Exception | None) -> dict[str, Any]:
        """Of the others: returns rank 0's answer to its words. failure: as for gather().

        Raises: failure; gradwire.TimeoutError: ranks are missing; gradwire.TransportError: another rank has failed.
        """
        said = {"token": self._token, **words}
        if failure is not None:
            said["error"] = _in_words(failure)
            self._hasten()
        calls: list[str] = []
        answer: dict[str, Any] = {}

        def is_answered() -> bool:
            call = self._read(f"{self._name}/call")
            if call is None:
                return False
            if calls[-1:] != [call]:
                calls.append(call)
                self._store.set(f"{self._name}/{call}/{self._rank}", json.dumps(said))
            if (found := self._read(f"{self._name}/{call}/answer")) is not None:
                answer.update(json.loads(found))
            return bool(answer.get("tokens", {}).get(str(self._rank)) == self._token)

        with _failures_of_torch():
            is_over = self._until(is_answered)
            if not is_over and calls:  # rank 0 is there, and knows best who is missing
                self._end += _LAST_WORDS
                is_over = self._until(is_answered)
        if failure is not None:
            raise failure
        if not is_over:
            raise _core.TimeoutError(
                f"rendezvous: worker 0 has not come within {self._seconds:g} s (GRADWIRE_RENDEZVOUS_TIMEOUT): check "
                "that it runs, and opens the same store or optimizer as this rank"
            )
        if "error" in answer:
            raise (_core.TimeoutError if answer["is_late"] else _core.TransportError)(answer["error"])
        return answer

    def _all_are_heard(self) -> bool:
        for rank in range(1, self._size):
            if rank not in self._heard:
                found = self._read(f"{self._name}/{self._token}/{rank}")
                if found is not None:
                    self._heard[rank] = json.loads(found)
                    if "error" in self._heard[rank]:
                        self._hasten()
        return len(self._heard) == self._size - 1

    def _require_all(self) -> None:
        for rank, said in sorted(self._heard.items()):
            if "error" in said:
                raise _core.TransportError(f"worker {rank} failed before it joined the job: {said['error']}")
        missing = [f"worker {rank}" for rank in range(1, self._size) if rank not in self._heard]
        if missing:
            raise _core.TimeoutError(
                f"rendezvous: still waiting for {', '.join(missing)} ({self._size - len(missing)} of {self._size} "
                f"workers are here) after {self._seconds:g} s (GRADWIRE_RENDEZVOUS_TIMEOUT): check that all run, and "
                "make the same store, optimizer or hook, not rank 0 alone"
            )

    def _hasten(self) -> None:
        """Something has failed: from here on the others are awaited for as long as it takes them to hear of it."""
        self._end = min(self._end, time.monotonic() + _LAST_WORDS)

    def _until(self, is_done: Callable[[], bool]) -> bool:
        pause = _SOONEST
        while not is_done():
            if time.monotonic() >= self._end:
                return False
            time.sleep(pause)  # Ctrl-C ends it
            pause = min(2 * pause, _LATEST)
        return True

    def _read(self, key: str) -> str | None:
        """get() alone would wait in C++, where Ctrl-C is not heard."""
        return self._store.get(key).decode() if self._store.check([key]) else None


@contextmanager
def _failures_of_torch() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, _core.TransportError):
            raise
        raise _core.TransportError(f"rendezvous: torch's store fails: {error}") from None


def _listen(endpoint: str, values: Settings, options: dict[str, Any]) -> _core.Scheduler:
    scheduler = _core.Scheduler(**(options | {"scheduler": endpoint, "servers": 0}))
    encryption.warn_if_open(values.encrypt, values.job_key, scheduler.address)
    return scheduler


def _fingerprint(options: dict[str, Any]) -> str:
    """Tells the job's key from others without giving it away; empty: there is none."""
    key: str = options.get("key", "")
    return hashlib.sha256(b"gradwire rendezvous " + key.encode()).hexdigest()[:16] if key else ""


def _require_one_key(own: dict[str, str], others: dict[int, dict[str, str]]) -> None:
    """Raises TransportError where a rank has another job key than rank 0, or only one of them has any."""
    for rank, other in others.items():
        if other["key"] == own["key"]:
            continue
        kind = (
            "another job key than worker 0"
            if other["key"] and own["key"]
            else "a job key, and worker 0 has none"
        )
        if not other["key"]:
            kind = "no job key, and worker 0 has one"
        raise _core.TransportError(
            f"rendezvous: worker {rank} has {kind}: set {encryption.VARIABLE} to the same output of `gradwire key` on "
            "all ranks, or on none"
        )


def _machine() -> str:
    """Names this machine and network namespace, within which loopback reaches; another word each time if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return secrets.token_hex(8)


def _own_address() -> str:
    """Returns this machine's address for others, of which nothing is known.

    Raises: gradwire.TransportError: there seems to be none.
    """
    ways: list[Callable[[], str]] = [
        lambda: _core.resolve(socket.gethostname()),
        lambda: _core.address_towards(_OUTSIDE),
    ]
    for address_of_way in ways:
        with suppress(_core.TransportError):
            if encryption.reaches_beyond(address := address_of_way()):
                return address
    raise _core.TransportError(
        f"rendezvous: worker 0 finds no address by which the other machines reach it; {CURE}"
    )


def _listens_here(port: int | None) -> bool:
    """Whether something on this machine listens on a port."""
    if port is None:
        return False
    with socket.socket(socket.AF_INET) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((_LOOPBACK, port)) == 0


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
