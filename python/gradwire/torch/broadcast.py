"""Copies one rank's parameters and optimizer state to all workers, so that all start from the same weights.

Tensors are sent as their own bytes, so every dtype arrives exactly. Everything else is sent as JSON: nothing that came
over the network is unpickled.
"""

from __future__ import annotations

import itertools
import json
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gradwire import kv
from gradwire.stores import connect
from gradwire.stores.refusals import told_to_all
from gradwire.torch import session
from gradwire.torch.elements import octets_of
from gradwire.torch.exchange import STATE_KEY

# By store: every worker makes the same calls in the same order, so the names of keys agree.
_calls: weakref.WeakKeyDictionary[kv.KVStore, Iterator[int]] = weakref.WeakKeyDictionary()


def broadcast_parameters(
    parameters: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]],
    root_rank: int = 0,
    store: kv.KVStore | None = None,
) -> None:
    """Overwrites tensors in place with those of one rank. A collective.

    Args:
        parameters: `model.state_dict()` (with buffers) or `model.named_parameters()`, with the same names, shapes and
            dtypes on every rank, on any device. Entries that are not tensors are ignored.
        root_rank: the rank whose values all workers get. Default: 0.
        store: a store from `gradwire.kv.create()`. Default: as for DistributedOptimizer.

    Raises:
        TypeError: parameters have no names, on this rank; the other ranks get a ValueError.
        ValueError: root_rank is not a rank; a tensor has no dense memory of its own (sparse, quantized, a DTensor, on
            the meta device); or ranks differ. The text, the same on all ranks, names the first such tensor. In an
            elastic job after its first generation, only the ranks that differ from the root get it.
    """
    store = session.own_store(store)
    with told_to_all(store.engine, "broadcast_parameters"):
        pairs = _pairs(parameters)
        named = [(name, value) for name, value in pairs if isinstance(value, torch.Tensor)]
        _check_root(store, "broadcast_parameters", root_rank)
        described = json.dumps([root_rank, [[name, *_layout_of(value)] for name, value in named]])
    blobs = store.engine.all_gather("broadcast_parameters", described.encode())
    roots, layouts = zip(*(json.loads(blob) for blob in blobs), strict=True)
    _require_same_root("broadcast_parameters", roots)
    for rank, found in enumerate(layouts):
        if store.generation == 1 or rank == store.rank:  # later, who differs has come later, and fails alone
            _require_same(layouts[root_rank], found, root_rank, rank)
    for name, _, _, kind in layouts[root_rank]:
        _require_memory("broadcast_parameters", repr(name), kind)
    _broadcast(store, [value for _, value in named], root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, store: kv.KVStore | None = None
) -> None:
    """Overwrites an optimizer's state and hyperparameters with those of one rank. A collective.

    Other ranks' optimizers may be new: state that only the root has is created. Tensors keep the root's dtypes. With
    momentum_correction, the root's momentum replaces each worker's own.

    Args:
        optimizer: an optimizer of the same class with the same parameter groups on every rank; may be a
            DistributedOptimizer.
        root_rank: the rank whose state all workers get. Default: 0.
        store: a store from `gradwire.kv.create()`. Default: as for DistributedOptimizer.

    Raises:
        ValueError: root_rank is not a rank; the parameter groups of the ranks differ; or the state holds something
            other than dense tensors, numbers (also NumPy's), text, None, lists, tuples and dicts. The text names it,
            the same on all ranks.
    """
    store = session.own_store(store)
    tensors: list[torch.Tensor] = []
    described: Any = None
    with told_to_all(store.engine, "broadcast_optimizer_state"):
        _check_root(store, "broadcast_optimizer_state", root_rank)
        if store.rank == root_rank:
            state = optimizer.state_dict()
            state.pop(STATE_KEY, None)  # what a rank has not sent yet is its own
            described = _describe("the state", state, tensors)
        groups = [len(group["params"]) for group in optimizer.param_groups]
        blob = json.dumps([root_rank, groups, described]).encode()
    blobs = store.engine.all_gather("broadcast_optimizer_state", blob)
    roots, groups_of, states = zip(*(json.loads(blob) for blob in blobs), strict=True)
    _require_same_root("broadcast_optimizer_state", roots)
    for rank, found in enumerate(groups_of):
        alone = store.generation > 1 and rank != store.rank  # as in broadcast_parameters()
        if found != groups_of[root_rank] and not alone:
            raise ValueError(
                f"broadcast_optimizer_state: rank {root_rank} has parameter groups of {groups_of[root_rank]} "
                f"parameters, rank {rank} of {found}; give the same parameter groups on every rank"
            )
    if store.rank != root_rank:
        state = _rebuild(states[root_rank], tensors)
    _broadcast(store, tensors, root_rank)
    if store.rank != root_rank:
        # What this rank has not sent yet stays.
        load = getattr(optimizer, "load_shared_state", optimizer.load_state_dict)
        load(state)
        _take_dtypes(optimizer, state["state"])


