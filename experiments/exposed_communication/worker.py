"""A rank of run.py: DDP steps with one hook, each beside a step that does not communicate.

The model is its parameters and as little arithmetic as autograd allows: a parameter's gradient is a random tensor of
the rank's own, so what is measured is what communication adds to the shortest backward pass there is, the hardest
case to hide it behind.

    python worker.py FOLDER MODEL HOOK STEPS       started by run.py, one in each host
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import gradwire.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fashion_mnist"))
from imagenet_networks import vgg16

WARM_UP = 4  # PyTorch's PowerSGD is dense for two steps, agreed scales for one, and DDP cuts its buckets anew after one
_ONE_BUCKET_MB = 10_000  # PyTorch's PowerSGD waits for ever on Gloo where there are several
_DEFAULT_BUCKET_MB = 25


def shapes(model: str) -> list[torch.Size]:
    if model == "vgg16":
        with torch.device("meta"):
            return [parameter.shape for parameter in vgg16().parameters()]
    return [torch.Size((1000, 1000))] * 25


class Parameters(nn.Module):
    """loss = sum of <parameter, gradient>: backward yields exactly the gradients that were given."""

    def __init__(self, gradients: list[torch.Tensor]) -> None:
        super().__init__()
        self.gradients = gradients
        self.all = nn.ParameterList([nn.Parameter(torch.zeros_like(grad)) for grad in gradients])

    def forward(self) -> torch.Tensor:
        products = [(p * g).sum() for p, g in zip(self.all, self.gradients, strict=True)]
        return torch.stack(products).sum()


def make(model: str, hook: str, rank: int) -> DistributedDataParallel:
    generator = torch.Generator().manual_seed(rank)
    module = Parameters([torch.randn(shape, generator=generator) for shape in shapes(model)])
    system, _, option = hook.partition(" ")
    cap = _ONE_BUCKET_MB if system == "powersgd" else _DEFAULT_BUCKET_MB
    ddp = DistributedDataParallel(module, bucket_cap_mb=cap, gradient_as_bucket_view=True)
    if system == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif system == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, int(option), start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif system == "gradwire":
        ddp.register_comm_hook(gradwire.torch.HookState(codec=option), gradwire.torch.ddp_hook)
    elif system != "plain":
        raise ValueError(f"worker: no hook {hook!r}; see HOOKS in run.py")
    return ddp


def timed_step(ddp: DistributedDataParallel, communicate: bool) -> float:
    """Returns the seconds of forward and backward, all ranks having begun at once."""
    ddp.zero_grad()
    dist.barrier()
    began = time.perf_counter()
    if communicate:
        ddp().backward()
    else:
        with ddp.no_sync():
            ddp().backward()
    return time.perf_counter() - began


def relative_error(ddp: DistributedDataParallel) -> float:
    """Returns ||gradient - mean|| / ||mean|| of the first tensor, where mean is that of the ranks' own gradients."""
    mean = ddp.module.gradients[0].clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    first = ddp.module.all[0].grad
    return float((first - mean).norm() / mean.norm())


def digest(ddp: DistributedDataParallel) -> str:
    """Names all gradients: equal on all ranks."""
    of_all = hashlib.sha256()
    for parameter in ddp.module.all:
        of_all.update(parameter.grad.numpy())
    return of_all.hexdigest()


def main() -> None:
    folder, model, hook, steps = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    rank = dist.get_rank()
    ddp = make(model, hook, rank)
    for _ in range(WARM_UP):
        timed_step(ddp, communicate=True)
    with_sync, without = [], []
    for _ in range(steps):
        without.append(timed_step(ddp, communicate=False))
        with_sync.append(timed_step(ddp, communicate=True))
    record = {
        "step": with_sync,
        "no_sync": without,
        "digest": digest(ddp),
        "relative_error": relative_error(ddp),
        "parameters": sum(p.numel() for p in ddp.parameters()),
    }
    (folder / f"{rank}.json").write_text(json.dumps(record))
    dist.barrier()
    os._exit(0)  # Gloo's threads of the PowerSGD hook abort a process that ends otherwise


if __name__ == "__main__":
    main()
