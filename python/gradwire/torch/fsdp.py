"""FSDP2: the reduce-scatter of gradients, compressed, by torch's own extension point.

    fully_shard(model)
    compressed = gradwire.torch.compress_reduce_scatter(model, codec="int8")

Each rank encodes the shards that others own, with a residual of its own for every element, and sends each to its owner,
which decodes and adds what it got in rank order: P (N-1)/N bytes of payload leave a rank, as in torch's. Parameters are
gathered as torch does it: every rank must have the same bits of them.

Each FSDP module has its own reduce-scatter, of all its parameters: biases and norms are compressed with the rest. Where
any rank met a NaN or an infinity in one, all its shards are NaN, with a warning, and when that backward() is over the
residuals of all modules are as they were before it: the step must not be taken, as GradScaler sees to. With
grad_scaler the same holds for a value beyond the codec's format (fp16's 65504); without it the largest is sent, with a
warning. With several backward() a step, each of which reduces, those before it have left their residuals.

A checkpoint has what `compressed.state_dict()` returns on each rank beside model and optimizer.

Threading: called from autograd's thread; it waits until the shard is there.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from gradwire import compress
from gradwire.gathered_sum import Met, encode, noted, read, warn_of_kept_rest, warn_of_nan_sum
from gradwire.kv import KVStore
from gradwire.torch import session
from gradwire.torch.exchange_options import enabled_scaler
from gradwire.torch.process_group import store_of


def compress_reduce_scatter(
    model: torch.nn.Module,
    codec: session.Wanted,
    process_group: dist.ProcessGroup | None = None,
    *,
    grad_scaler: Any = None,
) -> ReduceScatters:
    """Compresses the gradients of every FSDP module in a model. A collective of the group, after fully_shard().

    A residual stays with its parameter: with a lossy codec, parameters that get no gradient in a backward() take part
    with zeros, and have a gradient then (torch's set_reduce_scatter_unused_params). Where torch has no such switch, and
    when parameters are frozen or thawed, the module's residuals begin anew, with a warning.

    Args:
        model: what fully_shard() was called on, its parts included.
        codec: as `compression` of DistributedOptimizer; GRADWIRE_COMPRESSION overrides it. A reply makes no sense
            here: each shard has one owner, which keeps the exact sum of what it was sent.
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
    backward = _Backward()
    scatters = {}
    for number, (name, module) in enumerate(modules.items()):
        scatter = CompressedReduceScatter(store, session.chosen(codec), number, backward, scaler)
        module.set_custom_reduce_scatter(scatter)
        if scatter.is_lossy and hasattr(module, "set_reduce_scatter_unused_params"):
            module.set_reduce_scatter_unused_params(True, recurse=False)
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
        """
        modules = {name: scatter.state() for name, scatter in self._scatters.items()}
        kept = {name: state for name, state in modules.items() if state is not None}
        ranks = {"rank": self._store.rank, "num_workers": self._store.num_workers}
        return ranks | {"modules": kept} if kept else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from it: with the bits of a run that never stopped, where model and optimizer do too. Modules that it
        lacks begin with nothing left to send, and so do those whose codec is "none" now. Residuals of another rank are
        left, with a warning: they are what that rank still owes.

        Raises:
            ValueError: it is of another number of ranks, which cut gradients into other shards; or of a module that is
                not here. Nothing has changed.
        """
        ranks = self._store.num_workers
        modules: Mapping[str, Mapping[str, Any]] = state.get("modules", {})
        if modules and state["num_workers"] != ranks:
            raise ValueError(
                f"gradwire.torch: what FSDP's reduce-scatters have not sent yet was saved on {state['num_workers']} "
                f"ranks, and here are {ranks}, whose shards are others; load it on {state['num_workers']} ranks, or "
                "begin without"
            )
        if unknown := sorted(modules.keys() - self._scatters.keys()):
            raise ValueError(
                f"gradwire.torch: the state has the FSDP module {unknown[0]!r}, expected of {sorted(self._scatters)}; "
                "call fully_shard() on the parts that it was called on when the state was saved, or begin without"
            )
        is_own = not modules or state["rank"] == self._store.rank
        if not is_own:
            warnings.warn(
                f"gradwire.torch: the checkpoint holds the residuals of rank {state['rank']}, so rank "
                f"{self._store.rank} begins without; save compress_reduce_scatter()'s state on every rank to keep them",
                stacklevel=2,
            )
        for name, scatter in self._scatters.items():
            scatter.load(modules.get(name), is_own=is_own)


@dataclass
class _State:
    """What a reduce-scatter leaves for the next, by owner of the shard."""

    elements: int  # of a shard
    residuals: list[Any]
    scales: list[Any]  # where the codec agrees them
    step: int

    def copy(self) -> _State:
        residuals = [None if residual is None else residual.copy() for residual in self.residuals]
        return _State(self.elements, residuals, list(self.scales), self.step)


class CompressedReduceScatter(ReduceScatter):
    """The reduce-scatter of one FSDP module."""

    def __init__(
        self, store: KVStore, wanted: session.Wanted, number: int, backward: _Backward, grad_scaler: Any
    ) -> None:
        """
        Args:
            store: its workers are the group's ranks.
            wanted: the codec.
            number: tells modules apart, the same on all ranks.
            backward: the model's, of all its modules.
            grad_scaler: scales the loss, or None.
        """
        self._store = store
        self._spec = session.parse_compression(wanted).spec
        self._codec = compress.make(self._spec)
        self._number = number
        self._backward = backward
        self._grad_scaler = grad_scaler
        self._state: _State | None = None
        self._kept: _State | None = None  # as of the last backward() that is over

    @property
    def is_lossy(self) -> bool:
        """Whether there are residuals."""
        return self._codec.lossy

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Writes this rank's shard of the sum, or mean, to output_tensor.

        Args:
            input_tensor: (ranks * elements,), the shards one behind the other, of any floating dtype.
            output_tensor: (elements,), of the same.
            op: ReduceOp.SUM or ReduceOp.AVG.

        Raises:
            ValueError: another op, or a group of other ranks than the store's.
        """
        ranks = self._store.num_workers
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise ValueError(f"gradwire.torch: reduce_scatter: op is {op}, expected SUM or AVG")
        if group.size() != ranks:
            raise ValueError(
                f"gradwire.torch: reduce_scatter: the group has {group.size()} ranks, the store {ranks}; give "
                "compress_reduce_scatter() the group that the model is sharded over"
            )
        self._backward.enter(self)
        shards = input_tensor.detach().to(device="cpu", dtype=torch.float32).view(ranks, -1)
        scale = 1.0 if self._grad_scaler is None else float(self._grad_scaler.get_scale())
        if scale != 1.0:
            shards = shards / scale
        total = torch.from_numpy(self._reduce(shards.numpy())) * scale
        if op == dist.ReduceOp.AVG:
            total /= ranks
        output_tensor.copy_(total.view_as(output_tensor))

    def state(self) -> dict[str, Any] | None:
        """What it leaves for the next; None: nothing."""
        if self._state is None or not self.is_lossy:
            return None
        scales = [None if one is None else torch.from_numpy(one.copy()) for one in self._state.scales]
        return {
            "codec": self._spec,
            "residuals": torch.from_numpy(np.stack(self._state.residuals)),
            "scales": scales,
            "step": self._state.step,
        }

    def load(self, saved: Mapping[str, Any] | None, *, is_own: bool) -> None:
        """Goes on from what state() returned.

        Args:
            is_own: it is of this rank; if not, all but the residuals is the same on all ranks.
        """
        self._state = self._kept = None
        if saved is None or not self.is_lossy:
            return
        residuals = saved["residuals"].float().cpu().numpy()
        scales = saved["scales"] if saved["codec"] == self._spec else [None] * len(residuals)
        self._state = self._kept = _State(
            residuals.shape[1],
            [residual.copy() if is_own else np.zeros_like(residual) for residual in residuals],
            [None if one is None else one.cpu().numpy().copy() for one in scales],
            int(saved["step"]),
        )

    def end_backward(self, *, vetoed: bool) -> None:
        """Keeps what the backward() that is over has left, or goes back to what was before it."""
        if vetoed:
            self._state = self._kept
        else:
            self._kept = self._state

    def _reduce(self, shards: Any) -> Any:
        """Returns the sum of this rank's shard, float32 (elements,)."""
        elements = shards.shape[1]
        state = self._next_state(shards.shape)
        made = [self._encode(state, owner, shard) for owner, shard in enumerate(shards)]
        # All owners hear of all shards, whose residuals are kept or taken back as one.
        own = max(met for _, met in made)
        received, met = read(self._store.collectives.all_to_all([noted(payload, own) for payload, _ in made]))
        if met == Met.NONFINITE or (met == Met.BEYOND and self._grad_scaler is not None):
            self._backward.veto()
            if self._grad_scaler is None:  # to a GradScaler it is its daily work
                warn_of_nan_sum()
            return np.full(elements, np.nan, np.float32)
        if met == Met.BEYOND:
            warn_of_kept_rest()
        self._state = state
        state.step += 1
        if not self._codec.agrees_scales:
            return self._codec.decode_sum(received, elements)
        reply = self._codec.encode_reply(received, elements, reply="fp32")
        total, mine = self._codec.decode_reply(reply, len(received), elements, reply="fp32")
        state.scales = [np.ascontiguousarray(s) for s in self._store.collectives.all_gather(mine)]
        return total

    def _next_state(self, shape: tuple[int, ...]) -> _State:
        """A copy of what the last reduce-scatter has left. Of gradients of another size it has left nothing."""
        if self._state is not None and self._state.elements == shape[1]:
            return self._state.copy()
        if self._state is not None and self._codec.lossy:
            _warn_of_lost_residuals(self._state.elements, shape[1])
        residuals = [np.zeros(shape[1], np.float32) if self._codec.lossy else None for _ in range(shape[0])]
        step = 0 if self._state is None else self._state.step
        return _State(shape[1], residuals, [None] * shape[0], step)

    def _encode(self, state: _State, owner: int, shard: Any) -> tuple[Any, Met]:
        return encode(
            self._codec,
            self._spec,
            np.ascontiguousarray(shard),
            residual=state.residuals[owner],
            scales=state.scales[owner],
            key=self._number * self._store.num_workers + owner,
            rank=self._store.rank,
            step=state.step,
        )


class _Backward:
    """What the modules of a model share of one backward(): when it is over, and whether any of them met a NaN."""

    def __init__(self) -> None:
        self._entered: set[CompressedReduceScatter] = set()
        self._vetoed = False

    def enter(self, scatter: CompressedReduceScatter) -> None:
        """Has it hear the end of the backward() that runs."""
        self._entered.add(scatter)
        Variable._execution_engine.queue_callback(self._end)  # one may fail, so each call begins it anew

    def veto(self) -> None:
        """Takes back what all of them do in it."""
        self._vetoed = True

    def _end(self) -> None:
        for scatter in self._entered:
            scatter.end_backward(vetoed=self._vetoed)
        self._entered.clear()
        self._vetoed = False


def _warn_of_lost_residuals(before: int, now: int) -> None:
    warnings.warn(
        f"gradwire.torch: an FSDP module's gradients have {now} elements a shard and had {before}, so what its codec "
        "has not sent yet is dropped: parameters were frozen or thawed, or get no gradient in some steps, which costs "
        "accuracy where torch has no set_reduce_scatter_unused_params()",
        RuntimeWarning,
        stacklevel=2,
    )
