"""BytePS's PyTorch interface on gradwire's store.

    import gradwire.byteps.torch as bps

    bps.init()
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression="2bit")

Start it with `gradwire run`, torchrun, mpirun, srun or a DMLC tracker. python/docs/howto/from_byteps.md lists what
differs from BytePS in meaning.

Source: byteps/torch of BytePS 0.2.5 for names, arguments and their defaults.
"""

from __future__ import annotations

from gradwire.byteps.declarations import declare
from gradwire.byteps.lifecycle import local_rank, local_size, rank, resume, size, suspend
from gradwire.byteps.torch.lifecycle import init, shutdown
from gradwire.byteps.torch.optimizer import DistributedOptimizer
from gradwire.byteps.torch.states import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from gradwire.byteps.torch.sums import (
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)
from gradwire.horovod.torch.compression import Compression

byteps_push_pull = push_pull_async_inplace  # BytePS's other name of it

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "declare",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]
