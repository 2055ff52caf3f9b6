"""The reduce-scatter of one FSDP module, as torch calls it.

The sum is made while backward() goes on; module_shards.py says where it goes then.

Threading: called from autograd's thread. Sums are encoded, sent and decoded on a thread of the store's collectives. A
module's state is that thread's while its sum is on its way, and else autograd's.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin

from gradwire import compress
from gradwire.gathered_sum import Met, noted, read, warn_of_kept_rest, warn_of_nan_sum
from gradwire.kv import KVStore
from gradwire.torch.elements import as_real, exchanged_dtype
from gradwire.torch.exchange_options import OnNonfinite, vetoes
from gradwire.torch.sharded.layout import Layout, TrainedParameters, in_words, parameter_groups, read_layout
from gradwire.torch.sharded.module_shards import ModuleShards
from gradwire.torch.sharded.scattering_backward import ScatteringBackward
from gradwire.torch.sharded.shard_codec import ShardCodec, shard_codec

_OTHER_OPS = (
    "expected SUM, AVG or PREMUL_SUM, which FSDP2 asks for; module.set_force_sum_reduction_for_comms(True) has it ask "
    "for SUM, whatever set_gradient_divide_factor() says"
)


@dataclass(frozen=True)
class ScatterOptions:
    """What compress_reduce_scatter() was given for all modules of a model.

    Attributes:
        grad_scaler: scales the loss, or None.
        on_nonfinite: as of HookState.
        residual_dtype: in which residuals are kept from one backward() to the next; None: they are not.
    """

    grad_scaler: Any
    on_nonfinite: OnNonfinite
    residual_dtype: torch.dtype | None

    @property
    def vetoes(self) -> bool:
        """Whether what was sent in a step with a NaN is taken back."""
        return vetoes(self.on_nonfinite, self.grad_scaler)


@dataclass
class _State:
    """What a reduce-scatter leaves for the next."""

    elements: int  # of a shard
    # By owner of the shard: (elements,), where the gradients are. Empty: none are kept.
    residuals: list[torch.Tensor]
    scales: list[torch.Tensor | None]  # by owner, where the codec agrees them
    step: int
    layout: (
        Layout | None
    )  # None: parameters that got no gradient were left out, so nobody knows which is where
    parked: dict[str, torch.Tensor] = field(
        default_factory=dict
    )  # residuals of parameters that are not in it

    def copy(self, device: torch.device) -> _State:
        """On this device, with residuals in float32, as codecs take them."""
        residuals = [residual.to(device, torch.float32, copy=True) for residual in self.residuals]
        scales = [None if one is None else one.to(device) for one in self.scales]
        return _State(self.elements, residuals, scales, self.step, self.layout, self.parked)

    def squares(self) -> float:
        """The sum of the squares of all residuals, those that are parked included."""
        norms = [
            torch.stack([torch.linalg.vector_norm(each, dtype=torch.float64) for each in some])
            for some in (self.residuals, list(self.parked.values()))
            if some
        ]
        return sum(float(each.square().sum()) for each in norms)

    def by_parameter(self) -> dict[str, torch.Tensor]:
        """Residuals, those that are parked included."""
        if self.layout is None or not self.residuals:
            return {}
        return self.parked | self.layout.split(self.stacked())

    def stacked(self) -> torch.Tensor:
        """Residuals of all shards, float32 (ranks, elements), on the CPU; (0, elements) where none are kept."""
        if not self.residuals:
            return torch.zeros(0, self.elements, dtype=torch.float32, device="cpu")
        return torch.stack(self.residuals).float().cpu()


class CompressedReduceScatter(DefaultAllocMixin, ReduceScatter):
    """Sums the gradients of one FSDP module, each rank's shard there."""

    def __init__(
        self,
        store: KVStore,
        spec: str,
        number: int,
        module: FSDPModule,
        name: str,
        backward: ScatteringBackward,
        options: ScatterOptions,
    ) -> None:
        """
        Args:
            store: its workers are the group's ranks.
            spec: the codec's.
            number: tells modules apart, the same on all ranks.
            module: whose gradients they are; it has parameters of its own.
            name: of the module, for error texts.
            backward: the model's, of all its modules.
            options: of the model.
        """
        self._store = store
        self._spec = spec
        self._codec = compress.make(spec)
        self._coders: dict[torch.device, ShardCodec] = {}
        self._number = number
        self._module = module
        self._trained = TrainedParameters(module, store.num_workers)
        self._group = parameter_groups(module)[0]  # where a module has more, torch refuses to set this
        self._shards = ModuleShards(name, self._group, range(len(self._group.fsdp_params)))
        self._name = name
        self._backward = backward
        self._options = options
        self._state: _State | None = None
        self._kept: _State | None = None  # as of the last backward() that is over
        if self._codec.lossy:
            self._take_in_all()
        store.encoded_outside.watch(self)

    def _take_in_all(self) -> None:
        """Has parameters that get no gradient take part, with zeros: what is left of them is told apart by place."""
        if hasattr(self._module, "set_reduce_scatter_unused_params"):
            self._module.set_reduce_scatter_unused_params(True, recurse=False)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Has this rank's shard of the sum, times what op says, become its gradients: in output_tensor at once if FSDP
        needs it there, else by the end of backward().

        Args:
            input_tensor: (ranks * elements,), the shards one behind the other, of any floating or complex dtype.
            output_tensor: (elements,), of the same.
            op: ReduceOp.SUM, ReduceOp.AVG, or a ReduceOp.PREMUL_SUM.

        Raises:
            ValueError: another op, or a group of other ranks than the store's.
        """
        ranks = self._store.num_workers
        if group.size() != ranks:
            raise ValueError(
                f"gradwire.torch: reduce_scatter: the group has {group.size()} ranks, the store {ranks}; give "
                "compress_reduce_scatter() the group that the model is sharded over"
            )
        factor, output = factor_of(op, ranks), as_real(output_tensor)
        is_in_backward = self._backward.enter(self)
        coder = self._coder(input_tensor.device)
        shards, wait = coder.ready(as_real(input_tensor.detach()).reshape(ranks, -1))
        loss_scale = self._loss_scale

        def total() -> torch.Tensor:
            with coder.at_work():
                wait()
                if self._codec.lossy:
                    return self._compressed_sum(coder, shards, loss_scale) * factor
                return self._sum(shards, factor, loss_scale)

        if not is_in_backward or self._needs_sum_at_once(output):
            self._backward.begin(total, output)
            self._backward.take_in()
        elif self._shards.becomes_gradients(output):
            self._backward.begin(total, output)
            output.zero_()
        else:
            late = torch.empty_like(output)
            self._backward.begin(total, late, self._shards.cut(late, 1))
            output.zero_()

    def _coder(self, device: torch.device) -> ShardCodec:
        if device not in self._coders:
            self._coders[device] = shard_codec(self._spec, device)
        return self._coders[device]

    def _needs_sum_at_once(self, output: torch.Tensor) -> bool:
        has_replicas = hasattr(self._group.mesh_info, "replicate_process_group")  # they all-reduce the sum
        return has_replicas or self._shards.needs_mean_at_once(output)

    def _sum(self, shards: torch.Tensor, factor: float, loss_scale: float) -> torch.Tensor:
        """Returns the sum of this rank's shard, in rank order, each times the factor: float32, or float64 of such."""
        sent = self._with_leftovers(shards, loss_scale)
        self._store.encoded_outside.count(sent.nbytes, sent.nbytes)
        if self._options.vetoes:  # each rank tells all others, in one more element, whether it has met a NaN
            met = sent.new_full((len(sent), 1), float(not shards.isfinite().all()))
            sent = torch.cat([sent, met], dim=1)
        received = self._store.collectives.all_to_all(list(sent.contiguous()))
        if self._options.vetoes:
            if any(shard[-1] for shard in received):
                self._backward.veto()
            received = [shard[:-1] for shard in received]
        total = torch.zeros(shards.shape[1], dtype=exchanged_dtype(shards.dtype), device="cpu")
        for number, shard in enumerate(received):
            own = shard.to(total.dtype)
            own = own if factor == 1.0 else own * factor
            total = own if number == 0 else total + own
        return total

    def _with_leftovers(self, shards: torch.Tensor, loss_scale: float) -> torch.Tensor:
        """Adds what a lossy codec before this one has not sent, which leaves nothing but of elements that are not
        finite.
        """
        if self._state is None or not self._state.residuals:
            return shards
        state = self._next_state(shards.shape[1], shards.device)
        left = torch.stack(state.residuals)
        sent = left.where(shards.isfinite(), 0)
        state.residuals = list(left - sent)
        has_more = bool(state.parked) or any(residual.any() for residual in state.residuals)
        self._state = state if has_more else None
        return shards + sent.to(shards.dtype) * loss_scale

    @property
    def _loss_scale(self) -> float:
        scaler = self._options.grad_scaler
        return 1.0 if scaler is None else float(scaler.get_scale())

    def _compressed_sum(self, coder: ShardCodec, shards: torch.Tensor, loss_scale: float) -> torch.Tensor:
        """Returns the sum of this rank's shard, float32, where the shards are."""
        given = shards.to(torch.float32)
        if shards.dtype == torch.float64 and bool((given.isinf() & shards.isfinite()).any()):
            warnings.warn(
                f"gradwire.torch: float64 gradients of {in_words(self._name)} are beyond the largest float32, 3.4e38, "
                f"in which codec {self._spec} works, and count as infinite; use codec none for this model",
                RuntimeWarning,
                stacklevel=2,
            )
        if loss_scale != 1.0:
            given = given / loss_scale
        return self._reduce(coder, given) * loss_scale

    def residual_squares(self) -> float:
        """Returns the sum of the squares of what it has left, as of the last backward() that is over, or, where nothing
        is taken back, of its last sum. On any thread: the residuals of a state do not change once it is there.
        """
        state = self._state if self._backward.is_kept_at_once else self._kept
        return 0.0 if state is None else state.squares()

    def _timed(self, coder: ShardCodec) -> contextlib.AbstractContextManager[None]:
        """Counts codec_seconds of the CPU. On a GPU nothing is counted, since the thread also waits for the gradients
        there.
        """
        return self._store.encoded_outside.coding() if coder.is_on_host else contextlib.nullcontext()

    def state(self) -> dict[str, Any] | None:
        """What it leaves for the next; None: nothing."""
        self._backward.settle()
        if self._state is None:
            return None
        scales = [None if one is None else one.to("cpu", copy=True) for one in self._state.scales]
        return {
            "codec": self._spec,
            "residuals": self._state.stacked(),
            "scales": scales,
            "step": self._state.step,
            "layout": None if self._state.layout is None else self._state.layout.written(),
            "parked": {name: parked.clone() for name, parked in self._state.parked.items()},
        }

    def load(self, saved: Mapping[str, Any] | None, *, is_own: bool) -> None:
        """Goes on from what state() returned, on as many ranks.

        Args:
            is_own: it is of this rank; if not, all but the residuals is the same on all ranks.
        """
        self._backward.settle()
        self._state = self._kept = None
        if saved is None:
            return
        self._take_in_all()  # also with a codec that leaves nothing
        residuals = saved["residuals"].float().cpu()
        scales = saved["scales"] if saved["codec"] == self._spec else [None] * len(saved["scales"])
        layout = saved.get("layout")
        self._state = self._kept = _State(
            residuals.shape[1],
            [residual.clone() if is_own else torch.zeros_like(residual) for residual in residuals],
            [None if one is None else one.to("cpu", copy=True) for one in scales],
            int(saved["step"]),
            None if layout is None else read_layout(layout),
            dict(saved.get("parked", {})) if is_own else {},
        )

    def inherit(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Goes on from what state() returned on ranks of a job that had another number of them. Scales are agreed anew:
        they are means over the ranks.
        """
        self._backward.settle()
        self._state = self._kept = None
        residuals: dict[str, torch.Tensor] = {}
        for one in saved:
            self.load(one, is_own=True)
            assert self._state is not None
            if self._state.layout is None:
                _warn_of_lost_residuals(self._name)
            for name, residual in self._state.by_parameter().items():
                residuals[name] = residual if name not in residuals else residuals[name] + residual
        step = max((int(one["step"]) for one in saved), default=0)
        self._state = self._kept = self._laid_out(self._trained.layout, residuals, step, torch.device("cpu"))

    def end_backward(self, *, vetoed: bool) -> None:
        """Keeps what the backward() that is over has left, or goes back to what was before it."""
        if vetoed:
            self._state = self._kept
        else:
            self._kept = self._state

    def _reduce(self, coder: ShardCodec, shards: torch.Tensor) -> torch.Tensor:
        """Returns the sum of this rank's shard, float32 (elements,)."""
        elements = shards.shape[1]
        state = self._next_state(elements, shards.device)
        # All owners hear of all shards, whose residuals are kept or taken back as one.
        with self._timed(coder):
            payloads, own = coder.encode(
                shards,
                state.residuals or [None] * len(shards),
                state.scales,
                first_key=self._number * self._store.num_workers,
                rank=self._store.rank,
                step=state.step,
            )
        self._store.encoded_outside.count(4 * shards.numel(), sum(len(payload) for payload in payloads))
        received, met = read(
            self._store.collectives.all_to_all([noted(payload, own) for payload in payloads])
        )
        # A backward() for other tensors' sake, such as autograd.grad() of an input. p.grad may be thrown away: what is
        # left stays here.
        if met == Met.ZEROS:
            return shards.new_zeros(elements)
        options = self._options
        if met == Met.NONFINITE or (met == Met.BEYOND and options.vetoes):
            if options.vetoes:
                self._backward.veto()
            # To a GradScaler it is its daily work.
            if options.grad_scaler is None and options.on_nonfinite != "ignore":
                warn_of_nan_sum()
            return shards.new_full((elements,), math.nan)
        if met == Met.BEYOND and options.on_nonfinite != "ignore":
            warn_of_kept_rest()
        if (dtype := options.residual_dtype) is not None:
            state.residuals = [_rounded(residual, dtype) for residual in state.residuals]
        state.step += 1
        self._state = state
        if not options.vetoes:  # nothing is taken back, so no copy is kept until backward() is over
            self._kept = state
        with self._timed(coder):
            total, mine = coder.total(received, elements)
        if mine is not None:
            agreed = self._store.collectives.all_gather(mine.numpy())
            state.scales = [torch.from_numpy(np.ascontiguousarray(each)).to(shards.device) for each in agreed]
        return total

    def _next_state(self, elements: int, device: torch.device) -> _State:
        """A copy of what the last reduce-scatter has left, laid out as this one is."""
        layout: Layout | None = self._trained.layout
        if layout is not None and layout.elements != elements:
            layout = None  # a torch that leaves out what got no gradient
        state = self._state
        if state is None:
            return self._laid_out(layout, {}, 0, device, elements)
        if state.elements == elements and (state.layout == layout or state.layout is None):
            kept = state.copy(device)
            kept.layout = layout
            if self._options.residual_dtype is None:
                kept.residuals, kept.parked = [], {}
            elif not kept.residuals:  # of a checkpoint that has none
                kept.residuals = self._nothing(elements, device)
            return kept
        if layout is None or state.layout is None:
            if state.residuals:
                _warn_of_lost_residuals(self._name)
            return self._laid_out(layout, {}, state.step, device, elements)
        return self._laid_out(layout, state.by_parameter(), state.step, device)

    def _laid_out(
        self,
        layout: Layout | None,
        residuals: Mapping[str, torch.Tensor],
        step: int,
        device: torch.device,
        elements: int | None = None,
    ) -> _State:
        """A state in which these are left to send, if residuals are kept, and no scales are agreed."""
        elements = (elements or 0) if layout is None else layout.elements
        state = _State(elements, [], [None] * self._store.num_workers, step, layout)
        if self._options.residual_dtype is None:
            return state
        state.residuals = (
            self._nothing(elements, device) if layout is None else list(layout.join(residuals).to(device))
        )
        here = set() if layout is None else {piece.name for piece in layout.pieces}
        state.parked = {name: residual for name, residual in residuals.items() if name not in here}
        return state

    def _nothing(self, elements: int, device: torch.device) -> list[torch.Tensor]:
        """Residuals of nothing."""
        return list(torch.zeros(self._store.num_workers, elements, device=device))


def _rounded(residual: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In this dtype, and finite."""
    if dtype == residual.dtype:
        return residual
    largest = torch.finfo(dtype).max
    return residual.clamp(-largest, largest).to(dtype)


def factor_of(op: Any, ranks: int) -> float:
    """What a sum is multiplied by.

    Raises:
        ValueError: it is no sum.
    """
    if op == dist.ReduceOp.SUM:
        return 1.0
    if op == dist.ReduceOp.AVG:
        return 1.0 / ranks
    kind = getattr(op, "op", op)
    if kind == dist.ReduceOp.PREMUL_SUM:
        _, factor = op.__getstate__()  # the one way to it
        return float(factor)
    raise ValueError(f"gradwire.torch: FSDP: op is {getattr(kind, 'name', kind)}, {_OTHER_OPS}")


def _warn_of_lost_residuals(name: str) -> None:
    warnings.warn(
        f"gradwire.torch: what the codec of {in_words(name)} has not sent yet is dropped: its gradients are of "
        "other parameters than before, and this torch does not tell of which, since it has no "
        "set_reduce_scatter_unused_params()",
        RuntimeWarning,
        stacklevel=2,
    )
