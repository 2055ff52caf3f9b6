"""What two ranks do in torch_recipe_test.py: training as scripts of today do it, through each door of gradwire.torch,
beside torch's own sums.

A transformer block with tied embeddings, a weight norm, low-rank adapters over frozen matrices and activation
checkpoints; fused and foreach AdamW, Muon; bfloat16 parameters; a schedule, clipped gradients, an average of weights,
and microbatches that are summed once.

python -m torch.distributed.run --nproc-per-node 2 torch_recipe_cases.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gradwire as gw
import gradwire.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch_programs import case, case_from, run_cases_in_a_group

WORDS, WIDTH, MICROBATCHES = 32, 16, 2


class Adapted(nn.Module):
    """A frozen matrix, and a trained difference of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.down = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Linear(4, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = Adapted(), Adapted(), nn.Linear(WIDTH, WIDTH)
        self.out = weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        mixed = nn.functional.scaled_dot_product_attention(self.query(h), self.key(h), self.value(h))
        return x + self.out(mixed)


class Transformer(nn.Module):
    def __init__(self, *, is_tied: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        h = self.embedding(words)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return self.head(h)


Door = Callable[[nn.Module, torch.optim.Optimizer, str | None], tuple[nn.Module, torch.optim.Optimizer]]


def ddp(model: nn.Module, optimizer: torch.optim.Optimizer, codec: str | None) -> Any:
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.003)
    if codec is not None:
        wrapped.register_comm_hook(gw.torch.HookState(codec), gw.torch.ddp_hook)
    return wrapped, optimizer


def wrapper(model: nn.Module, optimizer: torch.optim.Optimizer, codec: str | None) -> Any:
    if codec is None:
        return ddp(model, optimizer, None)
    return model, gw.torch.DistributedOptimizer(
        optimizer,
        model.named_parameters(),
        compression=codec,
        backward_passes_per_step=MICROBATCHES,
    )


def fsdp(model: nn.Module, optimizer: torch.optim.Optimizer, codec: str | None) -> Any:
    if codec is not None:
        gw.torch.compress_reduce_scatter(model, codec)
    return model, optimizer


def hsdp(model: nn.Module, optimizer: torch.optim.Optimizer, codec: str | None) -> Any:
    if codec is not None:
        gw.torch.compress_all_reduce(model, codec)
    return model, optimizer


SHARDED = {fsdp: {"shard": 2}, hsdp: {"replicate": 2, "shard": 1}}  # their meshes


def adamw(kind: str) -> Callable[[list[nn.Parameter]], list[torch.optim.Optimizer]]:
    return lambda parameters: [torch.optim.AdamW(parameters, lr=0.02, **{kind: True})]


def muon(parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    matrices = [p for p in parameters if p.dim() == 2]
    others = [p for p in parameters if p.dim() != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.02)]


def trained(
    door: Door,
    codec: str | None,
    make: Callable[[list[nn.Parameter]], list[torch.optim.Optimizer]],
    dtype: torch.dtype = torch.float32,
) -> tuple[list[torch.Tensor], list[float]]:
    """Returns the weights, averages and losses of five steps."""
    model = Transformer(is_tied=door not in SHARDED).to(dtype)
    if door in SHARDED:
        sizes = SHARDED[door]
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizers = make([p for p in model.parameters() if p.requires_grad])
    wrapped, first = door(model, optimizers[0], codec)
    optimizers[0] = first
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: 1 / (1 + step)) for each in optimizers]
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if door not in SHARDED else None
    losses = []
    for step in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for number in range(MICROBATCHES):
            generator = torch.Generator().manual_seed(1000 * step + 10 * number + dist.get_rank())
            words = torch.randint(WORDS, (2, 8), generator=generator)
            is_last = number == MICROBATCHES - 1
            with local_gradients(wrapped, is_needed=not is_last):
                logits = wrapped(words)
                loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), words.roll(-1, 1).flatten())
                (loss / MICROBATCHES).backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 0.5)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        if average is not None:
            average.update_parameters(model)
        losses.append(float(loss.detach()))
    kept = [*model.parameters(), *(average.parameters() if average is not None else [])]
    return [local(p).detach().clone() for p in kept], losses


def local_gradients(model: nn.Module, *, is_needed: bool) -> contextlib.AbstractContextManager[Any]:
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(not is_needed)
    if isinstance(model, DistributedDataParallel) and is_needed:
        return model.no_sync()
    return contextlib.nullcontext()


def local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def require_torchs(door: Door, make: Any, dtype: torch.dtype = torch.float32) -> None:
    """Uncompressed to the bit, with int8 nearly."""
    weights, losses = trained(door, None, make, dtype)
    ours, own_losses = trained(door, "none", make, dtype)
    assert own_losses == losses, door
    for one, other in zip(ours, weights, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    _, lossy = trained(door, "int8:block=32", make, dtype)
    assert abs(lossy[-1] - losses[-1]) < 0.05, (door, lossy, losses)
    assert lossy != losses


@case
def the_hook() -> None:
    for make in (adamw("fused"), adamw("foreach")):
        require_torchs(ddp, make)


@case_from("2.9")
def the_hook_with_muon() -> None:
    require_torchs(ddp, muon)


@case
def the_optimizers_wrapper() -> None:
    for make in (adamw("fused"), adamw("foreach")):
        require_torchs(wrapper, make)


@case_from("2.9")
def sharded_models() -> None:
    for door in (fsdp, hsdp):
        for make in (adamw("fused"), adamw("foreach")):
            require_torchs(door, make)


@case_from("2.9")
def bfloat16_parameters_follow_torchs() -> None:
    """Means are made in float32 here, and rounded once."""
    for door in (ddp, wrapper, fsdp, hsdp):
        _, losses = trained(door, None, adamw("foreach"), torch.bfloat16)
        for codec in ("none", "int8:block=32"):
            _, own = trained(door, codec, adamw("foreach"), torch.bfloat16)
            assert max(abs(a - b) for a, b in zip(own, losses, strict=True)) < 0.1, (door, codec, own, losses)


if __name__ == "__main__":
    run_cases_in_a_group()