def _take_dtypes(optimizer: torch.optim.Optimizer, state: Mapping[Any, Any]) -> None:
    """Puts tensors of a state that load_state_dict() has cast to their parameter's dtype, as torch's does, back as they
    came: an optimizer may keep float32 for bfloat16 parameters, and steps of the ranks must not differ.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, given in state.items():
        owner = parameters[index] if isinstance(index, int) and index < len(parameters) else index
        if owner in optimizer.state:
            optimizer.state[owner] = _as_given(optimizer.state[owner], given)


def _as_given(loaded: Any, given: Any) -> Any:
    """Returns what was loaded, with given's tensors where dtypes differ."""
    if isinstance(loaded, torch.Tensor) and isinstance(given, torch.Tensor):
        return loaded if loaded.dtype == given.dtype else given.to(loaded.device)
    if isinstance(loaded, dict) and isinstance(given, Mapping):
        loaded.update({name: _as_given(value, given.get(name)) for name, value in loaded.items()})
        return loaded
    if isinstance(loaded, list | tuple) and isinstance(given, list | tuple) and len(loaded) == len(given):
        return type(loaded)(_as_given(a, b) for a, b in zip(loaded, given, strict=True))
    return loaded


def _pairs(parameters: Any) -> list[tuple[str, Any]]:
    pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
    given = list(pairs) if isinstance(pairs, Iterable) else [pairs]
    for pair in given:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError(
                f"broadcast_parameters: given a {type(pair).__name__}, expected names with tensors; pass "
                "model.state_dict() or model.named_parameters()"
            )
    return given


def _check_root(store: kv.KVStore, what: str, root_rank: int) -> None:
    if not 0 <= root_rank < store.num_workers:
        raise ValueError(f"{what}: root_rank={root_rank} is no rank; expected 0 to {store.num_workers - 1}")


def _require_same_root(verb: str, roots: Sequence[int]) -> None:
    for rank, given in enumerate(roots):
        if given != roots[0]:
            raise ValueError(
                f"{verb}: root_rank is {roots[0]} on rank 0 and {given} on rank {rank}; give the same on every rank"
            )


def _require_same(wanted: Sequence[Any], found: Sequence[Any], root_rank: int, rank: int) -> None:
    for ours, theirs in itertools.zip_longest(wanted, found):
        if ours != theirs:
            raise ValueError(
                f"broadcast_parameters: rank {root_rank} has {_entry(ours)} where rank {rank} has "
                f"{_entry(theirs)}; give the same tensors in the same order on every rank"
            )


def _entry(entry: Sequence[Any] | None) -> str:
    if entry is None:
        return "nothing"
    name, dtype, shape, kind = entry
    return f"{name!r} {dtype} {tuple(shape)}" + (f" ({kind})" if kind else "")


def _layout_of(tensor: torch.Tensor) -> list[Any]:
    """Dtype, shape, and what is unusual about it: ranks must agree in all three."""
    return [_dtype_name(tensor), list(tensor.shape), _kind_of(tensor)]


