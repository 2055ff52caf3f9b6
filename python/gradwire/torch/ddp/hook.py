"""The DDP hook: compresses the buckets of DistributedDataParallel.

    model = DistributedDataParallel(model)
    model.register_comm_hook(gradwire.torch.HookState(codec="int8"), gradwire.torch.ddp_hook)

Threading: DDP calls the hook on autograd's thread, for one bucket after the other, in the same order on all ranks. All
buckets but the last only start to be sent. The last one waits for all, when nothing is left to compute.
"""

# No `from __future__ import annotations`: DDP looks at the types that the hook declares, and takes no text for them.
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from gradwire import kv
from gradwire.torch import session
from gradwire.torch.codecs.warm_up import Stages
from gradwire.torch.ddp.bucket import future_of
from gradwire.torch.ddp.bucket_exchange import BucketExchange
from gradwire.torch.ddp.hook_checkpoint import HooksPart
from gradwire.torch.ddp.local_shards import (
    LocalGroup,
    LocalShards,
    join_hosts,
    require_local_group,
)
from gradwire.torch.ddp.model import HookedModel
from gradwire.torch.distributed_checkpoint import by_rank, is_for_distributed_checkpoint, of_rank
from gradwire.torch.exchange_options import GivenOptions, OnNonfinite, agree_on_options, vetoes
from gradwire.torch.parameter_names import require_pairs
from gradwire.torch.process_group import naming_ranks, store_of

# Of DistributedOptimizer, and what does that where DDP exchanges gradients.
_OF_THE_OPTIMIZER = {
    "momentum_correction": "DDP hands its hook gradients, and momentum is the optimizer's; use "
    "DistributedOptimizer(momentum_correction=True) in the place of DDP",
    "max_grad_norm": "call torch.nn.utils.clip_grad_norm_() after backward(), when p.grad is the mean",
    "backward_passes_per_step": "call all but a step's last backward() in ddp.no_sync()",
    "overlap_step": "DDP waits for its buckets at the end of backward(); use DistributedOptimizer(overlap_step=True) "
    "in the place of DDP",
    "sparse_as_dense": "DDP's buckets of sparse gradients are summed as dense ones",
    "sparse_parameters": "DDP's buckets of sparse gradients are summed as dense ones",
    "compression": "it is called codec here",
    "store": "it joins by process_group, or has the store that this process has joined already",
}


@dataclass
class _Arguments:
    """The arguments of a HookState, without the process group."""

    codec: session.Wanted | None = None
    named: list[tuple[str, torch.Tensor]] | None = None
    codecs: Mapping[str, session.Wanted] | None = None
    warm_up: Stages | None = None
    grad_scaler: Any = None
    on_nonfinite: OnNonfinite = "warn"
    budget: str | None = None
    row_column_scales: bool = False


