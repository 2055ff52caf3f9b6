"""Checkpoints of a whole training job: model, optimizer, and what the store keeps from step to step.

Example:
    gradwire.torch.save_checkpoint("run7", model, optimizer, {"step": step})
    # later, in a job with the same model and optimizer, and any number of workers:
    step = gradwire.torch.load_checkpoint("run7", model, optimizer)["step"]

With DDP's hook or FSDP2's reduce-scatter in place of a gradwire optimizer:
    extra = {"step": step, "optimizer": optimizer.state_dict()}
    gradwire.torch.save_checkpoint("run7", ddp, hook_state, extra)
"""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from gradwire import _core, kv
from gradwire.stores import checkpoint
from gradwire.torch import readable_bytes
from gradwire.torch.exchange import STATE_KEY
from gradwire.torch.local.rounds import ROUNDS_KEY, LocalRounds
from gradwire.torch.momentum import inherited_momentum
from gradwire.torch.process_group import workers_of
from gradwire.torch.reducer import GradientReducer

# Of an exchange's state: the store's checkpoint has these.
_OF_THE_STORE = ("rank", "residuals")
_SAVE_KEY = "save"  # of a checkpoint in shards
_SHARD = re.compile(r"shard-\d+-of-(\d+)")  # folders of those
_JOB = "job-from-rank-"  # and the first of its ranks: folders of jobs that are parts of torch's ranks
_MANIFEST = "checkpoint.manifest"
# Of ours, beside what an exchange has.
_ROWS_KEY, _MOMENTUM_KEY = "rows", "momentum_correction"

# What a rank's error is for all, the first that it is an instance of; others are RuntimeErrors.
_KINDS: tuple[type[Exception], ...] = (_core.DecodeError, ValueError, TypeError)

_KINDS_OF_PARTS = {
    "optimizer": "a DistributedOptimizer or LocalStepOptimizer",
    "hooks": "a HookState",
    "reduce_scatters": "FSDP2's reduce-scatters",
    "all_reduces": "HSDP's all-reduces",
}

Result = TypeVar("Result")


