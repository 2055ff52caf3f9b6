"""DistributedDataParallel over a group with a policy: gets gradwire's communication hook (gradwire.torch.ddp) before
its first step, through torch's own register_comm_hook().

A model is found when it is made: torch calls watchers of module registration when DistributedDataParallel takes in the
module that it wraps. A hook of forward passes then waits for the first one in training, so that a script has all the
time until then to register a communication hook of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from gradwire.torch.backend import job
from gradwire.torch.backend.policy import GroupCompression, policy_for, warn_once
from gradwire.torch.ddp.hook import HookState, ddp_hook

_is_watching = False


def watch() -> None:
    """Finds all DistributedDataParallels that are made from now on."""
    global _is_watching
    if not _is_watching:
        register_module_module_registration_hook(_on_registration)
        _is_watching = True


def compress(model: DistributedDataParallel, policy: GroupCompression) -> bool:
    """Registers the hook. A collective of the model's process group.

    Returns: False, with a warning: ranks of the group have joined a job of others, so sums stay exact.
    """
    group = model.process_group
    if not job.join(group):
        warn_once(
            "gradwire.torch: gradient sums of a DistributedDataParallel stay uncompressed: a process joins one "
            "gradwire job, and a rank of this process group has joined one with other ranks; compress the sums of one "
            "group"
        )
        return False
    small = _names_below(model, policy.min_bytes)
    state = HookState(
        codec=policy.codec,
        process_group=group,
        named_parameters=list(model.module.named_parameters()) if small else None,
        codecs=dict.fromkeys(map(_as_pattern, small), "none") if small else None,
        grad_scaler=policy.grad_scaler,
    )
    model.register_comm_hook(state, ddp_hook)
    policy.keep(model, state)
    return True


def has_hook(model: DistributedDataParallel) -> bool:
    """Whether a communication hook is registered, one of torch's built-in ones included."""
    named = model._get_ddp_logging_data().get("comm_hook")  # type: ignore[no-untyped-call]
    return bool(model._comm_hooks or named)


def _on_registration(parent: torch.nn.Module, name: str, module: Any) -> None:
    if name == "module" and isinstance(parent, DistributedDataParallel):
        parent.register_forward_pre_hook(_on_forward)


def _on_forward(model: torch.nn.Module, arguments: Any) -> None:
    """Acts before the first forward pass whose backward() DDP will synchronize: all ranks are in it."""
    assert isinstance(model, DistributedDataParallel)
    if torch.is_grad_enabled() and model.require_backward_grad_sync:
        _begin(model)


@_disable_dynamo  # of torch.compile(ddp), which would trace how ranks join
def _begin(model: DistributedDataParallel) -> None:
    hooks = model._forward_pre_hooks
    for number in [number for number, hook in hooks.items() if hook is _on_forward]:
        del hooks[number]
    policy = policy_for(model.process_group, model.module.parameters())
    if policy is None:
        return
    if not has_hook(model):
        compress(model, policy)
    elif not any(hook is ddp_hook for hook, _ in model._comm_hooks):
        warn_once(
            f"gradwire.torch: the process group's policy (codec {policy.codec!r}) does not apply to a "
            "DistributedDataParallel with a communication hook of its own; leave out register_comm_hook() to have its "
            "gradient sums compressed by the policy"
        )


def _names_below(model: DistributedDataParallel, min_bytes: int) -> list[str]:
    """Names parameters whose gradients have fewer bytes."""
    return [
        name
        for name, parameter in model.module.named_parameters()
        if parameter.numel() * parameter.element_size() < min_bytes
    ]


def _as_pattern(name: str) -> str:
    """A shell pattern that matches this name alone."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
