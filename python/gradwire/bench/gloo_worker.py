"""A worker of torch.distributed on Gloo, in `gradwire bench allreduce --peer gloo,gloo-fp16,gloo-powersgd`.

PowerSGD is PyTorch's own hook of DDP, called as DDP would call it with all gradients in one bucket: with more than one
it deadlocks on Gloo, since its callbacks wait for another all-reduce in Gloo's own threads. So neither a backward
pass nor a copy into buckets is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from gradwire.bench import power_sgd, rounds

_FLOAT32_TOLERANCE = 1e-5  # a ring adds in another order on every shard
_HALF_EPSILON = 2.0**-10


class OneBucket:
    """All gradients of a model, as DDP hands them to its hook; flat: one float32 tensor."""

    def __init__(self, flat: Any) -> None:
        count, side = power_sgd.matrices(flat.numel())
        whole = count * side**2
        self._flat = flat
        self._tensors = [*flat[:whole].view(count, side, side)]
        self._tensors += [flat[whole:]] if whole < flat.numel() else []

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> Any:
        return self._flat

    def gradients(self) -> list[Any]:
        return self._tensors


def exchange_of(codec: str, grad: Any) -> Callable[[], object]:
    """Returns what sums grad, a tensor, over the ranks in place (PowerSGD: what puts the mean there)."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    if codec == "fp16":
        half = torch.empty_like(grad, dtype=torch.float16)

        def halved() -> None:
            half.copy_(grad)
            dist.all_reduce(half)
            grad.copy_(half)

        return halved
    if codec == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=power_sgd.DENSE_ROUNDS)
        bucket: Any = OneBucket(grad)
        return lambda: powerSGD_hook.powerSGD_hook(state, bucket).wait()
    return lambda: dist.all_reduce(grad)


def accepts_of(task: rounds.Task, rank: int) -> rounds.Accepts:
    if task.codec == "powersgd":
        return power_sgd.Projections(task, rank)
    tolerance = task.ranks * _HALF_EPSILON if task.codec == "fp16" else _FLOAT32_TOLERANCE
    expectation = rounds.PlainSum(task.share_of_grads(rank))
    return rounds.matches(expectation, task.share(rank), tolerance)


def main(text: str) -> None:
    import torch
    import torch.distributed as dist

    task = rounds.Task.parse(text)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    rank = dist.get_rank()
    source = torch.from_numpy(rounds.gradient(rank, task.elements))
    grad = torch.zeros_like(source)
    actions = rounds.Actions(
        barrier=dist.barrier,
        prepare=lambda: grad.copy_(source),
        exchange=exchange_of(task.codec, grad),
        result=grad.numpy,
    )
    rounds.run(task, rank, actions, accepts_of(task, rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
