"""Trains on ranks that torch.multiprocessing starts, whose process group is made with explicit ranks: the environment
tells of no job.

    process_group_worker.py CASE tcp|file|store

What each rank ends with is printed as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORKERS = 2


def begin(rank: int, way: str, folder: str) -> None:
    options: dict[str, Any] = {"rank": rank, "world_size": WORKERS}
    if way == "store":
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", WORKERS), **options)
    elif way == "file":
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", **options)
    else:
        at = Path(folder, "port")
        if rank == 0:
            server = dist.TCPStore("127.0.0.1", 0, WORKERS, True, wait_for_workers=False)
            port = server.port
            del server
            at.with_suffix(".new").write_text(str(port))
            at.with_suffix(".new").rename(at)
        while not at.exists():
            pass
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{at.read_text()}", **options)


def weight(rank: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.full((1,), float(rank)))


def optimizers(rank: int) -> dict[str, Any]:
    """Front ends of torch, Horovod and BytePS, in one process: all have the process group's ranks."""
    import gradwire as gw
    import gradwire.byteps.torch as bps
    import gradwire.horovod.torch as hvd
    import gradwire.torch

    w = weight(rank)
    gw.torch.broadcast_parameters({"w": w.data}, 0)
    optimizer = gw.torch.DistributedOptimizer(torch.optim.SGD([w], lr=0.1), [("w", w)], "none")
    (w * (rank + 1)).sum().backward()
    optimizer.step()
    hvd.init()
    bps.init()
    return {
        "weight": round(w.item(), 6),
        "horovod": [hvd.rank(), hvd.size()],
        "byteps": [bps.rank(), bps.size()],
    }


def local_steps(rank: int) -> dict[str, Any]:
    import gradwire as gw
    import gradwire.torch

    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = gw.torch.LocalStepOptimizer(torch.optim.SGD([w], lr=0.1), [("w", w)], sync_every=1)
    (w * (rank + 1)).sum().backward()
    optimizer.step()
    optimizer.synchronize()
    store = gw.torch.default_store()
    return {"weight": round(w.item(), 6), "store": [store.type, store.rank, store.num_workers]}


def named_store(rank: int) -> dict[str, Any]:
    import gradwire as gw

    kv = gw.kv.create("allreduce")
    return {
        "store": [kv.rank, kv.num_workers],
        "sum": kv.collectives.all_reduce(torch.ones(1) + rank).tolist(),
    }


def hook(rank: int) -> dict[str, Any]:
    import gradwire.torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model.module.weight.zero_()
    model.register_comm_hook(gradwire.torch.HookState("none"), gradwire.torch.ddp_hook)
    model(torch.full((1, 1), float(rank + 1))).sum().backward()
    return {"gradient": model.module.weight.grad.item()}


def late(rank: int, way: str, folder: str) -> dict[str, Any]:
    """The optimizers are wrapped before the group is made: each rank would train alone."""
    import gradwire as gw
    import gradwire.horovod.torch as hvd
    import gradwire.torch

    w = weight(rank)
    optimizer = gw.torch.DistributedOptimizer(torch.optim.SGD([w], lr=0.1), [("w", w)], "none")
    local = gw.torch.LocalStepOptimizer(torch.optim.SGD([w], lr=0.1), [("w", w)], sync_every=1)
    hvd.init()
    begin(rank, way, folder)
    errors: list[str] = []
    for act in (optimizer.step, local.step, lambda: hvd.allreduce(w.data), gw.torch.default_store):
        try:
            act()
        except ValueError as error:
            errors.append(str(error))
    return {"errors": errors}


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "optimizers": optimizers,
    "local_steps": local_steps,
    "named_store": named_store,
    "hook": hook,
}


def work(rank: int, case: str, way: str, folder: str) -> None:
    torch.set_num_threads(1)
    if case == "late":
        said = late(rank, way, folder)
    else:
        begin(rank, way, folder)
        said = CASES[case](rank)
    # In one write: both ranks have one pipe, and print() may write the line break by itself.
    sys.stdout.write(json.dumps({"rank": rank, **said}) + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_FOLDER")) as made:
        mp.spawn(work, args=(sys.argv[1], sys.argv[2], made), nprocs=WORKERS)
