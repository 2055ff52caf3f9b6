"""A whole training job, saved and gone on from: model, optimizer, and what the store keeps from step to step.

Example:
    gradwire.torch.save_checkpoint("run7", model, optimizer, {"step": step})
    # later, in a job that has made model and optimizer alike, with as many workers or others:
    step = gradwire.torch.load_checkpoint("run7", model, optimizer)["step"]
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeVar

import torch

from gradwire import _core, checkpoint, kv
from gradwire.torch.exchange import STATE_KEY
from gradwire.torch.local_rounds import ROUNDS_KEY, LocalRounds
from gradwire.torch.momentum import inherited_momentum
from gradwire.torch.reducer import GradientReducer

# Of an exchange's state: the store's checkpoint has these.
_OF_THE_STORE = ("rank", "residuals")
# Of ours, beside what an exchange has.
_ROWS_KEY, _MOMENTUM_KEY = "rows", "momentum_correction"

# What a rank's error is for all, the first that it is an instance of; others are RuntimeErrors.
_KINDS: tuple[type[Exception], ...] = (_core.DecodeError, ValueError)

Result = TypeVar("Result")


def save_checkpoint(
    folder: str | PathLike[str], model: torch.nn.Module, optimizer: Any, extra: Any = None
) -> None:
    """Writes all that training goes on from, every rank its own, to a folder. Collective, between steps.

    It takes the place of what was in the folder only when all of it is on the disk. Random generators and the place in
    the data are not in it: give them as extra.

    Args:
        folder: one that all workers see, such as one on NFS; made if it is not there.
        model: the module that is trained. Several: an nn.ModuleList or nn.ModuleDict of them.
        optimizer: a DistributedOptimizer or a LocalStepOptimizer; a list or tuple of all that are at one store. The
            store's part of the checkpoint, which has what was not sent yet, is of all of them in either case.
        extra: what torch.load(weights_only=True) can read: numbers, text, tensors, lists and dicts of them.

    Raises:
        RuntimeError: a file cannot be written, on any rank; or a step is under way.
        TypeError: optimizer is something else.
    """
    optimizers = _listed(optimizer)
    store = _store_of(optimizers)
    states = [_state_of(each) for each in optimizers]
    written = io.BytesIO()
    state = states[0] if optimizer is optimizers[0] else states
    torch.save({"model": model.state_dict(), "optimizer": state, "extra": extra}, written)
    with contextlib.ExitStack() as stack:
        for each in optimizers:
            if (reducer := _reducer_of(each)) is not None:
                stack.enter_context(reducer.exchange.owed_in_the_engine())
        store.save_checkpoint(folder, written.getvalue())


def _state_of(optimizer: Any) -> dict[str, Any]:
    """What an optimizer goes on from, but for what the store's checkpoint has."""
    state = optimizer.state_dict()
    own = {name: value for name, value in state.get(STATE_KEY, {}).items() if name not in _OF_THE_STORE}
    reducer = _reducer_of(optimizer)
    if reducer is not None and reducer.row_names is not None:
        own[_ROWS_KEY] = reducer.row_names
    own[_MOMENTUM_KEY] = _sends_momentum(optimizer)
    return {**state, STATE_KEY: own}


def load_checkpoint(folder: str | PathLike[str], model: torch.nn.Module, optimizer: Any) -> Any:
    """Goes on from a checkpoint, in a job that has made its optimizer and has not taken a step yet. Collective.

    With as many workers what follows is, bit for bit, what would have followed where it was saved. With another number
    of workers or servers, gradients that were not sent yet are kept, of all ranks; new ranks begin with the model and
    the optimizer's state of one that was there, and those of ranks that are gone are left. But momentum that each
    worker has of its own (momentum_correction) keeps its mean, which is what enters the update: of W ranks before and
    W' now, rank r goes on with W'/W times the sum of those of r, r + W', r + 2 W', ...; one from W on with zeros.
    With local steps what a rank that is gone has learned since it sent a parameter is left too: call synchronize()
    before saving, if the number is going to change.

    Args:
        folder: as save_checkpoint() was given it.
        model, optimizer: alike those that were saved, as many optimizers in the same order; changed in place.

    Returns: this rank's extra; of a rank that is new, that of one that was there.

    Raises:
        gradwire.DecodeError: a rank's file is damaged, or none of a checkpoint, on all ranks; model and optimizer are
            as they were, as with ValueError, but gradients may travel by the codec that a warm-up or
            compression="auto" had come to, or as rows.
        ValueError: it is of other keys, or of another kind or number of optimizers, or this job has taken a step.
        RuntimeError: a file cannot be read; or model and optimizer are not alike, which is found when the store goes on
            from the checkpoint already: begin the job anew.
        TypeError: optimizer is neither a DistributedOptimizer nor a LocalStepOptimizer.
    """
    optimizers = _listed(optimizer)
    store = _store_of(optimizers)
    state = _attempt(store, lambda: _read_fitting(folder, optimizers, store))
    saved = [
        (each, found, found.get(STATE_KEY, {}))
        for each, found in zip(optimizers, state["optimizer"], strict=True)
    ]
    for each, _, own in saved:
        if (reducer := _reducer_of(each)) is not None:
            # First: scales are agreed for a codec, and residuals may be those of a table's rows.
            reducer.exchange.load_codecs(own)
            if _ROWS_KEY in own:
                reducer.take_over_rows(own[_ROWS_KEY])
    store.load_checkpoint(folder)  # refuses what does not fit, before model and optimizers change
    for each, _, own in saved:
        if (reducer := _reducer_of(each)) is not None:
            reducer.exchange.take_over_residuals()
        if (rounds := _rounds_of(each)) is not None:
            rounds.load_rounds(own)
    model.load_state_dict(state["model"])
    for each, found, _ in saved:
        each.load_shared_state(found)
    return state["extra"]


