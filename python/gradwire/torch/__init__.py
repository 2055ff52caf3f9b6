"""gradwire for PyTorch: wrap the optimizer, and `backward()` leaves the workers' mean gradient in `p.grad`.

    import gradwire as gw
    import gradwire.torch

    gw.torch.broadcast_parameters(model.state_dict())
    optimizer = gw.torch.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression="2bit"
    )

Gradients are sent while `backward()` still runs, the front layers first. What `p.grad` holds after
`backward()` is what DistributedDataParallel would leave there, so clipping, learning-rate schedules and
logging need no change. Models that are wrapped already keep their wrapper:

    model = DistributedDataParallel(model)
    model.register_comm_hook(gw.torch.HookState(codec="int8"), gw.torch.ddp_hook)

    fully_shard(model)
    gw.torch.compress_reduce_scatter(model, codec="int8")

Over links that are too slow for a gradient every step, workers train apart and meet now and then:

    optimizer = gw.torch.LocalStepOptimizer(optimizer, model.named_parameters(), "int4", sync_every=50)
"""

import importlib
from typing import TYPE_CHECKING, Any

from gradwire.torch.broadcast import broadcast_optimizer_state, broadcast_parameters
from gradwire.torch.checkpoint import load_checkpoint, save_checkpoint
from gradwire.torch.local.steps import LocalStepOptimizer
from gradwire.torch.optimizer import DistributedOptimizer
from gradwire.torch.sampler import ShardSampler
from gradwire.torch.session import default_store

if TYPE_CHECKING:
    from gradwire.torch.ddp.hook import HookState, ddp_hook
    from gradwire.torch.sharded.fsdp import compress_reduce_scatter

__all__ = [
    "DistributedOptimizer",
    "HookState",
    "LocalStepOptimizer",
    "ShardSampler",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compress_reduce_scatter",
    "ddp_hook",
    "default_store",
    "load_checkpoint",
    "save_checkpoint",
]


# These need torch.distributed, which not every torch has, and FSDP2's takes a second to import.
_LATER = {"HookState": "ddp.hook", "ddp_hook": "ddp.hook", "compress_reduce_scatter": "sharded.fsdp"}


def __getattr__(name: str) -> Any:
    """Imports parts when they are first used."""
    if name in _LATER:
        return getattr(importlib.import_module(f"gradwire.torch.{_LATER[name]}"), name)
    raise AttributeError(f"module 'gradwire.torch' has no attribute {name!r}; it has {', '.join(__all__)}")
