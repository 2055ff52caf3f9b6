"""A worker of torch.distributed on Gloo in a replay: buckets as DistributedDataParallel makes them."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay.buckets import buckets
from replay.steps import Replay, Task

_LEVEL = 0.5


class GlooExchange:
    """steps.Exchange over torch.distributed; a bucket leaves when its last layer is ready."""

    def __init__(self, torch: Any, dist: Any, task: Task) -> None:
        self._dist = dist
        layers = len(task.forward)
        self._bucket_of, members = buckets(task.sizes[:layers], task.bucket_elements)
        for tensor in range(layers, len(task.sizes)):
            self._bucket_of.append(len(members))
            members.append([tensor])
        self._last = [min(tensors) for tensors in members]
        self._floats = [torch.zeros(sum(task.sizes[tensor] for tensor in tensors)) for tensors in members]
        self._layer_buckets = set(self._bucket_of[:layers])
        self._works: list[Any] = [None] * len(members)
        self._expected = _LEVEL * task.workers

    def begin(self, tensor: int) -> None:
        bucket = self._bucket_of[tensor]
        if tensor == self._last[bucket]:
            floats = self._floats[bucket].fill_(_LEVEL)
            self._works[bucket] = self._dist.all_reduce(floats, async_op=True)

    def wait(self, tensor: int) -> None:
        bucket = self._bucket_of[tensor]
        if (work := self._works[bucket]) is not None:
            work.wait()
            self._works[bucket] = None

    def check(self) -> None:
        for bucket in self._layer_buckets:
            if not bool((self._floats[bucket] == self._expected).all()):
                raise RuntimeError(
                    f"replay: gloo: the sum of bucket {bucket} is not {self._expected} everywhere"
                )

    def barrier(self) -> None:
        self._dist.barrier()

    def sent_bytes(self) -> None:
        return None


def main(folder: str) -> None:
    import torch
    import torch.distributed as dist

    task = Task.read(folder)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=max(60.0, task.patience)))
    Replay(task, dist.get_rank(), GlooExchange(torch, dist, task)).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