class HookState:
    """The state of `ddp_hook` for one DDP model: codecs, residuals, and the store.

    It joins the other ranks when it is made, if torch.distributed is initialised by then; else in the first backward().

    copy.deepcopy() returns a HookState with the same options that has not joined, as a copy of a DDP model has no hook.
    Residuals stay with the original. pickle, and so torch.save() of a whole DDP model, includes them.
    """

    def __init__(
        self,
        codec: session.Wanted | None = None,
        process_group: dist.ProcessGroup | None = None,
        *,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        codecs: Mapping[str, session.Wanted] | None = None,
        warm_up: Stages | None = None,
        grad_scaler: Any = None,
        on_nonfinite: OnNonfinite = "warn",
        budget: str | None = None,
        row_column_scales: bool = False,
        local_group: LocalGroup = None,
        **others: Any,
    ) -> None:
        """A collective of the group, once torch.distributed is initialised: every rank makes it at the same place.

        Args:
            codec: as `compression` of DistributedOptimizer. With Adam and AdamW use "int8": 2bit and 1bit lose accuracy
                with them. Default: the compression that was set on the store, else "none".
            process_group: the process group that DDP was given. Its ranks join each other. If this process is in a
                gradwire job already, that job is used. Default: torch's default group.
            named_parameters: `model.named_parameters()`. The names are used in `codecs`, errors and state_dict(). Their
                order is that of the forward pass, in which sums are urgent. Needed with `codecs`. Default: the names in
                DDP's module, and the order of DDP's first buckets.
            codecs: codecs for some parameters, by shell patterns of their names, as for DistributedOptimizer. Default:
                none.
            warm_up: codecs for the first steps, as for DistributedOptimizer. DDP does not report steps, so a warm-up
                counts the backward() calls that are summed, which are those outside no_sync(). Default: no warm-up.
            grad_scaler: the torch.amp.GradScaler that scales the loss, as for DistributedOptimizer. Default: None.
            on_nonfinite: "warn", "ignore" or "skip_step", as for DistributedOptimizer. With "skip_step" the first
                gradient of each bucket holds a NaN, so that a GradScaler skips the step; without a GradScaler, the
                script must check for it. Default: "warn".
            budget: what codec="auto" may cost, as for DistributedOptimizer. The hook knows no optimizer, so of a budget
                in points each codec takes what it costs with the optimizer with which it costs most. Default: "0.3
                points".
            row_column_scales: True: codecs see each matrix of gradients with the scale of its rows and columns taken
                out, as for DistributedOptimizer. With Adam and AdamW, 2bit loses less accuracy so. Default: False.
            local_group: how many ranks each host has, such as `int(os.environ["LOCAL_WORLD_SIZE"])`, where ranks are
                numbered host by host; or the process group of this host's ranks. They sum each bucket uncompressed
                first, by the group's own reduce-scatter. Then every rank exchanges a shard of the sum with the ranks of
                its place on other hosts, compressed, and an all-gather completes the bucket. All ranks give it, or
                none; with NCCL call torch.cuda.set_device() before. Default: each rank exchanges whole gradients.
            others: not accepted. An option of DistributedOptimizer is rejected with what to use here.

        Raises:
            ValueError: an argument is not valid; codecs without names; ranks differ, in which case all get the same
                text; the store's servers have an optimizer, and so return weights; local groups do not divide the
                process group into equal parts.
            TypeError: an argument has the wrong type or an unknown name.
        """
        _refuse(others)
        named = None if named_parameters is None else require_pairs(named_parameters)
        self._begin(
            _Arguments(codec, named, codecs, warm_up, grad_scaler, on_nonfinite, budget, row_column_scales),
            process_group,
            local_group,
            {},
        )
        if dist.is_initialized():
            self._join()

    def _begin(
        self,
        arguments: _Arguments,
        group: dist.ProcessGroup | None,
        local_group: LocalGroup,
        restored: Mapping[str, Any],
    ) -> None:
        """Takes the arguments, and checks what can be checked without the other ranks."""
        if arguments.codecs is not None and arguments.named is None:
            raise ValueError(
                f"gradwire.torch: HookState: codecs={arguments.codecs!r} goes by parameters' names, and none were given"
                "; pass named_parameters=model.named_parameters()"
            )
        require_local_group(local_group)
        self._arguments = arguments
        self._group = group
        self._local_group = local_group
        self._given = GivenOptions(
            "HookState",
            arguments.codec,
            codecs=arguments.codecs,
            warm_up=arguments.warm_up,
            grad_scaler=arguments.grad_scaler,
            on_nonfinite=arguments.on_nonfinite,
            budget=arguments.budget,
            row_column_scales=arguments.row_column_scales,
        )
        self._restored = restored  # until the ranks have joined each other
        self._exchange: BucketExchange | None = None

    def _join(self) -> BucketExchange:
        """Returns the exchange of the buckets. The first call is a collective of the group."""
        if self._exchange is None:
            if self._local_group is None or dist.get_world_size() == 1:
                store, shards = store_of(self._group), LocalShards(None)
            else:
                store, shards = join_hosts(self._group, self._local_group, self._told())
            names = {p: name for name, p in self._arguments.named or []}
            options = self._given.at(store, names.values())
            agree_on_options(store, "HookState", options.alike)
            self._exchange = BucketExchange(store, options, names, HookedModel(self), shards)
            if self._restored:
                self._exchange.load(of_rank(self._restored))
        return self._exchange

    def _told(self) -> dict[str, Any]:
        """What all ranks must be given alike."""
        given, is_overridden = self._arguments, session.is_overridden()
        codecs = None if is_overridden or given.codecs is None else sorted(given.codecs.items(), key=str)
        return {
            "codec": session.chosen(given.codec),
            "codecs": codecs,
            "warm_up": None if is_overridden else given.warm_up,
            "budget": given.budget,
            "row_column_scales": given.row_column_scales,
            "skips steps with a NaN": vetoes(given.on_nonfinite, self._given.grad_scaler),
        }

    @property
    def _store(self) -> kv.KVStore:
        if self._exchange is None:
            raise RuntimeError(
                "gradwire.torch: HookState: it has joined no other rank yet; it does so where it is made, if "
                "torch.distributed is initialised there, and else with the first backward()"
            )
        return self._exchange.store

    def close(self) -> None:
        """Ends the use of this state. Call it on all ranks at the same place.

        Several models in one process may each have a HookState with other codecs. Small gradients of the first one are
        sent together; those of the next one only after close(). close() also ends a warm-up.
        """
        if self._exchange is not None:
            self._exchange.close()

    def stats(self, servers: bool = False, *, residuals: bool = True) -> dict[str, Any]:
        """Returns what this rank has exchanged so far, as KVStore.stats(), of everything that uses the same store.

        Args:
            servers: include what the servers report. Default: False.
            residuals: include residual_norm and share_sent. Default: True.

        Raises:
            RuntimeError: it has not joined the other ranks yet.
        """
        return self._store.stats(servers, residuals=residuals)

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's residuals: tensors by name. Save it on every rank, beside the model.

        Before the first step it is what load_state_dict() was given. With a codec that compresses replies, or agrees on
        scales, a resumed run has other bits than one that never stopped; gradwire.torch.save_checkpoint() keeps these
        too.

        torch.distributed.checkpoint keeps one copy of what all ranks name alike, so it gets bytes by rank.
        """
        own = self.own_state()
        return by_rank(own) if is_for_distributed_checkpoint() else own

    def own_state(self) -> dict[str, Any]:
        """Returns this rank's residuals, also for torch.distributed.checkpoint."""
        return dict(self._restored) if self._exchange is None else self._exchange.state()

    def checkpoint_part(self, listed: Sequence[Any], model: torch.nn.Module) -> HooksPart:
        """Returns what save_checkpoint() and load_checkpoint() call to write and read residuals.

        Args:
            listed: all HookStates of the store, of which this is the first.
            model: the trained model.

        Raises:
            TypeError: the list contains something else.
        """
        if wrong := [each for each in listed if not isinstance(each, HookState)]:
            raise TypeError(
                f"gradwire.torch: optimizer holds a {type(wrong[0]).__name__} beside HookStates, expected these alone"
            )
        return HooksPart([state._join() for state in listed], model)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state_dict(), in the first step. Parameters that it lacks start without a residual.

        Residuals of another rank are ignored, with a warning.

        Raises:
            ValueError: a residual has another number of elements than its parameter; or torch.distributed.checkpoint
                saved the state with another number of ranks.
        """
        if dist.is_initialized():
            state = of_rank(state)
        if self._exchange is None:
            self._restored = state
        else:
            self._exchange.load(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> "HookState":
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied._begin(copy.deepcopy(self._arguments, memo), self._group, self._local_group, {})
        return copied

    def __getstate__(self) -> dict[str, Any]:
        if self._group is not None or isinstance(self._local_group, dist.ProcessGroup):
            raise TypeError(
                "gradwire.torch: HookState: it has a process group of its own, which cannot be pickled; save "
                "state_dict() on every rank, and make it anew with the group"
            )
        return {"arguments": self._arguments, "local_group": self._local_group, "state": self.own_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(state["arguments"], None, state.get("local_group"), state["state"])


def ddp_hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The function that DDP calls for each bucket: `model.register_comm_hook(HookState(codec="int8"), ddp_hook)`.

    Args:
        state: the HookState of the model.
        bucket: DDP's bucket: gradients of any floating or complex dtype, one after the other.

    Returns: a future of the bucket's mean. It is done when the hook of the step's last bucket returns.

    Raises:
        ValueError: the state is that of another model.
        TypeError: the state is no HookState; or it was not called by DDP's reducer.
        gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
    """
    if not isinstance(state, HookState):
        given = "None" if state is None else f"a {type(state).__name__}"
        raise TypeError(
            f"gradwire.torch: ddp_hook needs a HookState as its state, got {given}: "
            'model.register_comm_hook(gradwire.torch.HookState(codec="int8"), gradwire.torch.ddp_hook)'
        )
    if not isinstance(bucket, GradBucket):
        raise TypeError(
            f"gradwire.torch: ddp_hook: given a {type(bucket).__name__}, expected one of DDP's buckets; compiled "
            "autograd (torch._dynamo.config.optimize_ddp = 'python_reducer') has none: leave it off, or leave "
            "out the hook; torch.compile() of the forward pass needs neither"
        )
    with torch.no_grad():
        exchange = state._join()
        if exchange.store.passthrough:  # alone, where `gradwire plan` times the layers
            future = future_of(bucket.buffer())
            future.set_result(bucket.buffer())
            return future
        with naming_ranks(exchange.store):
            return exchange.take(bucket)


def _refuse(others: Mapping[str, Any]) -> None:
    """Raises TypeError for unknown arguments."""
    for name in others:
        if name in _OF_THE_OPTIMIZER:
            raise TypeError(
                f"gradwire.torch: HookState has no {name}, which is DistributedOptimizer's: {_OF_THE_OPTIMIZER[name]}"
            )
        known = [
            "process_group",
            "named_parameters",
            "local_group",
            *(f.name for f in fields(_Arguments) if f.name != "named"),
        ]
        raise TypeError(
            f"gradwire.torch: HookState has no argument {name!r}; it has {', '.join(sorted(known))}"
        )
