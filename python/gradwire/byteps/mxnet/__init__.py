"""BytePS's MXNet interface on gradwire's store, for MXNet 1.9.

    import gradwire.byteps.mxnet as bps                      # before `import mxnet`

    bps.init()
    trainer = bps.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1},
        compression_params={"compressor": "onebit", "scaling": True, "ef": "vanilla"},
    )

Start it with `gradwire run`, mpirun, srun or a DMLC tracker. python/docs/howto/from_byteps.md lists what differs from
BytePS in meaning.

Source: byteps/mxnet of BytePS 0.2.5 for names, arguments and their defaults.
"""

from __future__ import annotations

import gradwire.mxnet  # noqa: F401 (serves where the process is a server, and says where MXNet is missing)
from gradwire.byteps.lifecycle import local_rank, local_size, rank, resume, size, suspend
from gradwire.byteps.mxnet.lifecycle import init, shutdown
from gradwire.byteps.mxnet.optimizer import DistributedOptimizer
from gradwire.byteps.mxnet.sums import byteps_declare_tensor, byteps_push_pull
from gradwire.byteps.mxnet.trainer import DistributedTrainer
from gradwire.horovod.mxnet.compression import Compression
from gradwire.horovod.mxnet.parameters import broadcast_parameters

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]
