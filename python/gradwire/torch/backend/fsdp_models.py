"""FSDP2 over a group with a policy: its modules get gradwire's reduce-scatter (gradwire.torch.sharded), or HSDP's
all-reduce, before the first forward pass.

torch has no way to watch calls of fully_shard(). The first forward pass of a sharded model calls _lazy_init() of its
root, which has found all of its sharded modules by then; that method is wrapped.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradwire.torch.backend import job
from gradwire.torch.backend.policy import GroupCompression, policy_for, warn_once

if TYPE_CHECKING:
    from gradwire.torch.sharded.fsdp import ReduceScatters
    from gradwire.torch.sharded.replicas import AllReduces

_is_watching = False


def watch() -> None:
    """Finds all FSDP2 models whose first forward pass comes from now on. Imports FSDP2, which takes a second."""
    global _is_watching
    if _is_watching:
        return
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    FSDPState._lazy_init = _watched(FSDPState._lazy_init)  # type: ignore[method-assign, assignment]
    _is_watching = True


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether fully_shard() was called on a module, or on a part of it."""
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(module, FSDPModule) for module in model.modules())


def group_of(model: torch.nn.Module) -> dist.ProcessGroup | None:
    """Returns the group over which a model's modules reduce-scatter; None: over several, or some are not sharded."""
    return _only(_process_groups(model))


def replicas_of(model: torch.nn.Module) -> dist.ProcessGroup | None:
    """Returns the group over which a model's modules all-reduce their shards; None: over several, or some do not."""
    return _only(_replica_groups(model))


def compress(model: torch.nn.Module, policy: GroupCompression, group: dist.ProcessGroup) -> bool:
    """Has all FSDP modules of a model use gradwire's all-reduce or reduce-scatter. A collective of the group.

    Args:
        group: of replicas_of() or group_of().

    Returns: False, with a warning: sums stay exact, as ranks of the group have joined a job of others.
    """
    from gradwire.torch.sharded.fsdp import compress_reduce_scatter
    from gradwire.torch.sharded.replicas import compress_all_reduce

    if not job.join(group):
        warn_once(
            "gradwire.torch: gradient sums of an FSDP2 model stay uncompressed: a process joins one gradwire job, and "
            "a rank of the group that the model is sharded over has joined one with other ranks; compress the sums of "
            "one group"
        )
        return False
    made: AllReduces | ReduceScatters
    if group is replicas_of(model):
        made = compress_all_reduce(model, codec=policy.codec, grad_scaler=policy.grad_scaler)
    else:
        made = compress_reduce_scatter(
            model, codec=policy.codec, process_group=group, grad_scaler=policy.grad_scaler
        )
    policy.keep(model, made)
    return True


def has_own_reduce_scatter(model: torch.nn.Module) -> bool:
    """Whether a script has given any module of the model another reduce-scatter than torch's default."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    return any(type(each._reduce_scatter_comm) is not DefaultReduceScatter for each in _groups_of(model))


def _watched(lazy_init: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(lazy_init)
    def initialize(state: Any) -> None:
        is_first = state._is_root is None
        lazy_init(state)
        if is_first:
            _on_first_forward(state._modules[0])

    return initialize


def _on_first_forward(model: torch.nn.Module) -> None:
    """Acts on a root that is about to run its first forward pass: all ranks are in it. Replicas' sums come before those
    of shards, whose ranks have faster links.
    """
    if is_compressed(model):
        return
    parameters = list(model.parameters())
    groups = [each for each in _distinct(_replica_groups(model) + _process_groups(model)) if each is not None]
    found = [(policy, group) for group in groups if (policy := policy_for(group, parameters)) is not None]
    if not found:
        return
    policy, group = found[0]
    if not any(group is each for each in (replicas_of(model), group_of(model))):
        warn_once(
            "gradwire.torch: gradient sums of an FSDP2 model stay uncompressed: its modules are not all sharded over "
            "one process group; call gradwire.torch.compress_reduce_scatter() for the modules of one"
        )
    elif group is replicas_of(model) or not has_own_reduce_scatter(model):
        compress(model, policy, group)
    else:
        warn_once(
            f"gradwire.torch: the process group's policy (codec {policy.codec!r}) does not apply to an FSDP2 model "
            "with a reduce-scatter of its own; leave out set_custom_reduce_scatter() to have its gradient sums "
            "compressed by the policy"
        )


def is_compressed(model: torch.nn.Module) -> bool:
    """Whether gradwire's all-reduce or reduce-scatter is there already."""
    if "gradwire.torch.sharded" not in sys.modules:  # which an older PyTorch than it needs cannot import
        return False
    from gradwire.torch.sharded.replica_group import ReplicaGroup
    from gradwire.torch.sharded.scatter import CompressedReduceScatter

    return any(isinstance(group, ReplicaGroup) for group in _replica_groups(model)) or any(
        isinstance(each._reduce_scatter_comm, CompressedReduceScatter) for each in _groups_of(model)
    )


def _process_groups(model: torch.nn.Module) -> list[dist.ProcessGroup | None]:
    """Those that modules reduce-scatter over; None for a module that is replicated (torch's replicate())."""
    return [
        each._reduce_scatter_process_group if hasattr(each.mesh_info, "shard_process_group") else None
        for each in _groups_of(model)
    ]


def _replica_groups(model: torch.nn.Module) -> list[dist.ProcessGroup | None]:
    """Those that modules all-reduce over; None for a module without replicas."""
    return [getattr(each.mesh_info, "replicate_process_group", None) for each in _groups_of(model)]


def _only(groups: Sequence[dist.ProcessGroup | None]) -> dist.ProcessGroup | None:
    found = _distinct(groups)
    return found[0] if len(found) == 1 else None


def _distinct(groups: Sequence[dist.ProcessGroup | None]) -> list[dist.ProcessGroup | None]:
    return list({id(group): group for group in groups}.values())


def _groups_of(model: torch.nn.Module) -> list[Any]:
    """FSDP's parameter groups of all sharded modules: each has a reduce-scatter."""
    from torch.distributed.fsdp import FSDPModule

    from gradwire.torch.sharded.layout import parameter_groups

    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    return [group for module in modules for group in parameter_groups(module)]
