"""gradwire for PyTorch: compresses gradients on their way between the workers.

    import gradwire as gw
    import gradwire.torch

    gw.torch.broadcast_parameters(model.state_dict())
    optimizer = gw.torch.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression="int8"
    )

Gradients are sent while `backward()` still runs, front layers first. After `backward()`, `p.grad` holds what
DistributedDataParallel would leave there. So clipping, learning-rate schedules and logging need no change.

| your script has | use |
|---|---|
| its own optimizer, no wrapper | `DistributedOptimizer` |
| DistributedDataParallel | `ddp.register_comm_hook(HookState(codec="int8"), ddp_hook)` |
| FSDP2 | `compress_reduce_scatter(model, codec="int8")` after `fully_shard(model)`; for weights `compress_all_gather` |
| HSDP: FSDP2 with a mesh of replicas and shards | `compress_all_reduce(model, codec="int8")` |
| `init_process_group("gradwire")` | `GRADWIRE_COMPRESSION=int8`, or `compress_group(codec="int8")` |
| links too slow to exchange every gradient | `LocalStepOptimizer(..., sync_every=50)` |

With Adam and AdamW use the codec "int8". With SGD, "2bit" is smaller: see the guide on choosing a codec.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gradwire import torch_backend

try:
    importlib.import_module("torch")
except ModuleNotFoundError as error:
    if error.name != "torch":  # a part of an installation that is damaged
        raise
    raise ModuleNotFoundError("gradwire.torch needs PyTorch: pip install torch", name="torch") from None

from gradwire.torch.broadcast import broadcast_optimizer_state, broadcast_parameters
from gradwire.torch.checkpoint import load_checkpoint, save_checkpoint
from gradwire.torch.local.steps import LocalStepOptimizer
from gradwire.torch.optimizer import DistributedOptimizer
from gradwire.torch.sampler import ShardSampler
from gradwire.torch.session import default_store

if TYPE_CHECKING:
    from gradwire.torch.backend.compress_group import compress_group
    from gradwire.torch.backend.policy import GroupCompression, group_compression
    from gradwire.torch.ddp.hook import HookState, ddp_hook
    from gradwire.torch.sharded.fsdp import compress_reduce_scatter
    from gradwire.torch.sharded.gather import compress_all_gather
    from gradwire.torch.sharded.replicas import compress_all_reduce

__all__ = [
    "DistributedOptimizer",
    "GroupCompression",
    "HookState",
    "LocalStepOptimizer",
    "ShardSampler",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compress_all_gather",
    "compress_all_reduce",
    "compress_group",
    "compress_reduce_scatter",
    "ddp_hook",
    "default_store",
    "group_compression",
    "load_checkpoint",
    "save_checkpoint",
]


# These need torch.distributed, which not every torch has, and FSDP2's takes a second to import.
_LATER = {
    "GroupCompression": "backend.policy",
    "HookState": "ddp.hook",
    "compress_all_gather": "sharded.gather",
    "compress_all_reduce": "sharded.replicas",
    "compress_group": "backend.compress_group",
    "compress_reduce_scatter": "sharded.fsdp",
    "ddp_hook": "ddp.hook",
    "group_compression": "backend.policy",
}

torch_backend.register()  # torch has done so already, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0


def __getattr__(name: str) -> Any:
    """Imports parts when they are first used."""
    if name in _LATER:
        return getattr(importlib.import_module(f"gradwire.torch.{_LATER[name]}"), name)
    raise AttributeError(f"module 'gradwire.torch' has no attribute {name!r}; it has {', '.join(__all__)}")
