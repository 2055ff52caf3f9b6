"""compress_group(): the policy of a process group, stated by the script."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire.settings import definitions as settings
from gradwire.torch import session
from gradwire.torch.backend import ddp_models, fsdp_models, policy
from gradwire.torch.backend.policy import GroupCompression
from gradwire.torch.exchange_options import enabled_scaler
from gradwire.torch.process_group import require_alike
from gradwire.torch_backend import NAME

_WHO = "gradwire.torch: compress_group"


def compress_group(
    group: dist.ProcessGroup | None = None,
    codec: session.Wanted | None = None,
    *,
    min_bytes: int = 0,
    model: torch.nn.Module | None = None,
    grad_scaler: Any = None,
) -> GroupCompression:
    """Compresses the gradient sums of a process group of the backend "gradwire": DistributedDataParallel's buckets,
    FSDP2's reduce-scatters, and the all-reduces of HSDP's replicas. All other collectives of the group stay exact.

    A collective of the group: every rank calls it with the same arguments, before the first step.

    Args:
        group: default: torch's default group.
        codec: as `codec` of HookState; GRADWIRE_COMPRESSION overrides it. With "none", sums stay exact.
        min_bytes: gradients of DDP's parameters with fewer bytes are summed uncompressed, as biases and norms always
            are. GRADWIRE_COMPRESSION sets it aside, as it does HookState's `codecs`. Default: 0.
        model: a DistributedDataParallel over this group, or a module that fully_shard() was called on: its sums are
            compressed from here on. Default: None, which stands for every DistributedDataParallel and every FSDP2 model
            over the group, from its first forward pass in training. A model with a communication hook of its own keeps
            that, with a warning.
        grad_scaler: the torch.amp.GradScaler that scales the loss, as for HookState. Default: None.

    Returns: the policy. Its state_of(model) is what checkpoints need.

    Raises:
        ValueError: the group has another backend; no codec, or a bad one; a bad min_bytes; the model is of another
            group; ranks give other arguments, in which case all get the same text.
        TypeError: an argument has the wrong type.
        RuntimeError: the model has a communication hook of its own; or a rank of the group has joined a gradwire job of
            other ranks.
        gradwire.TimeoutError: a rank did not join in time; names it.
    """
    here = policy.default_group() if group is None else group
    _require_backend(here)
    if isinstance(min_bytes, bool) or not isinstance(min_bytes, int) or min_bytes < 0:
        raise ValueError(f"{_WHO}: min_bytes={min_bytes!r}, expected a number of bytes, 0 or more")
    wanted = settings.read().compression or codec
    if wanted is None:
        raise ValueError(
            f'{_WHO}: no codec was given; pass one, such as codec="int8", or set GRADWIRE_COMPRESSION'
        )
    is_lossy = policy.compresses(wanted)
    if model is not None:
        _require_model(model, here, min_bytes)
    made = GroupCompression(wanted, min_bytes, enabled_scaler(grad_scaler))
    given = {"codec": str(wanted), "min_bytes": min_bytes, "grad_scaler": made.grad_scaler is not None}
    require_alike(_WHO, [here], given)
    fsdp_models.watch()
    policy.state(here, made)
    if model is not None and is_lossy:
        if isinstance(model, DistributedDataParallel):
            is_compressed = ddp_models.compress(model, made)
        else:
            is_compressed = fsdp_models.compress(model, made, here)
        if not is_compressed:
            raise RuntimeError(
                f"{_WHO}: a rank of this process group has joined a gradwire job of other ranks, and a process joins "
                "one; compress the sums of one group, or create no store in the script"
            )
    return made


def _require_backend(group: dist.ProcessGroup) -> None:
    if NAME not in (found := policy.backends(group)).values():
        raise ValueError(
            f"{_WHO}: the backends of this process group are {found}, expected {NAME!r} among them; call "
            f'init_process_group("{NAME}"), or register gradwire.torch.HookState with the model, which any backend '
            "takes"
        )


def _require_model(model: torch.nn.Module, group: dist.ProcessGroup, min_bytes: int) -> None:
    if isinstance(model, DistributedDataParallel):
        own: list[dist.ProcessGroup | None] = [model.process_group]
        if ddp_models.has_hook(model):
            raise RuntimeError(
                f"{_WHO}: the model has a communication hook already, and DistributedDataParallel takes one; leave out "
                "register_comm_hook(), or this call"
            )
    elif fsdp_models.is_sharded(model):
        own = [fsdp_models.replicas_of(model), fsdp_models.group_of(model)]
        if min_bytes:
            raise ValueError(
                f"{_WHO}: min_bytes={min_bytes} was given with an FSDP2 model, which reduce-scatters all parameters of "
                "a module as one; leave min_bytes out, or call fully_shard() on the large modules only"
            )
    else:
        raise TypeError(
            f"{_WHO}: model is a {type(model).__name__}, expected a DistributedDataParallel, or a module that "
            "fully_shard() was called on"
        )
    if not any(each is group for each in own):
        raise ValueError(
            f"{_WHO}: the model's gradients are summed in another process group than the one given; give both the same"
        )
