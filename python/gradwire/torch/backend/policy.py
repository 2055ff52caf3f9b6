"""Which gradient sums of a process group are compressed: only those that the user names, by GRADWIRE_COMPRESSION or by
compress_group().
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradwire.controller import requested
from gradwire.settings import definitions as settings
from gradwire.stores.codec_choice import naming_the_variable
from gradwire.torch import session
from gradwire.torch_backend import NAME

if TYPE_CHECKING:
    from gradwire.torch.ddp.hook import HookState
    from gradwire.torch.sharded.fsdp import ReduceScatters
    from gradwire.torch.sharded.replicas import AllReduces

_STATE = "_gradwire_state"  # an attribute of models


@dataclass(eq=False)
class GroupCompression:
    """The policy of one process group: what compress_group() and group_compression() return.

    Attributes:
        codec: of gradient sums.
        min_bytes: gradients of DDP's parameters with fewer bytes are summed uncompressed.
        grad_scaler: the torch.amp.GradScaler that scales the loss, or None.
    """

    codec: session.Wanted
    min_bytes: int = 0
    grad_scaler: Any = None
    _models: weakref.WeakSet[torch.nn.Module] = field(default_factory=weakref.WeakSet, repr=False)

    def state_of(self, model: torch.nn.Module) -> HookState | ReduceScatters | AllReduces:
        """Returns what holds a model's residuals, for checkpoints: the HookState of a DistributedDataParallel, or what
        compress_reduce_scatter() or compress_all_reduce() returns for an FSDP2 model.

        Args:
            model: the DistributedDataParallel, or the module that fully_shard() was called on.

        Raises:
            KeyError: the policy compresses no sum of this model, or has not met it yet. A model's first forward pass in
                training makes the state; compress_group(model=...) makes it at once.
        """
        if model not in self._models:
            raise KeyError(
                f"gradwire.torch: no sum of this {type(model).__name__} is compressed by the policy of its process "
                "group; call compress_group(group, codec=..., model=model), or take the state after the first step"
            )
        state: HookState | ReduceScatters | AllReduces = vars(model)[_STATE]
        return state

    def keep(self, model: torch.nn.Module, state: HookState | ReduceScatters | AllReduces) -> None:
        """Notes the state of a model; the policy's own models call it."""
        # A state may refer to its model. On the model it makes a cycle, which is collected; here it would stay.
        vars(model)[_STATE] = state
        self._models.add(model)


_stated: weakref.WeakKeyDictionary[dist.ProcessGroup, GroupCompression] = weakref.WeakKeyDictionary()
_of_environment: weakref.WeakKeyDictionary[dist.ProcessGroup, GroupCompression] = weakref.WeakKeyDictionary()
_warned: set[str] = set()


def group_compression(group: dist.ProcessGroup | None = None) -> GroupCompression | None:
    """Returns the policy of a process group: that of the last compress_group(), else that of GRADWIRE_COMPRESSION; None
    where the group has neither, or is of another backend.

    Args:
        group: default: torch's default group.

    Raises:
        ValueError: torch.distributed is not initialised.
    """
    here = default_group() if group is None else group
    if NAME not in backends(here).values():
        return None
    if here not in _of_environment and (codec := settings.read().compression):
        _of_environment[here] = GroupCompression(codec)
    return _stated.get(here) or _of_environment.get(here)


def state(group: dist.ProcessGroup, policy: GroupCompression) -> None:
    """Takes a policy that the script gives for a group, in the place of an earlier one."""
    _stated[group] = policy


def policy_for(group: dist.ProcessGroup, parameters: Iterable[torch.nn.Parameter]) -> GroupCompression | None:
    """Returns the policy by which sums of these parameters' gradients are compressed; None: they stay exact. Warns once
    where a policy covers the group, and another backend has the parameters' device.
    """
    found = group_compression(group)
    if found is None or not compresses(found.codec):
        return None
    served = backends(group)
    for device in {parameter.device.type for parameter in parameters if parameter.requires_grad}:
        if served.get(device) != NAME:
            warn_once(
                f"gradwire.torch: gradients on {device!r} are summed uncompressed: the process group gives this device "
                f"to the backend {served.get(device)!r}; give '{device}:{NAME}' to init_process_group() to compress "
                "them"
            )
            return None
    return found


def compresses(codec: session.Wanted) -> bool:
    """Whether a codec is another than "none".

    Raises:
        ValueError: a bad codec; names GRADWIRE_COMPRESSION, where it comes from there.
        TypeError: neither text nor a mapping.
    """
    variable = settings.read().compression
    with naming_the_variable(variable if codec == variable else None):
        return requested(codec, None) is not None or session.parse_compression(codec).spec != "none"


def backends(group: dist.ProcessGroup) -> dict[str, str]:
    """Returns a group's backends by kind of device, such as {"cpu": "gradwire", "cuda": "nccl"}."""
    config = dist.get_backend_config(group)
    return dict(pair.split(":", 1) for pair in config.split(",") if ":" in pair)


def default_group() -> dist.ProcessGroup:
    """Returns torch's default group.

    Raises:
        ValueError: torch.distributed is not initialised.
    """
    if not dist.is_initialized() or (group := dist.group.WORLD) is None:
        raise ValueError(
            "gradwire.torch: torch.distributed is not initialised; call "
            f'torch.distributed.init_process_group("{NAME}") first'
        )
    return group


def warn_once(text: str) -> None:
    """Warns, unless this process has had the same warning."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, UserWarning, stacklevel=3)