class Part(ABC):
    """What of a job exchanges gradients, as a checkpoint has it beside the model and the store.

    Attributes:
        kind: what it is called in the checkpoint, and in error texts.
        store: what it exchanges them through.
        shard: which part of what is saved the store's workers have, and of how many.
        peers: process groups that reach, one after the other, the ranks which have the other parts.
    """

    kind: str
    store: kv.KVStore
    shard: tuple[int, int] = (0, 1)
    peers: Sequence[dist.ProcessGroup] = ()

    def job_folder(self, folder: str | PathLike[str]) -> str | PathLike[str]:
        """Where the ranks that save together have their checkpoint, in the folder that the caller gave. A collective of
        the peers.

        They have a folder of their own if they are a part of torch's ranks: the others may give the same folder.
        """
        ranks = set(workers_of(self.store))
        for group in self.peers:
            everyone: list[Any] = [None] * group.size()
            dist.all_gather_object(everyone, ranks, group=group)
            ranks = set().union(*everyone)
        if not ranks or len(ranks) == dist.get_world_size():
            return folder
        return os.path.join(folder, f"{_JOB}{min(ranks)}")

    def folder_in(self, folder: str | PathLike[str]) -> str | PathLike[str]:
        """Where this rank's store has its files, in the job's folder."""
        return folder if self.shard[1] == 1 else self._shard_folder(folder)

    def _shard_folder(self, folder: str | PathLike[str]) -> str:
        place, count = self.shard
        return os.path.join(folder, f"shard-{place}-of-{count}")

    def require_layout(self, folder: str | PathLike[str]) -> None:
        """Raises ValueError where the job's folder has a checkpoint of another number of shards."""
        there, count = _shards_in(folder), self.shard[1]
        if there and there != {count}:
            raise ValueError(
                f"gradwire.torch: the checkpoint in {os.fspath(folder)} has {' and '.join(map(str, sorted(there)))} "
                f"shards, and this job {count}: as many as each host has ranks, with HSDP or HookState's local_group; "
                "use a folder of its own for each number"
            )

    def of_first_peer(self, own: Any) -> Any:
        """Returns what the first of the ranks has that have the parts of what this rank saves. A collective of them."""
        for group in self.peers:
            everyone: list[Any] = [None] * group.size()
            dist.all_gather_object(everyone, own, group=group)
            own = everyone[0]
        return own

    def tell(self, told: bytes) -> bytes:
        """Returns what the first of those ranks says that says anything. A collective of them."""
        for group in self.peers:
            everyone: list[bytes] = [b""] * group.size()
            dist.all_gather_object(everyone, told, group=group)
            told = next(filter(None, everyone), b"")
        return told

    @abstractmethod
    def model_state(self, model: torch.nn.Module) -> Any:
        """What this rank's file has of the model."""

    @abstractmethod
    def load_model(self, model: torch.nn.Module, saved: Any, folder: str | PathLike[str]) -> None:
        """Loads it, out of a rank's file."""

    @abstractmethod
    def saved(self) -> Any:
        """What there is of it that the store does not save."""

    @abstractmethod
    def fitting(self, saved: Any, restored: checkpoint.Restored, read: Read) -> Any:
        """Returns what saved() was, as this rank goes on with it. No collective; changes nothing.

        Raises:
            ValueError: it cannot go on with that.
        """

    @abstractmethod
    def prepare(self, fitting: Any) -> None:
        """Precedes the store's load_checkpoint(), with what fitting() returned. A collective."""

    def take_over(self, fitting: Any) -> None:  # noqa: B027
        """Follows it, before the model is loaded: what the store does not restore."""

    def go_on(self, fitting: Any) -> None:  # noqa: B027
        """Follows that: an optimizer of gradwire's; torch's own is the script's to load."""


Read = Callable[[int], Any]
"""Reads what another rank's saved() was."""


def save_checkpoint(
    folder: str | PathLike[str], model: torch.nn.Module, optimizer: Any, extra: Any = None
) -> None:
    """Writes everything that training needs to resume to a folder; every rank writes its own file. Collective, between
    steps.

    It replaces the previous checkpoint only when all of it is on disk, and never if load_checkpoint() could not read
    it. In shards, as of HSDP, that holds for each shard: where one cannot be written, load_checkpoint() refuses the
    folder, so save to two of them in turns. Random generators and the position in the data are not in it: pass them in
    extra, as well as the state of an optimizer of torch's own.

    Where torch's ranks form several gradwire jobs, such as the stages of a pipeline, all may give the same folder: each
    job has a folder in it, named after the first of its ranks. A job does not wait for the others, and replaces its own
    checkpoint alone.

    Args:
        folder: a folder that all workers see, such as one on NFS. It is made if it does not exist.
        model: the trained module. A sharded module (FSDP2) is gathered, and the job's first rank writes it; of HSDP
            each rank writes its shard. For several modules, pass an nn.ModuleList or nn.ModuleDict of them.
        optimizer: a DistributedOptimizer or a LocalStepOptimizer, or a list or tuple of all that are at one store; a
            HookState, or a list or tuple of all that are at one store; or what compress_reduce_scatter() or
            compress_all_reduce() returned. The store's part of the checkpoint, which has the residuals, covers all of
            them in either case.
        extra: numbers, text, bytes, tensors, NumPy arrays and numbers, and lists, tuples, dicts and sets of them, such
            as `{"numpy": np.random.get_state(), "torch": torch.get_rng_state()}`. No other objects, because a file that
            creates objects could run any code. Default: None.

    Raises:
        RuntimeError: a file cannot be written, on any rank; or a step is in progress.
        ValueError: the folder has a checkpoint of another number of shards; or one of all ranks, where this job is a
            part of them, or of parts, where it is not.
        TypeError: optimizer has the wrong type; or extra, the model's state or the optimizer's holds, on any rank, an
            object that extra cannot hold. All ranks get the same text, which names it, and the folder is unchanged.
    """
    part = _part_of(optimizer, model)
    states = {"model": part.model_state(model)}  # a collective, of a sharded one
    number = part.of_first_peer(secrets.randbits(62) if part.peers else 0)
    job = part.job_folder(folder)

    def own() -> bytes:
        _require_alike(folder, job)
        part.require_layout(job)
        return readable_bytes.write({**states, part.kind: part.saved(), "extra": extra, _SAVE_KEY: number})

    written = _attempt(part, "checkpoint is written", own)
    _at_every_store(part, lambda: part.store.save_checkpoint(part.folder_in(job), written))


