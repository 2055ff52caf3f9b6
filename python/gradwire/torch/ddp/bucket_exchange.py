"""BucketExchange: DDP's buckets go to the workers' sum and come back as means.

DDP cuts its buckets anew after the first step, and so does every static graph; what has not been sent yet belongs to
tensors here, so nothing is lost. Large gradients travel from and to DDP's own memory, small ones together. Gradients on
a CUDA device are encoded and decoded there.

Threading: one thread at a time: autograd's, or the one in which a rank that has joined stands in.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable

from gradwire.torch.backward_pass import call_in_outer, is_inside_another
from gradwire.torch.codecs import adam_warning
from gradwire.torch.ddp.bucket import Bucket
from gradwire.torch.ddp.local_shards import LocalShards
from gradwire.torch.elements import as_real, exchanged_dtype, in_memory_order, real_elements
from gradwire.torch.exchange import Exchange
from gradwire.torch.exchange_options import ExchangeOptions, warn_of_nonfinite
from gradwire.torch.process_group import naming_ranks
from gradwire.torch.slots import home_of

if TYPE_CHECKING:
    from gradwire.kv import KVStore
    from gradwire.torch.ddp.model import HookedModel

_OF_SHARDS = {"residuals", "scales"}  # of a state
_TOGETHER_BYTES = 256 * 2**10  # as fp32; what is smaller is copied, so that it can travel with others


@dataclass
class _Delivered:
    """What DDP was given for one parameter in a step.

    Attributes:
        mean: of what travelled: (elements,), real.
        buffer: the bucket's memory, which p.grad may be part of; None: DDP was given nothing.
    """

    parameter: torch.Tensor
    mean: torch.Tensor
    buffer: torch.Tensor | None


class BucketExchange:
    """The buckets of one model at one store.

    Attributes:
        shards: which parts of gradients travel through the store.
    """

    def __init__(
        self,
        store: KVStore,
        options: ExchangeOptions,
        names: Mapping[torch.Tensor, str],
        model: HookedModel,
        shards: LocalShards,
    ) -> None:
        """A collective.

        Args:
            store: whose workers are the ranks of DDP's process group, or those of them that have the same shards.
            options: codecs, and what to do in a step in which any rank met a NaN or an infinity.
            names: of parameters, in order of the forward pass; empty: the model tells names, and the first buckets the
                order.
            model: whose buckets they are.
            shards: of this rank.
        """
        self._store = store
        self._options = options
        self._names = names
        self._model = model
        self.shards = shards
        self._exchange = Exchange(store, options)
        self._index: dict[torch.Tensor, int] = {}
        self._labels: list[str] = []  # by index: what parameters are called
        self._small: list[torch.Tensor | None] = []  # by index: memory of its own, or none
        self._home: torch.device | None = None  # where that lies
        self._seen: dict[torch.Tensor, None] = {}  # all that came in buckets
        self._waiting: list[Bucket] = []
        self._sends_early = False  # a bucket as soon as it is there: the step will bring no new parameter
        self._delivered: list[_Delivered] = []  # by the last step, until DDP has taken what it wants
        self._restored: Mapping[str, Any] | None = None

    @property
    def store(self) -> KVStore:
        return self._store

    def close(self) -> None:
        """Leaves the store to others. On all ranks at the same place."""
        self.settle()
        self._exchange.close()

    def state(self) -> dict[str, Any]:
        """What this rank has not sent yet; of parameters that no bucket has told yet what load() was given."""
        self.settle()
        own = self._exchange.state()
        if own and self.shards.count > 1:
            own["shard"] = [self.shards.place, self.shards.count]
        if self._restored is None:
            return own
        if not self._index:
            return own | dict(self._restored)
        residuals = {**self._restored["residuals"], **own.get("residuals", {})}
        return {**self._restored, **own, "residuals": residuals}

    @property
    def is_waiting(self) -> bool:
        """Whether load() was given a state, and no bucket has told parameters yet."""
        return self._restored is not None and not self._index

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on from it, with the first step, whose buckets tell the parameters."""
        self.settle()
        place, count = state.get("shard", (0, 1))
        if (place, count) != (self.shards.place, self.shards.count) and not _OF_SHARDS.isdisjoint(state):
            warnings.warn(
                f"gradwire.torch: the checkpoint holds what was not sent of shard {place} of {count}, so this rank, "
                f"which has shard {self.shards.place} of {self.shards.count}, begins without; save the HookState's "
                "state on every rank to keep it",
                stacklevel=3,
            )
            state = {name: value for name, value in state.items() if name not in _OF_SHARDS}
        if self._index:
            self._exchange.load(_with_labels(state, self._labels))
        else:
            self._restored = state or None

    # -- checkpoints of a whole job --------------------------------------------------------------------

    @property
    def labels(self) -> list[str]:
        """What parameters are called, in the order in which they were declared."""
        return list(self._labels)

    @property
    def left_over(self) -> dict[str, torch.Tensor]:
        """What load() was given of parameters that no bucket has told yet, as of frozen ones, by label."""
        if self._restored is None or self._restored.get("rank") != self._store.rank:
            return {}
        return dict(self._restored["residuals"])

    def keep(self, left_over: Mapping[str, torch.Tensor]) -> None:
        """Follows begin_with(): what left_over returned waits for its parameters again."""
        self._restored = {"rank": self._store.rank, "residuals": left_over} if left_over else None

    def require_known(self, labels: Sequence[str], named: Mapping[str, torch.Tensor]) -> None:
        """Raises ValueError for labels that begin_with() could not declare."""
        known = self._by_label(named)
        if missing := [label for label in labels if label not in known]:
            raise ValueError(
                f"gradwire.torch: the checkpoint has what was not sent of {missing[0]!r}, and the model has no "
                "parameter of that name; make the same model, and register its HookState before load_checkpoint()"
            )

    def begin_with(self, labels: Sequence[str], named: Mapping[str, torch.Tensor]) -> None:
        """Declares parameters before the first step, in this order. A collective.

        Args:
            named: the model's, where neither the script nor DDP has told names.
        """
        self._sends_early = False
        known = self._by_label(named)
        self._declare([(label, known[label]) for label in labels if known[label] not in self._index])

    def load_codecs(self, state: Mapping[str, Any]) -> None:
        """As Exchange's."""
        self._exchange.load_codecs(state)

    def _by_label(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        own = {name: parameter for parameter, name in {**self._model.names(), **self._names}.items()}
        return own or dict(named)

    # -- a step ----------------------------------------------------------------------------------------

    def take(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begins to send a bucket; with the last one waits for all."""
        if not self._waiting:
            self.settle()  # of a step without an end that is told: this rank has joined, and stood in
        if not self._seen:
            self._model.require_found()
        # What is sent of an unused parameter is taken back, to the last bit of its float32.
        keeps_halves = self._options.keeps_halves and not self._model.may_be_unused
        taken = Bucket(bucket, self.shards, keeps_halves=keeps_halves)
        self._seen.update(dict.fromkeys(bucket.parameters()))
        self._waiting.append(taken)
        self._await_end()
        if self._sends_early:
            self._send_summed()
        if bucket.is_last():
            self._finish()
        return taken.future

    def _await_end(self) -> None:
        _call_at_end_of_backward(self._on_backward_end)

    def _on_backward_end(self) -> None:
        """Runs when gradients are computed, before DDP takes in what its buckets have become."""
        if is_inside_another():  # a block in a re-entrant checkpoint: buckets of other blocks follow
            call_in_outer(self._await_end)
            return
        if self._waiting:  # DDP has left out the last bucket (skip_all_reduce_unused_params)
            with naming_ranks(self._store):
                self._finish()
        _call_at_end_of_backward(self.settle)

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, []
        # DDP's first buckets go from the last layers to the first; within one, layers go forward.
        if new := [p for bucket in waiting[::-1] for p in bucket.parameters if p not in self._index]:
            self._require_one_model(waiting)
            self._add(new)
        elif self._restored is not None and not self._index:  # this rank has no shard of any parameter
            self._restored = _without(self._restored, [])
        for bucket in waiting:
            if not bucket.sent:
                self._send(bucket)
        self._sends_early = not new and not self._model.leaves_out_buckets
        absent = self._send_absent(waiting)
        nonfinite = self._exchange.finish(self.shards.any_of)
        vetoed = nonfinite and self._options.vetoes
        for bucket in waiting:
            for parameter, run in bucket.runs:
                if (own := self._small[self._index[parameter]]) is not None:
                    run.copy_(own)
            bucket.deliver(vetoed=vetoed)
        if not vetoed:  # else residuals are as before the step
            self._delivered = absent + [_Delivered(p, run, b.buffer) for b in waiting for p, run in b.runs]
        self._exchange.advance()
        self._exchange.count_step()
        if nonfinite and self._options.grad_scaler is None and self._options.on_nonfinite != "ignore":
            warn_of_nonfinite(self._options.on_nonfinite)

    def _send_absent(self, waiting: list[Bucket]) -> list[_Delivered]:
        """Sends zeros for parameters that travel with others and came in no bucket of this step."""
        here = {parameter for bucket in waiting for parameter in bucket.parameters}
        absent = []
        for parameter, index in self._index.items():
            own = self._small[index]
            if own is not None and parameter not in here:
                own.zero_()
                self._exchange.send(index)
                absent.append(_Delivered(parameter, own, None))
        return absent

    def settle(self) -> None:
        """Takes back what DDP did not take of the last step's means: it leaves p.grad alone where no rank used the
        parameter, so what was sent of its residual is owed again.
        """
        delivered, self._delivered = self._delivered, []
        if not delivered:
            return
        unused = self._model.unused(self._seen)
        for each in delivered:
            if each.buffer is None or each.parameter in unused:
                self._take_back(each)

    @torch.no_grad()
    def _take_back(self, delivered: _Delivered) -> None:
        mean, gradient = delivered.mean, delivered.parameter.grad
        if gradient is not None and delivered.buffer is not None:
            if _share_memory(gradient, delivered.buffer):
                return  # gradient_as_bucket_view: it was written to where p.grad lies
            # DDP has sent what was there, and has left it there. The rest is what was owed, but for rounding.
            there = self.shards.cut(_flat(gradient, delivered.parameter), delivered.parameter).to(mean)
            ranks = self._store.num_workers * self.shards.count
            rounding = ranks * torch.finfo(mean.dtype).eps * there.abs()
            mean = mean - there
            mean = mean.where(mean.abs() > rounding, 0)
        if bool(mean.any()):
            self._exchange.add_to_residual(self._index[delivered.parameter], mean)

    def _require_one_model(self, waiting: list[Bucket]) -> None:
        """Raises ValueError for a step of a model that shares no parameter with what was in the steps before."""
        if self._index and not any(p in self._index for bucket in waiting for p in bucket.parameters):
            raise ValueError(
                "gradwire.torch: HookState: it has taken the buckets of one DDP model, and here are those of another; "
                "make a HookState for each model, on all ranks in one order"
            )

    def _add(self, parameters: list[torch.Tensor]) -> None:
        """Declares parameters, front layers first."""
        order = {parameter: place for place, parameter in enumerate(self._names)}
        parameters = sorted(parameters, key=lambda parameter: order.get(parameter, len(order)))
        names = {**self._model.names(), **self._names}
        numbers = range(len(self._index), len(self._index) + len(parameters))
        self._declare([(names.get(p, f"parameter.{n}"), p) for n, p in zip(numbers, parameters, strict=True)])

    def _declare(self, named: list[tuple[str, torch.Tensor]]) -> None:
        if not named:
            return
        for label, parameter in named:
            self._index[parameter] = len(self._index)
            self._labels.append(label)
        if self._home is None:
            self._home = home_of([parameter for _, parameter in named])
        declared = [(label, self.shards.shard_of(parameter)) for label, parameter in named]
        small = [_own_memory(shard, self._home) for _, shard in declared]
        before = len(self._small)
        self._small += small
        self._exchange.add(declared, small, [self._index[parameter] for _, parameter in named])
        few = adam_warning.few_levels(declared, self._options, self._store)
        adam_warning.watch((weakref.ref(p), few[label]) for label, p in named if label in few)
        self._exchange.bind(range(len(self._index)))
        if self._restored is not None:
            restored = _with_labels(self._restored, self._labels)
            self._exchange.load(restored, since=before)
            self._restored = _without(restored, self._labels)

    def _send_summed(self) -> None:
        """Sends the buckets that the host's ranks have summed, in their order: that of the last ones is still made."""
        for bucket in self._waiting:
            if not bucket.is_summed:
                return
            if not bucket.sent:
                self._send(bucket)

    def _send(self, bucket: Bucket) -> None:
        bucket.sent = True
        for parameter, run in bucket.runs:
            index = self._index[parameter]
            if (own := self._small[index]) is None:
                self._exchange.send_from(index, run)
            else:
                own.copy_(run)
                self._exchange.send(index)


def _own_memory(parameter: torch.Tensor, home: torch.device) -> torch.Tensor | None:
    """What a parameter's gradient is copied to, so that it can travel with others, which lie on the same device; None:
    it travels by itself.
    """
    elements = real_elements(parameter)
    if exchanged_dtype(parameter.dtype) != torch.float32 or elements * 4 >= _TOGETHER_BYTES:
        return None
    return torch.zeros(elements, dtype=torch.float32, device=home)


def _call_at_end_of_backward(callback: Callable[[], None]) -> None:
    """Has it called when the backward() that runs has ended; not where none runs, as on a rank that has joined and
    stands in for its backward passes.
    """
    with contextlib.suppress(RuntimeError):  # "Final callbacks can only be installed during backward pass"
        Variable._execution_engine.queue_callback(callback)


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        not one.is_sparse
        and not other.is_sparse
        and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    )


def _flat(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A gradient as its bucket had it."""
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return as_real(in_memory_order(dense, parameter.stride())).reshape(-1)


def _without(state: Mapping[str, Any], labels: Sequence[str]) -> Mapping[str, Any] | None:
    """What is left for parameters that have other labels; None: nothing."""
    left = {name: residual for name, residual in state.get("residuals", {}).items() if name not in labels}
    return {**state, "residuals": left} if left else None


def _with_labels(state: Mapping[str, Any], labels: Sequence[str]) -> Mapping[str, Any]:
    """What was saved when parameters without names were numbers has them by the names that they have now."""
    residuals = state.get("residuals", {})
    are_numbers = all(name.startswith("parameter.") for name in residuals)
    if not residuals or not are_numbers or set(residuals) & set(labels):
        return state
    numbered = {f"parameter.{number}": label for number, label in enumerate(labels)}
    return {**state, "residuals": {numbered.get(name, name): left for name, left in residuals.items()}}