def _kind_of(tensor: torch.Tensor) -> str:
    if tensor.layout != torch.strided:
        return str(tensor.layout)
    if hasattr(tensor, "device_mesh"):
        return "a DTensor"
    if tensor.is_quantized:
        return "quantized"
    if tensor.device.type == "meta":
        return "on the meta device"
    shared = [
        i
        for i, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
        if size > 1 and not stride
    ]
    return f"expanded in dimension {', '.join(map(str, shared))}" if shared else ""


def _require_memory(verb: str, what: str, kind: str) -> None:
    """Raises ValueError for a tensor that has no dense memory of its own."""
    if kind and not kind.startswith("expanded"):
        raise ValueError(
            f"{verb}: {what} is {kind}, expected a dense tensor of this rank's own; leave it out, or give a dense copy"
        )


def _own_elements(tensor: torch.Tensor) -> torch.Tensor:
    """A view of each element in memory once: of what was expanded, the tensor before."""
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


@torch.no_grad()
def _broadcast(store: kv.KVStore, tensors: Sequence[torch.Tensor], root_rank: int) -> None:
    """Overwrites tensors, whose layout is the same on all ranks, with the root's, all in one message."""
    tensors = [_own_elements(tensor) for tensor in tensors]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    # view() to a dtype asks for a start that is a multiple of its element: complex128 has 16 bytes.
    starts = list(itertools.accumulate((-(-size // 16) * 16 for size in sizes), initial=0))
    words = np.zeros(starts[-1] // 4, dtype=np.float32)  # floats to the engine, which moves them as they are
    octets = torch.from_numpy(words.view(np.uint8))
    if words.size == 0:
        return
    runs = [octets[start : start + size] for start, size in zip(starts, sizes, strict=False)]
    if store.rank == root_rank:
        for run, tensor in zip(runs, tensors, strict=True):
            run.copy_(octets_of(tensor))
    if connect.sums_in_one_order(store.type):
        _broadcast_by_key(store, words, root_rank)
    else:
        store.collectives.broadcast(words.view(np.uint8), root_rank)
    for run, tensor in zip(runs, tensors, strict=True):
        tensor.copy_(run.view(tensor.dtype).view(tensor.shape))


def _broadcast_by_key(store: kv.KVStore, words: Any, root_rank: int) -> None:
    """For stores without collectives. The key stays, so it is for these alone."""
    number = next(_calls.setdefault(store, itertools.count()))
    (key,) = store.engine.declare([(f"broadcast.{number}", [words.size], "float32")])
    store.engine.init([key], [words], root_rank)
    store.engine.pull(key, words).wait()


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _describe(what: str, value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns value as JSON has it, its tensors moved to the list and described by dtype and shape. what: value, to
    people.
    """
    if isinstance(value, torch.Tensor):
        dtype, shape, kind = _layout_of(value)
        _require_memory("broadcast_optimizer_state", what, kind)
        tensors.append(value.contiguous() if kind else value)
        return {"tensor": [dtype, shape]}
    if isinstance(value, Mapping):
        return {
            "mapping": [
                [_describe(f"a key of {what}", k, tensors), _describe(f"{what}[{k!r}]", v, tensors)]
                for k, v in value.items()
            ]
        }
    if isinstance(value, tuple):
        return {"tuple": [_describe(f"{what}[{i}]", item, tensors) for i, item in enumerate(value)]}
    if isinstance(value, list):
        return [_describe(f"{what}[{i}]", item, tensors) for i, item in enumerate(value)]
    if isinstance(value, np.generic):
        return _describe(what, value.item(), tensors)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"broadcast_optimizer_state: {what} is a {type(value).__name__}, expected tensors, numbers, "
        "text, None, lists, tuples and dicts; load a checkpoint on every rank instead"
    )


def _rebuild(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Undoes _describe, with tensors of zeros."""
    if isinstance(value, list):
        return [_rebuild(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        name, shape = value["tensor"]
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"broadcast_optimizer_state: {name!r} is no dtype of this PyTorch")
        tensors.append(torch.zeros(shape, dtype=dtype, device="cpu"))
        return tensors[-1]
    if "tuple" in value:
        return tuple(_rebuild(item, tensors) for item in value["tuple"])
    return {_rebuild(k, tensors): _rebuild(v, tensors) for k, v in value["mapping"]}
