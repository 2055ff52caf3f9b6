"""FSDP2 over a group with a policy: its modules get gradwire's reduce-scatter (gradwire.torch.sharded) before the first
forward pass, through torch's own set_custom_reduce_scatter().

torch has no way to watch calls of fully_shard(). The first forward pass of a sharded model calls _lazy_init() of its
root, which has found all of its sharded modules by then; that method is wrapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist

from gradwire.torch.backend import job
from gradwire.torch.backend.policy import GroupCompression, policy_for, warn_once

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
    groups = list({id(group): group for group in _process_groups(model)}.values())
    return groups[0] if len(groups) == 1 else None


def compress(model: torch.nn.Module, policy: GroupCompression) -> bool:
    """Has all FSDP modules of a model use gradwire's reduce-scatter. A collective of the group that it is sharded over.

    Returns: False, with a warning: sums stay exact, as ranks of the group have joined a job of others.
    """
    from gradwire.torch.sharded.fsdp import compress_reduce_scatter

    group = group_of(model)
    assert group is not None
    if not job.join(group):
        warn_once(
            "gradwire.torch: gradient sums of an FSDP2 model stay uncompressed: a process joins one gradwire job, and "
            "a rank of the group that the model is sharded over has joined one with other ranks; compress the sums of "
            "one group"
        )
        return False
    policy.keep(
        model,
        compress_reduce_scatter(
            model, codec=policy.codec, process_group=group, grad_scaler=policy.grad_scaler
        ),
    )
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
    """Acts on a root that is about to run its first forward pass: all ranks are in it."""
    parameters = list(model.parameters())
    groups = [group for group in _process_groups(model) if group is not None]
    policies = [
        policy for policy in (policy_for(group, parameters) for group in groups) if policy is not None
    ]
    if not policies:
        return
    if group_of(model) is None:
        warn_once(
            "gradwire.torch: gradient sums of an FSDP2 model stay uncompressed: its modules are not all sharded over "
            "one process group; call gradwire.torch.compress_reduce_scatter() for the modules of one"
        )
        return
    policy = policies[0]
    if not has_own_reduce_scatter(model):
        compress(model, policy)
    elif not is_compressed(model):
        warn_once(
            f"gradwire.torch: the process group's policy (codec {policy.codec!r}) does not apply to an FSDP2 model "
            "with a reduce-scatter of its own; leave out set_custom_reduce_scatter() to have its gradient sums "
            "compressed by the policy"
        )


def is_compressed(model: torch.nn.Module) -> bool:
    """Whether gradwire's reduce-scatter is there already."""
    from gradwire.torch.sharded.scatter import CompressedReduceScatter

    return any(isinstance(each._reduce_scatter_comm, CompressedReduceScatter) for each in _groups_of(model))


def _process_groups(model: torch.nn.Module) -> list[dist.ProcessGroup | None]:
    """Those that modules reduce-scatter over; None for a module that is replicated (torch's replicate())."""
    return [
        each._reduce_scatter_process_group if hasattr(each.mesh_info, "shard_process_group") else None
        for each in _groups_of(model)
    ]


def _groups_of(model: torch.nn.Module) -> list[Any]:
    """FSDP's parameter groups of all sharded modules: each has a reduce-scatter."""
    from torch.distributed.fsdp import FSDPModule

    found = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = cast(Any, module)._get_fsdp_state()
            # PyTorch before 2.12 has one.
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
            found += [group for group in groups if group is not None]
    return found
