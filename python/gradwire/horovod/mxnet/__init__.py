"""Horovod's MXNet interface on gradwire's store, for MXNet 1.9.

    import gradwire.horovod.mxnet as hvd                     # before `import mxnet`

    hvd.init()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, compression="2bit")

Start it with `gradwire run`, mpirun or srun. Sums and broadcasts return at once, as Horovod's do; code that reads a
result waits for it. python/docs/howto/from_horovod.md lists what differs from Horovod in meaning.

Source: horovod/mxnet of Horovod 0.28 for names, arguments and their defaults.
"""

from __future__ import annotations

import gradwire.mxnet  # noqa: F401 (serves where the process is a server, and says where MXNet is missing)
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
    size,
    start_timeline,
    stop_timeline,
)
from gradwire.horovod.mxnet.broadcasts import broadcast, broadcast_
from gradwire.horovod.mxnet.compression import Compression
from gradwire.horovod.mxnet.lifecycle import init, shutdown
from gradwire.horovod.mxnet.optimizer import DistributedOptimizer
from gradwire.horovod.mxnet.parameters import broadcast_parameters
from gradwire.horovod.mxnet.row_operations import (
    allgather,
    alltoall,
    grouped_allgather,
    grouped_reducescatter,
    reducescatter,
)
from gradwire.horovod.mxnet.sums import allreduce, allreduce_, grouped_allreduce, grouped_allreduce_
from gradwire.horovod.mxnet.trainer import DistributedTrainer
from gradwire.horovod.objects import allgather_object, broadcast_object
from gradwire.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from gradwire.horovod.reduce_ops import Adasum, Average, Max, Min, Product, Sum

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
