"""FSDP2: the reduce-scatter of gradients, compressed, by torch's own extension point.

    fully_shard(model)
    compressed = gradwire.torch.compress_reduce_scatter(model, codec="int8")

Each rank encodes the shards that others own, with a residual of its own for every element, and sends each to its owner,
which decodes and adds what it got in rank order: P (N-1)/N bytes of payload leave a rank, as in torch's. With codec
"none" shards go in their own dtype, and are divided before they are added, in float32 or float64. Parameters are
gathered as torch does it: every rank must have the same bits of them.

Each FSDP module has its own reduce-scatter, of all its parameters: biases and norms are compressed with the rest. Where
any rank met a NaN or an infinity in one, all its shards are NaN, with a warning, and when that backward() is over the
residuals of all modules are as they were before it: the step must not be taken, as GradScaler sees to. With
grad_scaler the same holds for a value beyond the codec's format (fp16's 65504); without it the largest is sent, with a
warning. With several backward() a step, each of which reduces, those before it have left their residuals. A backward()
that raises an error is over then.

A checkpoint has what `compressed.state_dict()` returns on each rank beside model and optimizer; or all of a job is
saved by gradwire.torch.save_checkpoint(), or by torch.distributed.checkpoint, which takes `compressed` as it is.

Threading: called from autograd's thread; it waits until the shard is there.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from gradwire.kv import KVStore
from gradwire.torch import session
from gradwire.torch.ddp.hook_checkpoint import ScattersPart
from gradwire.torch.distributed_checkpoint import by_rank, is_for_distributed_checkpoint, of_rank
from gradwire.torch.exchange_options import enabled_scaler
from gradwire.torch.process_group import store_of
from gradwire.torch.sharded.scatter import CompressedReduceScatter, ScatteringBackward


def compress_reduce_scatter(
    model: torch.nn.Module,
    codec: session.Wanted,
    process_group: dist.ProcessGroup | None = None,
    *,
    grad_scaler: Any = None,
) -> ReduceScatters:
    """Compresses the gradients of every FSDP module in a model. A collective of the group, after fully_shard().

    A residual stays with its parameter: with a lossy codec, parameters that get no gradient in a backward() take part
    with zeros, and have a gradient then (torch's set_reduce_scatter_unused_params), and one that is frozen keeps what
    it has not sent until it thaws. Where torch has no such switch, and a backward() leaves parameters out, the module's
    residuals begin anew, with a warning.

    Args:
        model: what fully_shard() was called on, its parts included.
        codec: as `compression` of DistributedOptimizer; GRADWIRE_COMPRESSION overrides it. A reply makes no sense
            here: each shard has one owner, which keeps the exact sum of what it was sent. All but "none" work in
            float32, complex numbers as pairs.
        process_group: the one that the model is sharded over. Default: torch's default group.
        grad_scaler: the torch.amp.GradScaler that scales the loss, if one does. Gradients are sent without its scale,
            so that residuals do not change their meaning with it.

    Returns: what checkpoints of this rank need: its state_dict() and load_state_dict().

    Raises:
        ValueError: nothing in the model is an FSDP module; a bad codec; the store at hand has other ranks.
        TypeError: grad_scaler is something else.
    """
    modules = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    if not modules:
        raise ValueError(
            "gradwire.torch: compress_reduce_scatter: no module of the model is an FSDPModule; call "
            "torch.distributed.fsdp.fully_shard(model) first"
        )
    scaler = enabled_scaler(grad_scaler)
    store = store_of(process_group)
    backward = ScatteringBackward(store)
    scatters = {}
    for number, (name, module) in enumerate(modules.items()):
        scatter = CompressedReduceScatter(
            store, session.chosen(codec), number, module, name, backward, scaler
        )
        module.set_custom_reduce_scatter(scatter)
        scatters[name] = scatter
    return ReduceScatters(store, scatters)


class ReduceScatters:
    """Those of one model, which compress_reduce_scatter() has made."""

    def __init__(self, store: KVStore, scatters: Mapping[str, CompressedReduceScatter]) -> None:
        """
        Args:
            store: its workers are the group's ranks.
            scatters: by the names of their modules.
        """
        self._store = store
        self._scatters = scatters

    def state_dict(self) -> dict[str, Any]:
        """Returns what this rank has not sent yet, and scales that ranks have agreed on: tensors, text and numbers, by
        FSDP module. Save it on every rank, beside the model. Empty where nothing is kept.

        torch.distributed.checkpoint, which keeps one of what all ranks call alike, gets it as bytes by rank.
        """
        own = self.own_state()
        return by_rank(own, *self._ranks) if is_for_distributed_checkpoint() else own

    @property
    def store(self) -> KVStore:
        return self._store

    def checkpoint_part(self, listed: Sequence[Any], model: torch.nn.Module) -> ScattersPart:
        """What save_checkpoint() writes of it.

        Raises:
            TypeError: there is more than this in the list.
        """
        if len(listed) > 1:
            raise TypeError(
                "gradwire.torch: optimizer holds several things, of which one is what compress_reduce_scatter() has "
                "returned, expected that alone; save each sharded model to a folder of its own"
            )
        return ScattersPart(self)

    @property
    def _ranks(self) -> tuple[int, int]:
        return self._store.rank, self._store.num_workers

    def own_state(self) -> dict[str, Any]:
        """state_dict(), whoever asks."""
        modules = {name: scatter.state() for name, scatter in self._scatters.items()}
        kept = {name: state for name, state in modules.items() if state is not None}
        ranks = {"rank": self._store.rank, "num_workers": self._store.num_workers}
        return ranks | {"modules": kept} if kept else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from it: with the bits of a run that never stopped, where model and optimizer do too. Modules that it
        lacks begin with nothing left to send; those whose codec is "none" now send what was left with the next
        gradient. Residuals of another rank are left, with a warning: they are what that rank has not sent.

        Raises:
            ValueError: it is of another number of ranks, which cut gradients into other shards; or of a module that is
                not here. Nothing has changed.
        """
        state = of_rank(state, *self._ranks)
        if state and state["num_workers"] != self._store.num_workers:
            raise ValueError(
                f"gradwire.torch: what FSDP's reduce-scatters have not sent yet was saved on {state['num_workers']} "
                f"ranks, and here are {self._store.num_workers}, whose shards are others; load it on "
                f"{state['num_workers']} ranks, or begin without; gradwire.torch.load_checkpoint() takes it to any "
                "number of ranks"
            )
        self.require_modules(state)
        is_own = not state or state["rank"] == self._store.rank
        if not is_own:
            warnings.warn(
                f"gradwire.torch: the checkpoint holds the residuals of rank {state['rank']}, so rank "
                f"{self._store.rank} begins without; save compress_reduce_scatter()'s state on every rank to keep them",
                stacklevel=2,
            )
        modules = state.get("modules", {})
        for name, scatter in self._scatters.items():
            scatter.load(modules.get(name), is_own=is_own)

    def inherit(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Goes on from what own_state() returned on ranks of a job that had another number of them: this rank sends
        what those have not sent.

        Args:
            states: theirs; none: it begins with nothing left to send.

        Raises:
            ValueError: one is of a module that is not here. Nothing has changed.
        """
        for state in states:
            self.require_modules(state)
        for name, scatter in self._scatters.items():
            scatter.inherit([state["modules"][name] for state in states if name in state.get("modules", {})])

    def require_modules(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError where a state has a module that is not here."""
        if unknown := sorted(state.get("modules", {}).keys() - self._scatters.keys()):
            raise ValueError(
                f"gradwire.torch: the state has the FSDP module {unknown[0]!r}, expected of {sorted(self._scatters)}; "
                "call fully_shard() on the parts that it was called on when the state was saved, or begin without"
            )

    def __reduce__(self) -> Any:
        raise TypeError(
            "gradwire.torch: what compress_reduce_scatter() returned cannot be pickled or copied: it is of this "
            "process; save its state_dict() on every rank"
        )