def load_checkpoint(folder: str | PathLike[str], model: torch.nn.Module, optimizer: Any) -> Any:
    """Resumes from a checkpoint, in a job that has made its optimizer and has not taken a step. Collective.

    With the same number of workers, the resumed run has the bits of one that never stopped. With another number of
    workers or servers:

    - Residuals of all ranks are kept.
    - New ranks take model and optimizer state of an old rank. Those of ranks that no longer exist are dropped.
    - The mean of each worker's own momentum (momentum_correction), which enters the update, is kept. With W ranks
      before and W' now, rank r takes W'/W times the sum of those of r, r + W', r + 2 W', ...; a rank from W on starts
      with zeros.
    - With local steps, what a dropped rank learned since it last sent a parameter is lost. Call synchronize() before
      saving if the number is going to change.

    Args:
        folder: the folder that save_checkpoint() was given. If this process is in a job of some of torch's ranks, the
            job's folder in it is read, or else the folder itself.
        model: the same model as the saved one; changed in place.
        optimizer: the same optimizer, or as many in the same order; changed in place. A HookState must be registered
            with its model.

    Returns: this rank's extra; a new rank gets that of an old one.

    Raises:
        gradwire.DecodeError: a rank's file is damaged, or is not a checkpoint; raised on all ranks. Model and optimizer
            are unchanged, as with ValueError, but gradients may use the codec that a warm-up or compression="auto" had
            reached, or be sent as rows.
        ValueError: folder is a file; it has other keys, or another kind or number of optimizers; it has checkpoints of
            other jobs alone; this job has taken a step; or it holds objects that save_checkpoint() rejects and earlier
            versions accepted.
        RuntimeError: a file cannot be read; or model and optimizer differ from the saved ones, which is found after the
            store has resumed: start the job again.
        TypeError: optimizer has a type that save_checkpoint() does not accept.
    """
    part = _part_of(optimizer, model)
    own_folder = part.job_folder(folder)

    def read() -> tuple[str | PathLike[str], dict[str, Any]]:
        job = _job_to_load(folder, own_folder)
        part.require_layout(job)
        return job, _read_fitting(part.folder_in(job), part)

    job, state = _attempt(part, "checkpoint is read", read)
    own, number = state[part.kind], state.get(_SAVE_KEY, 0)

    def require_one_save() -> None:
        if part.of_first_peer(number) != number:
            raise ValueError(
                f"gradwire.torch: the shards in {os.fspath(job)} are of several saves, of which the last was "
                "interrupted; take an earlier checkpoint"
            )

    def resume() -> None:
        part.prepare(own)
        part.store.load_checkpoint(part.folder_in(job))  # refuses what does not fit

    _at_every_store(part, require_one_save)
    _at_every_store(part, resume)  # before model and optimizer change
    part.take_over(own)
    part.load_model(model, state["model"], part.folder_in(job))
    part.go_on(own)
    return state["extra"]


def read_model(folder: str | PathLike[str], rank: int) -> Any:
    """What a rank's file has of the model."""
    return _unpack(checkpoint.read_extra(folder, rank))["model"]