def _read_fitting(
    folder: str | PathLike[str], optimizers: Sequence[Any], store: kv.KVStore
) -> dict[str, Any]:
    """Reads what save_checkpoint() wrote for this rank, with the momentum that it inherits, and a list of optimizers'
    states. Changes nothing.

    Raises:
        As load_checkpoint().
    """
    restored = checkpoint.read_extra(folder, store.rank)
    state = _unpack(restored)
    found, given = len(state["optimizer"]), len(optimizers)
    if found != given:
        raise ValueError(
            f"gradwire.torch: the checkpoint has {found} optimizer{'s' * (found > 1)}, and {given} "
            f"{'is' if given == 1 else 'are'} given; give as many, in the same order"
        )
    inherits = restored.num_workers != store.num_workers
    ranks = range(store.rank, restored.num_workers, store.num_workers)
    for place, optimizer in enumerate(optimizers):
        own = state["optimizer"][place].get(STATE_KEY, {})
        _require_same_kind(own, optimizer)
        if inherits and _sends_momentum(optimizer):
            theirs = [_unpack(checkpoint.read_extra(folder, rank))["optimizer"][place] for rank in ranks]
            share = store.num_workers / restored.num_workers
            state["optimizer"][place] = inherited_momentum(state["optimizer"][place], theirs, share)
        if (rounds := _rounds_of(optimizer)) is not None:
            rounds.require_fitting(own)
    return state


def _attempt(store: kv.KVStore, work: Callable[[], Result]) -> Result:
    """Does work, which is no collective, on all ranks; where it fails on any, all raise what the first of those did, or
    the others would wait for it in the next collective.
    """
    result, failure, told = None, None, b""
    try:
        result = work()
    except Exception as error:  # any: whatever it is, the others have to hear of it
        failure = error
        kind = next((i for i, kind in enumerate(_KINDS) if isinstance(error, kind)), len(_KINDS))
        told = json.dumps([kind, str(error)]).encode()
    for rank, blob in enumerate(store.engine.all_gather("checkpoint is read", told)):
        if blob:
            kind, text = json.loads(blob)
            raise (*_KINDS, RuntimeError)[kind](f"worker {rank}: {text}") from failure
    return result  # type: ignore[return-value]


def _unpack(restored: checkpoint.Restored) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(io.BytesIO(restored.extra), map_location="cpu", weights_only=True)
    state["optimizer"] = _listed(state["optimizer"])  # of one it is no list
    return state


def _require_same_kind(own: Mapping[str, Any], optimizer: Any) -> None:
    """Raises ValueError where what was saved would mean something else to this optimizer."""
    here, there = _rounds_of(optimizer) is not None, ROUNDS_KEY in own
    if here != there:
        names = ("DistributedOptimizer", "LocalStepOptimizer")
        raise ValueError(
            f"gradwire.torch: the checkpoint is of a {names[there]} and optimizer is a {names[here]}, to which what "
            "was not sent yet means something else; make the same as there"
        )
    if own.get(_MOMENTUM_KEY) and not _sends_momentum(optimizer):
        raise ValueError(
            "gradwire.torch: the checkpoint has the momentum of each worker, and optimizer is without "
            "momentum_correction, where all have the same; give momentum_correction=True"
        )


def _sends_momentum(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "momentum_correction", False))


def _reducer_of(optimizer: Any) -> GradientReducer | None:
    """None with local steps, and where a worker is alone and sends nothing."""
    reducer: GradientReducer | None = getattr(optimizer, "_reducer", None)
    return reducer


def _rounds_of(optimizer: Any) -> LocalRounds | None:
    rounds: LocalRounds | None = getattr(optimizer, "_rounds", None)
    return rounds


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _store_of(optimizers: Sequence[Any]) -> kv.KVStore:
    stores = [getattr(optimizer, "_store", None) for optimizer in optimizers]
    for optimizer, store in zip(optimizers, stores, strict=True):
        if not isinstance(store, kv.KVStore):
            raise TypeError(
                f"gradwire.torch: optimizer is a {type(optimizer).__name__}, expected what DistributedOptimizer() or "
                "LocalStepOptimizer() returns, or a list of these"
            )
    if (distinct := len(set(map(id, stores)))) != 1:
        raise ValueError(
            f"gradwire.torch: {len(stores)} optimizers of {distinct} stores were given, expected those of one; save "
            "each store's by itself"
        )
    return stores[0]  # type: ignore[return-value]
