"""FSDP2: compresses the reduce-scatter of gradients, through torch's own extension point.

    fully_shard(model)
    compressed = gradwire.torch.compress_reduce_scatter(model, codec="int8")

Each rank encodes the shards that other ranks own, with a residual for every element, and sends each to its owner. The
owner decodes and adds in rank order. P (N-1)/N bytes of payload leave a rank, as in torch's reduce-scatter of N ranks.
With codec "none", shards are sent in their own dtype and divided before they are added, in float32 or float64. torch
gathers the parameters, so every rank must have the same bits of them.

Each FSDP module has its own reduce-scatter, of all its parameters: biases and norms are compressed too. If any rank has
a NaN or an infinity in a module, all its shards are NaN, with a warning, and its residuals are as they were before. Do
not take the step; a GradScaler skips it. With grad_scaler, or on_nonfinite="skip_step", the residuals of all modules
are restored after that backward(), and a value beyond the codec's format (fp16's 65504) has the same effect. Else the
largest value is sent, with a warning. If a step has several backward() calls that reduce, the residuals of the earlier
calls are kept. A backward() that raises an error is over.

A residual is as large as the whole model on every rank, since a rank encodes all shards of its gradients: 4 bytes for
each parameter; 2 with residual_dtype=torch.bfloat16 or GRADWIRE_RESIDUAL_DTYPE=bfloat16; none with "none". It is twice
that where residuals are restored after a NaN.

For a checkpoint, save `compressed.state_dict()` on each rank beside model and optimizer. Or save all of a job with
gradwire.torch.save_checkpoint(), or with torch.distributed.checkpoint, which accepts `compressed` as it is.

Sums are made while backward() goes on. When it returns, p.grad holds this rank's shard of the mean, as without
gradwire.

Threading: called on autograd's thread.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from gradwire.kv import KVStore
from gradwire.settings import definitions as settings
from gradwire.torch import session
from gradwire.torch.checkpoint import require_alone
from gradwire.torch.codecs import adam_warning
from gradwire.torch.ddp.hook_checkpoint import ScattersPart
from gradwire.torch.distributed_checkpoint import by_rank, is_for_distributed_checkpoint, of_rank
from gradwire.torch.exchange_options import OnNonfinite, enabled_scaler, require_on_nonfinite
from gradwire.torch.process_group import require_alike, store_of
from gradwire.torch.sharded.layout import finder, in_words, parameter_groups, sharded_modules
from gradwire.torch.sharded.scatter import CompressedReduceScatter, ScatterOptions
from gradwire.torch.sharded.scattering_backward import ScatteringBackward

_WHO = "gradwire.torch: compress_reduce_scatter"


def compress_reduce_scatter(
    model: torch.nn.Module,
    codec: session.Wanted,
    process_group: dist.ProcessGroup | None = None,
    *,
    grad_scaler: Any = None,
    on_nonfinite: OnNonfinite = "warn",
    residual_dtype: torch.dtype | Literal["none"] | None = None,
) -> ReduceScatters:
    """Compresses the gradients of every FSDP module in a model. A collective of the group, after fully_shard().

    A residual stays with its parameter. With a lossy codec, parameters without a gradient in a backward() count as
    zeros, and then have a gradient (torch's set_reduce_scatter_unused_params). A frozen parameter keeps its residual.
    If torch has no such switch, and a backward() leaves parameters out, the module's residuals start again, with a
    warning.

    Args:
        model: the module that fully_shard() was called on, with its parts.
        codec: as `compression` of DistributedOptimizer, except "auto". GRADWIRE_COMPRESSION overrides it. A reply has
            no effect: each shard has one owner, which keeps the exact sum of what it received. All codecs but "none"
            work in float32, with complex numbers as pairs. With Adam and AdamW use "int8": 2bit and 1bit lose accuracy
            with them.
        process_group: the process group over which the model is sharded. Default: torch's default group.
        grad_scaler: the torch.amp.GradScaler that scales the loss. Gradients are sent without its scale, so that
            residuals keep their meaning when the scale changes. Default: None.
        on_nonfinite: what to do if any rank meets a NaN or an infinity: "warn", or "ignore": no warning. "skip_step":
            the script does not take the step, so the residuals of all modules are restored. Default: "warn".
        residual_dtype: torch.float32, or torch.bfloat16: half the memory. What is below 1/512 of a residual is then
            lost. "none": nothing is kept, and what the codec leaves out is lost; not for 2bit, 1bit, topk and
            randomk. Default: that of GRADWIRE_RESIDUAL_DTYPE, which is float32 unless it is set.

    Returns: an object with what was saved, stats(), and with the state that checkpoints of this rank need: state_dict()
        and load_state_dict().

    Raises:
        ValueError: no module of the model is an FSDP module, or they are compressed already; a bad codec; ranks differ;
            the store has other ranks than the group.
        TypeError: an argument has the wrong type.
    """
    modules = sharded_modules(_WHO, model)
    if any(map(_is_compressed, modules.values())):
        raise ValueError(
            f"{_WHO}: the model's reduce-scatter is compressed already; call it once for a model"
        )
    if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
        raise TypeError(
            f"{_WHO}: process_group is a {type(process_group).__name__}, expected a torch.distributed.ProcessGroup"
        )
    wanted = session.chosen(codec)
    spec, scaler, failure = "", None, None
    kept_in: torch.dtype | None = torch.float32
    try:
        spec = session.parse_compression(wanted).spec
        require_on_nonfinite("compress_reduce_scatter", on_nonfinite)
        kept_in = _residual_dtype(residual_dtype)
        scaler = enabled_scaler(grad_scaler)
    except (TypeError, ValueError) as error:  # the other ranks must hear of it
        failure = error
    group = process_group or dist.group.WORLD
    assert group is not None  # or no module could be sharded
    options = ScatterOptions(scaler, on_nonfinite, kept_in)
    told = {
        "codec": wanted,
        "grad_scaler": scaler is not None,
        "on_nonfinite": on_nonfinite,
        "residual_dtype": kept_in,
    }
    require_alike(_WHO, [group], told, failure)
    store = store_of(process_group)
    backward = ScatteringBackward(store, functools.partial(_warn_of_left_out, weakref.ref(model)))
    scatters = {}
    for number, (name, module) in enumerate(modules.items()):
        scatter = CompressedReduceScatter(store, spec, number, module, name, backward, options)
        module.set_custom_reduce_scatter(scatter)
        scatters[name] = scatter
    groups = [group for module in modules.values() for group in parameter_groups(module)]
    adam_warning.watch((finder(each), spec) for group in groups for each in group.fsdp_params)
    return ReduceScatters(store, scatters)


def _residual_dtype(wanted: Any) -> torch.dtype | None:
    """Returns what ScatterOptions has."""
    if wanted is None:
        named = settings.read().residual_dtype
        wanted = named if named == "none" else getattr(torch, named)
    if wanted == "none":
        return None
    if wanted not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"{_WHO}: residual_dtype={wanted!r}: expected torch.float32, torch.bfloat16 or 'none'"
        )
    return wanted  # type: ignore[no-any-return]


def _is_compressed(module: FSDPModule) -> bool:
    return any(
        isinstance(each._reduce_scatter_comm, CompressedReduceScatter) for each in parameter_groups(module)
    )


def _warn_of_left_out(model: weakref.ref[torch.nn.Module]) -> None:
    """Warns if FSDP modules of the model were made too late."""
    modules = sharded_modules(_WHO, there).items() if (there := model()) is not None else []
    if left_out := [name for name, module in modules if not _is_compressed(module)]:
        warnings.warn(
            f"{_WHO}: fully_shard() was called on {in_words(left_out[0])} after compress_reduce_scatter(), so its "
            "gradients are not compressed; call compress_reduce_scatter() after all fully_shard()",
            stacklevel=2,
        )


class ReduceScatters:
    """The compressed reduce-scatters of one model. compress_reduce_scatter() makes it."""

    def __init__(self, store: KVStore, scatters: Mapping[str, CompressedReduceScatter]) -> None:
        """
        Args:
            store: its workers are the group's ranks.
            scatters: by the names of their modules.
        """
        self._store = store
        self._scatters = scatters

    def stats(self, servers: bool = False, *, residuals: bool = True) -> dict[str, Any]:
        """Returns what this rank has exchanged so far, as KVStore.stats(), of everything that uses the same store.

        Args:
            servers: include what the servers report. Default: False.
            residuals: include residual_norm, in one pass over the residuals. Default: True.
        """
        return self._store.stats(servers, residuals=residuals)

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's residuals and the agreed scales: tensors, text and numbers, by FSDP module.

        Save it on every rank, beside the model. It is empty if there is no state.

        torch.distributed.checkpoint keeps one copy of what all ranks name alike, so it gets bytes by rank.
        """
        own = self.own_state()
        return by_rank(own) if is_for_distributed_checkpoint() else own

    @property
    def store(self) -> KVStore:
        return self._store

    def checkpoint_part(self, listed: Sequence[Any], model: torch.nn.Module) -> ScattersPart:
        """Returns what save_checkpoint() writes of it.

        Raises:
            TypeError: the list has more than one element.
        """
        require_alone(listed, "compress_reduce_scatter")
        return ScattersPart(self)

    def own_state(self) -> dict[str, Any]:
        """Returns this rank's state, also for torch.distributed.checkpoint."""
        modules = {name: scatter.state() for name, scatter in self._scatters.items()}
        kept = {name: state for name, state in modules.items() if state is not None}
        ranks = {"rank": self._store.rank, "num_workers": self._store.num_workers}
        return ranks | {"modules": kept} if kept else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state_dict(), with the bits of a run that never stopped if model and optimizer do too.

        Modules that it lacks start without residuals. Modules whose codec is now "none" send their residual with the
        next gradient. Residuals of another rank are ignored, with a warning.

        Raises:
            ValueError: it was saved with another number of ranks, whose shards differ; or it has a module that is not
                in the model. Nothing has changed.
        """
        state = of_rank(state)
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
        """Continues from the own_state() of ranks of a job that had another number of ranks: this rank sends their
        residuals.

        Args:
            states: their states; if empty, this rank starts without residuals.

        Raises:
            ValueError: one has a module that is not in the model. Nothing has changed.
        """
        for state in states:
            self.require_modules(state)
        for name, scatter in self._scatters.items():
            scatter.inherit([state["modules"][name] for state in states if name in state.get("modules", {})])

    def require_modules(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if a state has a module that is not in the model."""
        if unknown := sorted(state.get("modules", {}).keys() - self._scatters.keys()):
            raise ValueError(
                f"gradwire.torch: the state has {in_words(unknown[0])}, expected of {sorted(self._scatters)}; "
                "call fully_shard() on the parts that it was called on when the state was saved, or begin without"
            )

    def __reduce__(self) -> Any:
        raise TypeError(
            "gradwire.torch: what compress_reduce_scatter() returned cannot be pickled or copied: it is of this "
            "process; save its state_dict() on every rank"
        )