def beside_the_store(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what of an exchange's state is not in the store's checkpoint."""
    return {name: value for name, value in state.items() if name not in _OF_THE_STORE}


def require_alone(listed: Sequence[Any], maker: str) -> None:
    """Raises TypeError where what a function has returned for a sharded model is not the only thing in a list.

    Args:
        maker: the function.
    """
    if len(listed) > 1:
        raise TypeError(
            f"gradwire.torch: optimizer holds several things, of which one is what {maker}() has returned, expected "
            "that alone; save each sharded model to a folder of its own"
        )


def _shards_in(folder: str | PathLike[str]) -> set[int]:
    """Returns of how many shards the checkpoints of one job in a folder are; none: there are none."""
    there = {
        int(match[1])
        for path in Path(folder).glob("shard-*")
        if (match := _SHARD.fullmatch(path.name)) and (path / _MANIFEST).exists()
    }
    return there | {1} if Path(folder, _MANIFEST).exists() else there


def _jobs_in(folder: str | PathLike[str]) -> list[str]:
    """Returns the folders of jobs in a folder that have a checkpoint."""
    return sorted(path.name for path in Path(folder).glob(f"{_JOB}*") if _shards_in(path))


def _require_alike(folder: str | PathLike[str], job: str | PathLike[str]) -> None:
    """Raises ValueError where a folder would have checkpoints of all ranks, and of parts of them.

    Args:
        folder: that the caller gave.
        job: where this job saves.
    """
    jobs = _jobs_in(folder)
    if job == folder and jobs:
        raise ValueError(
            f"gradwire.torch: {os.fspath(folder)} has checkpoints of several jobs, {' and '.join(jobs)}, and this job "
            "has all ranks; save it to another folder"
        )
    if job != folder and _shards_in(folder):
        raise ValueError(
            f"gradwire.torch: {os.fspath(folder)} has a checkpoint of one job itself, and this job, which has a part "
            f"of the ranks, saves to {os.path.basename(job)} in it; save to another folder"
        )


def _job_to_load(folder: str | PathLike[str], job: str | PathLike[str]) -> str | PathLike[str]:
    """Returns where the checkpoint is that a job loads: its own, or else the given folder if it is one itself.

    Args:
        folder: that the caller gave.
        job: where this job's own would be.

    Raises:
        ValueError: there are checkpoints of other jobs alone.
    """
    if _shards_in(job):
        return job
    if _shards_in(folder):
        return folder
    if jobs := _jobs_in(folder):
        own = "this job has all ranks" if job == folder else f"none of this job, {os.path.basename(job)}"
        raise ValueError(
            f"gradwire.torch: {os.fspath(folder)} has checkpoints of {' and '.join(jobs)}, and {own}; to continue from "
            f"one of them, give its folder, such as {os.path.join(folder, jobs[0])}"
        )
    return job


def _read_fitting(folder: str | PathLike[str], part: Part) -> dict[str, Any]:
    """Reads what save_checkpoint() wrote for this rank, as it goes on with it. Changes nothing.

    Raises:
        As load_checkpoint().
    """
    restored = checkpoint.read_extra(folder, part.store.rank)
    state = _unpack(restored)
    if part.kind not in state:
        there = next((kind for kind in _KINDS_OF_PARTS if kind in state), "something else")
        raise ValueError(
            f"gradwire.torch: the checkpoint is of {_KINDS_OF_PARTS.get(there, there)}, and given is "
            f"{_KINDS_OF_PARTS[part.kind]}, to which what was not sent yet means something else; make the same as there"
        )
    read = functools.partial(_read_part, folder, part.kind)
    return {**state, part.kind: part.fitting(state[part.kind], restored, read)}


def _read_part(folder: str | PathLike[str], kind: str, rank: int) -> Any:
    return _unpack(checkpoint.read_extra(folder, rank))[kind]


def _attempt(part: Part, what: str, work: Callable[[], Result]) -> Result:
    """Does work, which is no collective, on all ranks; where it fails on any, all raise what the first of those did, or
    the others would wait for it in the next collective.

    Args:
        part: all ranks are workers of its store, or reached by its peers.
        what: the name of the exchange in which ranks hear of it.
    """
    result, failure, told = _try(part, work)
    told = next(filter(None, part.store.engine.all_gather(what, told)), b"")
    return _or_raise(result, failure, part.tell(told))


def _at_every_store(part: Part, work: Callable[[], Result]) -> Result:
    """Does work, a collective; where it fails, the ranks that have other parts raise, too, and wait for nobody."""
    if not part.peers:
        return work()
    result, failure, told = _try(part, work)
    told = part.tell(told)
    if failure is not None:
        raise failure
    return _or_raise(result, None, told)


def _try(part: Part, work: Callable[[], Result]) -> tuple[Result | None, Exception | None, bytes]:
    """Returns what work returns; or what it raises, and what other ranks hear of that."""
    try:
        return work(), None, b""
    except Exception as error:  # any: whatever it is, the others have to hear of it
        kind = next((i for i, kind in enumerate(_KINDS) if isinstance(error, kind)), len(_KINDS))
        who = f"rank {dist.get_rank()}" if part.peers else f"worker {part.store.rank}"
        return None, error, json.dumps([kind, f"{who}: {error}"]).encode()


def _or_raise(result: Result | None, failure: Exception | None, told: bytes) -> Result:
    """Raises what any rank has told, else returns the result."""
    if told:
        kind, text = json.loads(told)
        raise (*_KINDS, RuntimeError)[kind](text) from failure
    return result  # type: ignore[return-value]


def _unpack(restored: checkpoint.Restored) -> dict[str, Any]:
    state: dict[str, Any] = readable_bytes.read(restored.extra)
    return state


class OptimizersPart(Part):
    """Those of DistributedOptimizers or LocalStepOptimizers at one store."""

    kind = "optimizer"

    def __init__(self, optimizers: Sequence[Any], store: kv.KVStore) -> None:
        self.store = store
        self._parts = [_OptimizerPart(optimizer, store) for optimizer in optimizers]

    def model_state(self, model: torch.nn.Module) -> Any:
        return model.state_dict()

    def load_model(self, model: torch.nn.Module, saved: Any, folder: str | PathLike[str]) -> None:
        model.load_state_dict(saved)

    def saved(self) -> Any:
        states = [part.saved() for part in self._parts]
        return states[0] if len(states) == 1 else states

    def fitting(self, saved: Any, restored: checkpoint.Restored, read: Read) -> list[dict[str, Any]]:
        states, given = _listed(saved), len(self._parts)
        if len(states) != given:
            raise ValueError(
                f"gradwire.torch: the checkpoint has {len(states)} optimizer{'s' * (len(states) > 1)}, and {given} "
                f"{'is' if given == 1 else 'are'} given; give as many, in the same order"
            )
        return [
            part.fitting(state, restored, lambda rank, place=place: _listed(read(rank))[place])  # type: ignore[misc]
            for place, (part, state) in enumerate(zip(self._parts, states, strict=True))
        ]

    def prepare(self, fitting: list[dict[str, Any]]) -> None:
        for part, state in zip(self._parts, fitting, strict=True):
            part.prepare(state)

    def take_over(self, fitting: list[dict[str, Any]]) -> None:
        for part, state in zip(self._parts, fitting, strict=True):
            part.take_over(state)

    def go_on(self, fitting: list[dict[str, Any]]) -> None:
        for part, state in zip(self._parts, fitting, strict=True):
            part.go_on(state)


class _OptimizerPart:
    """One's."""

    def __init__(self, optimizer: Any, store: kv.KVStore) -> None:
        self._store = store
        self._optimizer = optimizer
        # None with local steps, and where a worker is alone and sends nothing.
        self._reducer: GradientReducer | None = getattr(optimizer, "_reducer", None)
        self._rounds: LocalRounds | None = getattr(optimizer, "_rounds", None)

    def saved(self) -> dict[str, Any]:
        state = self._optimizer.state_dict()
        own = beside_the_store(state.get(STATE_KEY, {}))
        if self._reducer is not None and self._reducer.row_names is not None:
            own[_ROWS_KEY] = self._reducer.row_names
        own[_MOMENTUM_KEY] = self._sends_momentum
        return {**state, STATE_KEY: own}

    def fitting(self, saved: dict[str, Any], restored: checkpoint.Restored, read: Read) -> dict[str, Any]:
        own = saved.get(STATE_KEY, {})
        self._require_same_kind(own)
        ranks = self._store.num_workers
        if self._sends_momentum and restored.num_workers != ranks:
            theirs = [read(rank) for rank in range(self._store.rank, restored.num_workers, ranks)]
            saved = inherited_momentum(saved, theirs, ranks / restored.num_workers)
        if self._rounds is not None:
            self._rounds.require_fitting(own)
        return saved

    def prepare(self, saved: Mapping[str, Any]) -> None:
        own = saved.get(STATE_KEY, {})
        if self._reducer is not None:
            # First: scales are agreed for a codec, and residuals may be those of a table's rows.
            self._reducer.exchange.load_codecs(own)
            if _ROWS_KEY in own:
                self._reducer.take_over_rows(own[_ROWS_KEY])

    def take_over(self, saved: Mapping[str, Any]) -> None:
        if self._rounds is not None:
            self._rounds.load_rounds(saved.get(STATE_KEY, {}))

    def go_on(self, saved: Mapping[str, Any]) -> None:
        self._optimizer.load_shared_state(saved)

    @property
    def _sends_momentum(self) -> bool:
        return bool(getattr(self._optimizer, "momentum_correction", False))

    def _require_same_kind(self, own: Mapping[str, Any]) -> None:
        """Raises ValueError where what was saved would mean something else to this optimizer."""
        here, there = self._rounds is not None, ROUNDS_KEY in own
        if here != there:
            names = ("DistributedOptimizer", "LocalStepOptimizer")
            raise ValueError(
                f"gradwire.torch: the checkpoint is of a {names[there]} and optimizer is a {names[here]}, to which "
                "what was not sent yet means something else; make the same as there"
            )
        if own.get(_MOMENTUM_KEY) and not self._sends_momentum:
            raise ValueError(
                "gradwire.torch: the checkpoint has the momentum of each worker, and optimizer is without "
                "momentum_correction, where all have the same; give momentum_correction=True"
            )


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _part_of(given: Any, model: torch.nn.Module) -> Part:
    optimizers = _listed(given)
    # The hook's and FSDP2's, whose modules are imported where they are used.
    doors = [each for each in optimizers if hasattr(each, "checkpoint_part")]
    if doors and doors[0] is not optimizers[0]:
        raise TypeError(
            f"gradwire.torch: optimizer holds a {type(optimizers[0]).__name__} beside what takes gradients of DDP or "
            "FSDP2, expected things of one kind; save each kind to a folder of its own"
        )
    if doors:
        part: Part = doors[0].checkpoint_part(optimizers, model)
        return part
    stores = [getattr(optimizer, "_store", None) for optimizer in optimizers]
    for optimizer, store in zip(optimizers, stores, strict=True):
        if not isinstance(store, kv.KVStore):
            raise TypeError(
                f"gradwire.torch: optimizer is a {type(optimizer).__name__}, expected what DistributedOptimizer(), "
                "LocalStepOptimizer(), compress_reduce_scatter() or compress_all_reduce() returns, or a HookState; or "
                "a list of these"
            )
    if (distinct := len(set(map(id, stores)))) != 1:
        raise ValueError(
            f"gradwire.torch: {len(stores)} optimizers of {distinct} stores were given, expected those of one; save "
            "each store's by itself"
        )
    return OptimizersPart(optimizers, stores[0])  # type: ignore[arg-type]
