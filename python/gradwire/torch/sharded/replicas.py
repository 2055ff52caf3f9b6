"""HSDP: compresses the all-reduce of gradients between the replicas of a sharded model.

    mesh = init_device_mesh("cuda", (hosts, gpus), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    compressed = gradwire.torch.compress_all_reduce(model, codec="int8")

torch shards the model inside a host, where links are fast, and reduce-scatters gradients there. Then each rank sums its
shard with the ranks that have the same shard on other hosts: this is what travels compressed, with a residual for each
element. The ranks of a host send the payload of one gradient together. Modules of torch's replicate(), which are not
sharded, are compressed too.

Sums are sent while backward() runs. When it returns, p.grad holds the mean, as without gradwire. In a pipeline, whose
gradients are reduced afterwards, each module waits for its own.

Threading: called on autograd's thread.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from gradwire.kv import KVStore
from gradwire.torch import session
from gradwire.torch.checkpoint import require_alone
from gradwire.torch.codecs import adam_warning
from gradwire.torch.codecs.warm_up import Stages
from gradwire.torch.distributed_checkpoint import by_rank, is_for_distributed_checkpoint, of_rank, place
from gradwire.torch.exchange_options import GivenOptions, OnNonfinite
from gradwire.torch.process_group import require_alike, store_of
from gradwire.torch.sharded.layout import finder, fsdp_modules, parameter_groups
from gradwire.torch.sharded.module_shards import ModuleShards
from gradwire.torch.sharded.replica_checkpoint import ReplicasPart
from gradwire.torch.sharded.replica_exchange import ReplicaExchange
from gradwire.torch.sharded.replica_group import ReplicaGroup, SumInPlace

_WHO = "gradwire.torch: compress_all_reduce"


def compress_all_reduce(
    model: torch.nn.Module,
    codec: session.Wanted,
    *,
    codecs: Mapping[str, session.Wanted] | None = None,
    warm_up: Stages | None = None,
    grad_scaler: Any = None,
    on_nonfinite: OnNonfinite = "warn",
    budget: str | None = None,
    row_column_scales: bool = False,
) -> AllReduces:
    """Compresses the all-reduce of every FSDP module that has replicas. A collective of all ranks of the model's mesh,
    after fully_shard().

    Ranks that hold the same shard are the workers of one gradwire job: a mesh of 2 hosts with 4 ranks makes 4 jobs of 2
    workers. Each parameter's shard has its own key. A parameter without a gradient in a backward() counts as zeros, and
    then has a gradient (torch's set_reduce_scatter_unused_params).

    Args:
        model: the module that fully_shard() was called on, with its parts, with a mesh of two dimensions: replicas, and
            shards.
        codec: as `compression` of DistributedOptimizer; GRADWIRE_COMPRESSION overrides it. With Adam and AdamW use
            "int8": 2bit and 1bit lose accuracy with them.
        codecs: codecs for some parameters, by shell patterns of their names, as for DistributedOptimizer. Default:
            none.
        warm_up: codecs for the first steps, as for HookState: it counts backward() calls whose gradients are
            all-reduced. Default: no warm-up.
        grad_scaler: the torch.amp.GradScaler that scales the loss, as for DistributedOptimizer. Default: None.
        on_nonfinite: "warn", "ignore" or "skip_step", as for HookState. Default: "warn".
        budget: what codec="auto" may cost, as for HookState. Default: "0.3 points".
        row_column_scales: as for DistributedOptimizer. Default: False.

    Returns: an object with the state that checkpoints of this rank need: state_dict() and load_state_dict().

    Raises:
        ValueError: no module of the model has replicas, or its modules have different ones; an argument is not valid;
            ranks differ; this process is in a gradwire job of other ranks.
        TypeError: an argument has the wrong type.
    """
    modules = _replicated(model)
    groups = [group for _, group in modules]
    replicas = _one_group_of(groups)
    others = _groups_of_a_replica(groups[0], replicas)
    options: dict[str, Any] = {
        "codecs": codecs,
        "warm_up": warm_up,
        "grad_scaler": grad_scaler,
        "on_nonfinite": on_nonfinite,
        "budget": budget,
        "row_column_scales": row_column_scales,
    }
    made, failure = None, None
    try:
        made = GivenOptions("compress_all_reduce", codec, **options)
    except (TypeError, ValueError) as error:  # the other ranks must hear of it
        failure = error
    told = options | {"codec": session.chosen(codec), "grad_scaler": made and made.grad_scaler is not None}
    require_alike(_WHO, [replicas, *others], told, failure)
    assert made is not None
    store = store_of(ranks=dist.get_process_group_ranks(replicas))
    named = _named_shards(model, groups)
    chosen = made.at(store, named)
    exchange = ReplicaExchange(store, chosen, others)
    held = {name: each for name, each in named.items() if math.prod(each[1].sharded_size)}
    declared = [(name, _summed(*each)) for name, each in held.items()]
    exchange.add(declared)
    few = adam_warning.few_levels(declared, chosen, store)
    adam_warning.watch((finder(held[name][1]), codec) for name, codec in few.items())
    indices = {id(parameter): index for index, (_, parameter) in enumerate(held.values())}
    for name, group in modules:
        own = ModuleShards(name, group, [indices.get(id(each), -1) for each in group.fsdp_params])
        _stand_in(group, exchange.join(own))
        group.reduce_scatter_unused_params = True  # replicas of a shard send the same parameters
    return AllReduces(store, exchange, others)


def _replicated(model: torch.nn.Module) -> list[tuple[str, Any]]:
    """Returns FSDP's parameter groups that have replicas, each with the name of its module.

    Raises:
        TypeError: it is no module.
        ValueError: there are none.
    """
    found = [
        (name, group)
        for name, module in fsdp_modules(_WHO, model).items()
        for group in parameter_groups(module)
        if hasattr(group.mesh_info, "replicate_process_group")
    ]
    if not found:
        raise ValueError(
            f"{_WHO}: no module of the model is sharded and has replicas; call torch.distributed.fsdp.fully_shard("
            "model, mesh=mesh) with a mesh of two dimensions first, the first of them the replicas; for a mesh of one "
            "dimension use compress_reduce_scatter()"
        )
    return found


def _one_group_of(groups: Sequence[Any]) -> dist.ProcessGroup:
    """Returns the process group over which all of FSDP's parameter groups all-reduce.

    Raises:
        ValueError: there are several, or they are compressed already.
    """
    found: list[dist.ProcessGroup] = [group.mesh_info.replicate_process_group for group in groups]
    if any(isinstance(each, ReplicaGroup) for each in found):
        raise ValueError(f"{_WHO}: the model's all-reduce is compressed already; call it once for a model")
    ranks = [dist.get_process_group_ranks(each) for each in found]
    if other := next((each for each in ranks if each != ranks[0]), None):
        raise ValueError(
            f"{_WHO}: modules of the model have replicas on different ranks, {ranks[0]} and {other}; give "
            "fully_shard() the same ranks for all modules"
        )
    return found[0]


def _groups_of_a_replica(group: Any, replicas: dist.ProcessGroup) -> list[dist.ProcessGroup]:
    """Returns the process groups that reach, one after the other, all ranks which hold a part of the same replica."""
    ranks = dist.get_process_group_ranks(replicas)
    mesh = group.fsdp_params[0].sharded_param.device_mesh
    found = [mesh.get_group(dimension) for dimension in range(mesh.ndim)]
    return [each for each in found if each.size() > 1 and dist.get_process_group_ranks(each) != ranks]


def _named_shards(model: torch.nn.Module, groups: Sequence[Any]) -> dict[str, tuple[Any, Any]]:
    """Returns FSDP's group and FSDP's parameter of each parameter, by name in the order of the forward pass."""
    prefixes = {module: f"{name}." if name else "" for name, module in model.named_modules()}
    registered = {id(parameter): name for name, parameter in model.named_parameters()}
    order = {name: place for place, name in enumerate(registered.values())}
    found = {}
    for group in groups:
        for parameter in group.fsdp_params:
            own = parameter._module_info  # after a forward pass another tensor may be registered
            name = registered.get(id(parameter.sharded_param), prefixes[own.module] + own.param_name)
            found[name] = group, parameter
    named = sorted(found.items(), key=lambda item: order.get(item[0], len(order)))
    return {name.replace("_orig_mod.", ""): each for name, each in named}  # torch.compile's wrapper


def _summed(group: Any, parameter: Any) -> torch.Tensor:
    """Returns a tensor without memory, of a shard's shape and of the dtype in which FSDP sums its gradient."""
    own: torch.dtype = parameter.sharded_param.dtype
    dtype = group.mp_policy.reduce_dtype or group.mp_policy.param_dtype or own
    return torch.empty(parameter.sharded_size, dtype=dtype, device="meta")


def _shard_of(others: Sequence[dist.ProcessGroup]) -> tuple[int, int]:
    """Returns which part of its replica this rank has, and of how many."""
    place, parts = 0, 1
    for group in others:
        place, parts = place * group.size() + group.rank(), parts * group.size()
    return place, parts


def _stand_in(group: Any, sum_in_place: SumInPlace) -> None:
    """Has one of FSDP's parameter groups all-reduce by a function of ours."""
    group.mesh_info = copy.copy(group.mesh_info)  # other modules may have the same
    group.mesh_info.replicate_process_group = ReplicaGroup(
        group.mesh_info.replicate_process_group, sum_in_place
    )


class AllReduces:
    """The compressed all-reduces of one model. compress_all_reduce() makes it."""

    def __init__(
        self, store: KVStore, exchange: ReplicaExchange, others: Sequence[dist.ProcessGroup]
    ) -> None:
        """
        Args:
            store: its workers are the replicas of this rank's shard.
            exchange: of the model.
            others: as of ReplicaExchange.
        """
        self._store = store
        self._exchange = exchange
        self._others = others

    @property
    def store(self) -> KVStore:
        return self._store

    def stats(self, servers: bool = False, *, residuals: bool = True) -> dict[str, Any]:
        """Returns what this rank has exchanged so far, as KVStore.stats()."""
        return self._store.stats(servers, residuals=residuals)

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's residuals: tensors by name. Save it on every rank, beside the model.

        With a codec that compresses replies, or agrees on scales, a resumed run has other bits than one that never
        stopped; gradwire.torch.save_checkpoint() keeps these too.

        torch.distributed.checkpoint keeps one copy of what all ranks name alike, so it gets bytes by rank.
        """
        own = self.own_state()
        return by_rank(own) if is_for_distributed_checkpoint() else own

    def own_state(self) -> dict[str, Any]:
        """Returns this rank's residuals, also for torch.distributed.checkpoint."""
        own = self._exchange.state()
        return {**own, "place": list(place())} if own else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state_dict(), in the next step. Parameters that it lacks start without a residual.

        Raises:
            ValueError: it was saved by another rank, or in a job of another number of ranks, whose shards differ.
        """
        state = dict(of_rank(state))
        rank, ranks = state.pop("place", place())
        if (rank, ranks) != place():
            raise ValueError(
                f"gradwire.torch: what the replicas' all-reduce has not sent yet was saved by rank {rank} of {ranks}, "
                f"and this is rank {dist.get_rank()} of {dist.get_world_size()}, whose shards are others; save "
                "compress_all_reduce()'s state on every rank, and load each where it was saved, or begin without"
            )
        self._exchange.load(state)

    def checkpoint_part(self, listed: Sequence[Any], model: torch.nn.Module) -> ReplicasPart:
        """Returns what save_checkpoint() writes of it.

        Raises:
            TypeError: the list has more than one element.
        """
        require_alone(listed, "compress_all_reduce")
        return ReplicasPart(self._store, self._exchange, _shard_of(self._others), self._others)

    def __reduce__(self) -> Any:
        raise TypeError(
            "gradwire.torch: what compress_all_reduce() returned cannot be pickled or copied: it is of this process; "
            "save its state_dict() on every rank"
        )
