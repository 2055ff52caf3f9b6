"""State: what training goes on from, under names: committed, restored, and made the same on all ranks."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

from gradwire import kv
from gradwire._core import TransportError
from gradwire.elastic.sampler import Sampler
from gradwire.log import Log
from gradwire.store import KVStore

__all__ = ["State"]


@runtime_checkable
class Stateful(Protocol):
    """What has a state of its own that it can give and take."""

    def state_dict(self) -> Any:
        """Returns it."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Goes on from it."""
        ...


class State:
    """Attributes that can be committed, restored and made the same on all ranks. Each argument becomes one.

    A commit is whole: either all ranks that live have it, or none, so that all go back to the same.

    Attributes:
        store: of the generation that the job is in; run() replaces it.
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
        self._reset_callbacks: list[Callable[[], None]] = []
        self._commits = 0
        self._has_met = False  # whether it is one that a newcomer may go on from
        self._kept = self._capture()

    # ---------------------------------------------------------------- in the training function

    def commit(self) -> None:
        """Keeps a copy of everything, as what all ranks go back to when one dies; and lets newcomers in, if some wait.
        A collective, between steps.

        Raises:
            gradwire.MembershipChanged: a worker has died, or newcomers wait: for run().
            TypeError: as State().
        """
        captured = self._capture()
        waiting = self._waiting()
        self._kept = captured  # whoever lives has heard the same answer
        self._commits += 1
        if waiting:
            self._meet_again(waiting)

    def check(self) -> None:
        """Lets newcomers in, if some wait, without a commit where none do. A collective, between steps.

        Raises: as commit().
        """
        waiting = self._waiting()
        if not waiting:
            return
        captured = self._capture()
        self.store.barrier()
        self._kept = captured
        self._commits += 1
        self._meet_again(waiting)

    def restore(self) -> None:
        """Goes back to what the last commit kept."""
        for name, kept in self._kept.items():
            value = getattr(self, name)
            if isinstance(value, Stateful):
                self._load(name, value, copy.deepcopy(kept))
            else:
                setattr(self, name, copy.deepcopy(kept))

    def sync(self) -> None:
        """Gives all ranks the state of the lowest that has been in the job with the latest commit. A collective, which
        run() calls before the function.

        Raises:
            RuntimeError: the job has been trained, and nobody is left that has been in it.
            gradwire.MembershipChanged: as commit().
        """
        self._share_samplers()
        own = json.dumps({"met": self._has_met, "commits": self._commits, "since": self.store.since})
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
        self._broadcast(root)
        if was_there:
            self._put_back_own()
        kept = self._capture()
        self.store.barrier()  # all have it, or go back together
        self._kept, self._commits, self._has_met = kept, latest[1], True

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Has run() call these whenever the job has met again, before it calls the function: for what depends on
        store.rank or store.num_workers, such as a learning rate.
        """
        self._reset_callbacks.extend(callbacks)

    # ---------------------------------------------------------------- for run()

    def rejoin(self) -> None:
        """Joins the job's next generation, and goes back to the last commit. A collective."""
        self.store = kv.rejoin(self.store)
        self._on_rejoined()
        self._share_samplers()
        self.restore()
        for callback in self._reset_callbacks:
            callback()
        self.tell(
            f"goes on as worker {self.store.rank} of {self.store.num_workers} from commit {self._commits}"
        )

    def leave(self, error: BaseException) -> None:
        """Tells the others that this worker has failed, so that they go on without it at once. Not where the job itself
        has: of that all have heard.
        """
        if self.store.is_open and not isinstance(error, TransportError):
            self.store.give_up(error)

    def tell(self, text: str) -> None:
        """Reports on stderr, as GRADWIRE_LOG_LEVEL has it."""
        Log.of(self.store._settings, self.store.rank).say("warning", text)

    # ---------------------------------------------------------------- parts

    def _capture(self) -> dict[str, Any]:
        kept = {}
        for name in self._names:
            value = getattr(self, name)
            content = value.state_dict() if isinstance(value, Stateful) else value
            if self._is_plain(name):  # found on all ranks, and not on the one alone that is to send it
                _require_plain(name, content)
            kept[name] = copy.deepcopy(content)
        return kept

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

    def _put_back_own(self) -> None:
        """After the root's state has come: what each survivor has of its own, as of the last commit."""

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
