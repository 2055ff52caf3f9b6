"""State: named values that training resumes from: committed, restored, and made equal on all ranks."""

from __future__ import annotations

import copy
import dataclasses
import json
import struct
from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

from gradwire import compress, kv
from gradwire._core import TransportError
from gradwire.compress import Compression
from gradwire.elastic.sampler import Sampler
from gradwire.stores.log import Log
from gradwire.stores.store import KVStore
from gradwire.stores.unsent import Unsent

__all__ = ["State"]


@runtime_checkable
class Stateful(Protocol):
    """An object that can return and restore its state."""

    def state_dict(self) -> Any:
        """Returns the state."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Restores the state."""
        ...


@dataclasses.dataclass
class _Commit:
    """What all ranks return to. values: by name."""

    values: dict[str, Any]
    unsent: Unsent
    compression: str


class State:
    """Attributes that can be committed, restored and made equal on all ranks. Each argument becomes an attribute.

    A commit is atomic: either all living ranks have it or none, so that all return to the same one.

    It includes the compression of the store, and this worker's residuals of the store's keys and tables. The function
    declares keys again each time it is called, because the servers of a new generation hold none. Servers' residuals,
    of replies in a codec's own name, move to the workers when new workers are admitted. When a worker dies, they are
    lost, and so are that worker's own. Replies "exact" and "fp32" leave no residual on servers.

    Attributes:
        store: the store of the current generation; run() replaces it.
    """

    store: KVStore

    def __init__(self, store: KVStore | None = None, **values: Any) -> None:
        """
        Args:
            store: by which this process has joined its job. Default: the one that is open.
            values: numbers, text, None, lists and dicts (by text) of them, replaced rather than changed; samplers.

        Raises:
            ValueError: no store is open.
            TypeError: a value that would be another one after it has gone to the others.
        """
        self._names = list(values)
        for name, value in values.items():
            setattr(self, name, value)
        found = kv.joined() if store is None else store
        if found is None:
            raise ValueError(
                "elastic: no store is open: call gradwire.kv.create(..., on_failure='continue') first"
            )
        self.store = found
        # What a newcomer sets, too, before it gets here.
        self._first_compression = found.asked_compression
        self._reset_callbacks: list[Callable[[], None]] = []
        self._commits = 0
        self._has_met = False  # whether it is one that a newcomer may go on from
        self._has_drawn = False  # what servers had not sent, in the generation that ends
        self._kept = self._capture()

    # ---------------------------------------------------------------- in the training function

    def commit(self) -> None:
        """Keeps a copy of everything, for all ranks to return to when one dies, and admits waiting workers.

        A collective, between steps.

        Raises:
            gradwire.MembershipChanged: a worker has died, or new ones wait; run() handles it.
            TypeError: as State().
        """
        captured = self._capture()
        if waiting := self._waiting():
            captured = self._capture_for_newcomers()
        self._kept = captured  # whoever lives has heard the same answer
        self._commits += 1
        if waiting:
            self._meet_again(waiting)

    def check(self) -> None:
        """Admits waiting workers; commits only if there are any. A collective, between steps.

        Raises: as commit().
        """
        waiting = self._waiting()
        if not waiting:
            return
        self._kept = self._capture_for_newcomers()
        self._commits += 1
        self._meet_again(waiting)

    def restore(self) -> None:
        """Returns to the last commit."""
        self.store.go_on_with(copy.deepcopy(self._kept.unsent))
        for name, kept in self._kept.values.items():
            value = getattr(self, name)
            if isinstance(value, Stateful):
                self._load(name, value, copy.deepcopy(kept))
            else:
                setattr(self, name, copy.deepcopy(kept))

    def sync(self) -> None:
        """Gives all ranks the state of the lowest rank with the latest commit. A collective; run() calls it before
        func.

        Raises:
            RuntimeError: the job has been trained, and no worker that took part is left.
            ValueError: ranks still differ, for example in the learning rate; names the difference. It is raised on all
                ranks; or, once members have changed, on those that differ from rank 0, which leave the job.
            gradwire.MembershipChanged: as commit().
        """
        self._share_samplers()
        codec = self._kept.compression if self._has_met else str(self.store.own_compression)
        told = {"met": self._has_met, "commits": self._commits, "since": self.store.since, "codec": codec}
        own = json.dumps(told | {"in_force": str(self.store.own_compression)})
        found = [json.loads(blob) for blob in self.store.engine.all_gather("elastic state", own.encode())]
        # Nobody has met without those that have been there from the first: then there are no weights to be lost.
        if not any(each["met"] or each["since"] == 1 for each in found):
            raise RuntimeError(
                "elastic: all workers that had the weights are dead, and those here have begun after them: start the "
                "job again from a checkpoint"
            )
        latest = max((each["met"], each["commits"]) for each in found)
        root = next(r for r, each in enumerate(found) if (each["met"], each["commits"]) == latest)
        was_there = self._has_met and self._commits == latest[1]
        if any(each["in_force"] != found[root]["codec"] for each in found):
            self.store.use_compression(Compression.parse(found[root]["codec"]))
        own = self._own()
        self._broadcast(root)
        if was_there:
            self._put_back_own(own)
        self.store.engine.agree(
            "elastic: what all ranks share", "".join(f"{line}\n" for line in self._shared_lines())
        )
        kept = self._capture()
        self.store.barrier()  # all have it, or go back together
        self._kept, self._commits, self._has_met = kept, latest[1], True

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Registers functions that run() calls after each change of members, before it calls the training function.

        Use it for what depends on store.num_workers, such as a learning rate. They run on workers that were members
        before, and before sync(). So sync() gives the values that they set, such as an optimizer's learning rate, to
        all ranks, also to new ones.

        Args:
            callbacks: functions without arguments.
        """
        self._reset_callbacks.extend(callbacks)

    # ---------------------------------------------------------------- for run()

    def rejoin(self) -> None:
        """Joins the job's next generation, and returns to the last commit. A collective."""
        self._tell_what_is_lost()
        self.store = kv.rejoin(self.store)
        if self._first_compression is not None:
            self.store.use_compression(self._first_compression)
        self._has_drawn = False
        self._on_rejoined()
        self._share_samplers()
        self.restore()
        for callback in self._reset_callbacks:
            callback()
        self.tell(
            f"goes on as worker {self.store.rank} of {self.store.num_workers} from commit {self._commits}"
        )

    def leave(self, error: BaseException) -> None:
        """Notifies the others that this worker has failed, so that they continue without it at once.

        Does nothing if the job itself has failed, which all ranks know.
        """
        if self.store.is_open and not isinstance(error, TransportError):
            self.store.give_up(error)

    def tell(self, text: str) -> None:
        """Logs to stderr, according to GRADWIRE_LOG_LEVEL."""
        Log.of(self.store._settings, self.store.rank).say("warning", text)

    # ---------------------------------------------------------------- parts

    def _capture(self) -> _Commit:
        kept = {}
        for name in self._names:
            value = getattr(self, name)
            content = value.state_dict() if isinstance(value, Stateful) else value
            if self._is_plain(name):  # found on all ranks, and not on the one alone that is to send it
                _require_plain(name, content)
            kept[name] = copy.deepcopy(content)
        return _Commit(kept, copy.deepcopy(self.store.unsent()), str(self.store.own_compression))

    def _capture_for_newcomers(self) -> _Commit:
        """With what servers have not sent yet taken into the workers' residuals: they end with this generation."""
        self.store.engine.draw_residuals()
        captured = self._capture()
        self.store.barrier()
        self._has_drawn = True  # on all, who go on from this commit
        return captured

    def _tell_what_is_lost(self) -> None:
        """Of codecs that servers, too, keep something back by."""
        before = self.store.compression
        is_own_reply = before.reply == before.spec.partition(":")[0]
        if self._has_drawn or not is_own_reply or not compress.make(before.spec).lossy:
            return
        self.tell(
            f"what servers had not sent yet of their replies (reply={before.reply}) is lost; with reply=fp32, or exact "
            "where the codec has it, they keep nothing back"
        )

    def _load(self, name: str, value: Stateful, kept: Any) -> None:
        value.load_state_dict(kept)

    def _broadcast(self, root: int) -> None:
        """Gives all ranks the root's attributes, as JSON: nothing that came over the network is unpickled."""
        texts = {}
        if self.store.rank == root:
            for name in filter(self._is_plain, self._names):
                value = getattr(self, name)
                texts[name] = json.dumps(value.state_dict() if isinstance(value, Stateful) else value)
        blob = self.store.engine.all_gather("elastic values", json.dumps(texts).encode())[root]
        for name, text in json.loads(blob).items():
            value = getattr(self, name)
            if isinstance(value, Stateful):
                value.load_state_dict(json.loads(text))
            else:
                setattr(self, name, json.loads(text))

    def _is_plain(self, name: str) -> bool:
        """Whether an attribute goes to the others as JSON."""
        return True

    def _own(self) -> Any:
        """What each worker has of its own, and the root's state would take the place of."""

    def _put_back_own(self, own: Any) -> None:
        """After the root's state has come."""

    def _shared_lines(self) -> list[str]:
        """What all ranks must hold alike by now, "WHAT=VALUE"."""
        return [
            f"{name}={json.dumps(value.state_dict() if isinstance(value, Stateful) else value)}"
            for name in filter(self._is_plain, self._names)
            for value in [getattr(self, name)]
        ]

    def _on_rejoined(self) -> None:
        """Moves what belongs to the store to the new one. Collectives in the order in which newcomers make them."""

    def _share_samplers(self) -> None:
        for name in self._names:
            if isinstance(sampler := getattr(self, name), Sampler):
                sampler.share_among(self.store.rank, self.store.num_workers)

    def _waiting(self) -> int:
        """How many newcomers wait, the same on all ranks; each may have heard of them at another time."""
        own = struct.pack("<I", self.store.engine.newcomers)
        found = self.store.engine.all_gather("elastic commit", own)
        return max(int(struct.unpack("<I", each)[0]) for each in found)

    def _meet_again(self, waiting: int) -> None:
        if self.store.rank == 0:
            workers = "1 worker waits" if waiting == 1 else f"{waiting} workers wait"
            self.store.engine.regroup(f"{workers} to be taken in", True)
        while True:  # the scheduler answers each with MembershipChanged, or the job has failed
            self.store.engine.all_gather("elastic regroup", b"")


def _require_plain(name: str, value: Any) -> None:
    """Raises TypeError for what JSON does not give back as it was."""
    if value is None or isinstance(value, str | int | float):
        return
    if isinstance(value, list):
        for item in value:
            _require_plain(name, item)
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"elastic: {name} has the key {key!r}, expected text: use str({key!r})")
            _require_plain(name, item)
        return
    raise TypeError(
        f"elastic: {name} is or holds a {type(value).__name__}, expected numbers, text, None, lists and dicts of them, "
        "or a Sampler; models and optimizers belong to TorchState"
    )
