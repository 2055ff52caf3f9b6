"""A whole training job, saved and gone on from: model, optimizer, and what the store keeps from step to step.

Example:
    gradwire.torch.save_checkpoint("run7", model, optimizer, {"step": step})
    # later, in a job that has made model and optimizer alike, with as many workers or others:
    step = gradwire.torch.load_checkpoint("run7", model, optimizer)["step"]
"""

from __future__ import annotations

import contextlib
import io
from os import PathLike
from typing import Any

import torch

from gradwire import checkpoint, kv
from gradwire.torch.exchange import STATE_KEY, Exchange

# Of an exchange's state: the store's checkpoint has these.
_OF_THE_STORE = ("rank", "residuals")


def save_checkpoint(
    folder: str | PathLike[str], model: torch.nn.Module, optimizer: Any, extra: Any = None
) -> None:
    """Writes all that training goes on from, every rank its own, to a folder. Collective, between steps.

    It takes the place of what was in the folder only when all of it is on the disk. Random generators and the place in
    the data are not in it: give them as extra.

    Args:
        folder: one that all workers see, such as one on NFS; made if it is not there.
        model: the module that is trained.
        optimizer: a DistributedOptimizer.
        extra: what torch.load(weights_only=True) can read: numbers, text, tensors, lists and dicts of them.

    Raises:
        RuntimeError: a file cannot be written, on any rank; or a step is under way.
        TypeError: optimizer is no DistributedOptimizer.
    """
    store = _store_of(optimizer)
    state = optimizer.state_dict()
    if STATE_KEY in state:
        own = {name: value for name, value in state[STATE_KEY].items() if name not in _OF_THE_STORE}
        state = {**state, STATE_KEY: own}
    written = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": state, "extra": extra}, written)
    exchange = _exchange_of(optimizer)
    with contextlib.nullcontext() if exchange is None else exchange.owed_in_the_engine():
        store.save_checkpoint(folder, written.getvalue())


def load_checkpoint(folder: str | PathLike[str], model: torch.nn.Module, optimizer: Any) -> Any:
    """Goes on from a checkpoint, in a job that has made its optimizer and has not taken a step yet. Collective.

    With as many workers what follows is, bit for bit, what would have followed where it was saved. With another number
    of workers or servers, gradients that were not sent yet are kept; new ranks begin with the model and the optimizer's
    state of one that was there, and those of ranks that are gone are left.

    Args:
        folder: as save_checkpoint() was given it.
        model, optimizer: alike those that were saved; changed in place.

    Returns: this rank's extra; of a rank that is new, that of one that was there.

    Raises:
        gradwire.DecodeError: a file is damaged, or none of a checkpoint; model and optimizer are as they were, as with
            ValueError, but gradients may travel by the codec that a warm-up or compression="auto" had come to.
        ValueError: it is of other keys, or this job has taken a step.
        RuntimeError: a file cannot be read; or model and optimizer are not alike, which is found when the store goes on
            from the checkpoint already: begin the job anew.
        TypeError: optimizer is no DistributedOptimizer.
    """
    store = _store_of(optimizer)
    packed = checkpoint.read_extra(folder, store.rank).extra
    state = torch.load(io.BytesIO(packed), map_location="cpu", weights_only=True)
    exchange = _exchange_of(optimizer)
    if exchange is not None:  # first: scales are agreed for a codec
        exchange.load_codecs(state["optimizer"].get(STATE_KEY, {}))
    store.load_checkpoint(folder)  # refuses what does not fit, before model and optimizer change
    if exchange is not None:
        exchange.take_over_residuals()
    model.load_state_dict(state["model"])
    optimizer.load_shared_state(state["optimizer"])
    return state["extra"]


def _exchange_of(optimizer: Any) -> Exchange | None:
    """None where a worker is alone and sends nothing."""
    reducer = optimizer._reducer
    return None if reducer is None else reducer.exchange


def _store_of(optimizer: Any) -> kv.KVStore:
    store = getattr(optimizer, "_store", None)
    if not isinstance(store, kv.KVStore):
        raise TypeError(
            f"gradwire.torch: optimizer is a {type(optimizer).__name__}, expected what DistributedOptimizer() returns"
        )
    return store
