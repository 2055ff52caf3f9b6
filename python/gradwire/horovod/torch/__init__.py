"""Horovod's PyTorch interface on gradwire's store.

    import gradwire.horovod.torch as hvd

    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression="2bit")

Start it with `gradwire run`, torchrun, mpirun or srun. python/docs/howto/from_horovod.md lists what differs from
Horovod in meaning.
"""

from __future__ import annotations

from gradwire.horovod.errors import HorovodInternalError
from gradwire.horovod.lifecycle import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from gradwire.horovod.objects import allgather_object, broadcast_object
from gradwire.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from gradwire.horovod.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from gradwire.horovod.submission import barrier, join, poll, synchronize
from gradwire.horovod.torch import elastic
from gradwire.horovod.torch.broadcasts import broadcast, broadcast_, broadcast_async, broadcast_async_
from gradwire.horovod.torch.compression import Compression
from gradwire.horovod.torch.exchanges import alltoall, alltoall_async
from gradwire.horovod.torch.gathers import (
    allgather,
    allgather_async,
    grouped_allgather,
    grouped_allgather_async,
)
from gradwire.horovod.torch.lifecycle import init
from gradwire.horovod.torch.optimizer import DistributedOptimizer
from gradwire.horovod.torch.scatters import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from gradwire.horovod.torch.sparse_sums import sparse_allreduce_async
from gradwire.horovod.torch.states import broadcast_optimizer_state, broadcast_parameters
from gradwire.horovod.torch.sums import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from gradwire.horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
