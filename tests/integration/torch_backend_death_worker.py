"""A rank of torch_backend_test.py that dies, or sees another die: CASE FILE RANK WORLD_SIZE."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def step(model: nn.Module) -> None:
    model(torch.ones(4, 50)).sum().backward()


def main(case: str, file: str, rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    if case == "codecs" and rank == 0:
        os.environ["GRADWIRE_COMPRESSION"] = "int8"
    timeout = timedelta(seconds=5 if case == "late" else 120)
    store = dist.FileStore(file, ranks)
    dist.init_process_group("gradwire", store=store, rank=rank, world_size=ranks, timeout=timeout)
    if case == "late":
        late(store, rank)
        return
    model = DistributedDataParallel(nn.Linear(50, 40))
    step(model)
    if (
        case == "compressed"
    ):  # of the second forward pass on, DDP's compressed sums are all that ranks exchange
        step(model)
        step(model)
    if rank == 1 and case == "raise":
        raise FileNotFoundError("no such file of images")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    step(model)
    dist.all_reduce(torch.ones(1))


def late(store: dist.Store, rank: int) -> None:
    """Rank 1 comes to no collective while rank 0 waits for its timeout."""
    if rank == 0:
        from gradwire.torch import compress_group

        with pytest.raises(RuntimeError, match="Timed out"):
            dist.all_reduce(torch.ones(1))
        with pytest.raises(RuntimeError):
            compress_group(codec="int8")
        store.set("over", "1")
    else:
        while not store.check(["over"]):
            time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
