"""A rank of run.py: steps with one hook, each beside a step that does not communicate gradients.

The model is its parameters and as little arithmetic as autograd allows: a parameter's gradient is a random tensor of
the rank's own, so what is measured is what communication adds to the shortest backward pass there is, the hardest
case to hide it behind.

    python worker.py FOLDER MODEL WAY HOOK STEPS       started by run.py, one in each host

WAY is ddp, fsdp, or hsdp with two ranks in each host.
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fashion_mnist"))
from imagenet_networks import vgg16

WARM_UP = 4  # PyTorch's PowerSGD is dense for two steps, agreed scales for one, and DDP cuts its buckets anew after one
_ONE_BUCKET_MB = 10_000  # PyTorch's PowerSGD waits for ever on Gloo where there are several
_DEFAULT_BUCKET_MB = 25
_PART = 5  # tensors in a module of its own, which FSDP shards and sums as one


def shapes(model: str) -> list[torch.Size]:
    if model == "vgg16":
        with torch.device("meta"):
            return [parameter.shape for parameter in vgg16().parameters()]
    return [torch.Size((1000, 1000))] * 25


class Part(nn.Module):
    """Some of the parameters, and the gradients that backward() shall yield."""

    def __init__(self, gradients: list[torch.Tensor]) -> None:
        super().__init__()
        self.gradients = gradients
        self.all = nn.ParameterList([nn.Parameter(torch.zeros_like(grad)) for grad in gradients])

    def forward(self) -> torch.Tensor:
        return torch.stack([(p * g).sum() for p, g in zip(self.all, self.gradients, strict=True)]).sum()


class Parameters(nn.Module):
    """loss = sum of <parameter, gradient>: backward yields exactly the gradients that were given."""

    def __init__(self, gradients: list[torch.Tensor]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part(gradients[at : at + _PART]) for at in range(0, len(gradients), _PART))

    def forward(self) -> torch.Tensor:
        return torch.stack([part() for part in self.parts]).sum()

    @property
    def first(self) -> nn.Parameter:
        return self.parts[0].all[0]


class Trained:
    """The model of one rank, and the hook that sums its gradients."""

    def __init__(self, model: str, way: str, hook: str, rank: int) -> None:
        """
        Raises:
            ValueError: an unknown way or hook.
        """
        generator = torch.Generator().manual_seed(rank)
        self.module = Parameters([torch.randn(shape, generator=generator) for shape in shapes(model)])
        system, _, option = hook.partition(" ")
        if way == "ddp":
            self.model: nn.Module = with_ddp(self.module, system, option)
        elif way in ("fsdp", "hsdp") and system in ("plain", "gradwire"):
            self.model = sharded(self.module, way, option)
        else:
            raise ValueError(f"worker: no hook {hook!r} of {way!r}; see ROWS in run.py")

    def step(self, *, communicate: bool) -> None:
        """Runs forward and backward."""
        if communicate:
            self.model().backward()
        elif isinstance(self.model, DistributedDataParallel):
            with self.model.no_sync():
                self.model().backward()
        else:
            self.model.set_requires_gradient_sync(False)
            self.model().backward()
            self.model.set_requires_gradient_sync(True)

    def forget_local_gradients(self) -> None:
        """FSDP adds what a step without communication left to the next one's."""
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                for group in part._get_fsdp_state()._fsdp_param_groups:
                    for parameter in group.fsdp_params:
                        parameter.unsharded_accumulated_grad = None
                        parameter.unsharded_param.grad = None


def with_ddp(module: Parameters, system: str, option: str) -> DistributedDataParallel:
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
        raise ValueError(f"worker: no hook {system!r}; see ROWS in run.py")
    return ddp


def sharded(module: Parameters, way: str, option: str) -> nn.Module:
    """option: the codec of gradients, and with ", weights CODEC" that of weights; "" leaves all to torch."""
    codec, _, weights = option.partition(", weights ")
    ranks = dist.get_world_size()
    if way == "hsdp":
        mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (ranks,))
    for part in module.parts:
        fully_shard(part, mesh=mesh)
    fully_shard(module, mesh=mesh)
    if codec and way == "hsdp":
        gradwire.torch.compress_all_reduce(module, codec)
    elif codec:
        gradwire.torch.compress_reduce_scatter(module, codec)
    if weights:
        gradwire.torch.compress_all_gather(module, weights)
    return module


def timed_step(trained: Trained, communicate: bool) -> float:
    """Returns the seconds of forward and backward, all ranks having begun at once."""
    trained.model.zero_grad()
    dist.barrier()
    began = time.perf_counter()
    trained.step(communicate=communicate)
    seconds = time.perf_counter() - began
    if not communicate:
        trained.forget_local_gradients()
    return seconds


def whole(gradient: torch.Tensor) -> torch.Tensor:
    """All shards of a gradient. A collective, where it is sharded."""
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def relative_error(module: Parameters) -> float:
    """Returns ||gradient - mean|| / ||mean|| of the first tensor, where mean is that of the ranks' own gradients."""
    mean = module.parts[0].gradients[0].clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    return float((whole(module.first.grad) - mean).norm() / mean.norm())


def digest(module: Parameters) -> str:
    """Names all gradients: equal on all ranks."""
    of_all = hashlib.sha256()
    for parameter in module.parameters():
        of_all.update(whole(parameter.grad).numpy())
    return of_all.hexdigest()


def main() -> None:
    folder, model, way, hook, steps = Path(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    rank = dist.get_rank()
    trained = Trained(model, way, hook, rank)
    for _ in range(WARM_UP):
        timed_step(trained, communicate=True)
    with_sync, without = [], []
    for _ in range(steps):
        without.append(timed_step(trained, communicate=False))
        with_sync.append(timed_step(trained, communicate=True))
    record = {
        "step": with_sync,
        "no_sync": without,
        "digest": digest(trained.module),
        "relative_error": relative_error(trained.module),
        "parameters": sum(p.numel() for p in trained.model.parameters()),
    }
    (folder / f"{rank}.json").write_text(json.dumps(record))
    dist.barrier()
    os._exit(0)  # Gloo's threads of the PowerSGD hook abort a process that ends otherwise


if __name__ == "__main__":
    main()
