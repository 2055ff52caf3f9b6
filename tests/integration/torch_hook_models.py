"""Models that are hard on DDP's hook, and the ledger of what was given and delivered."""

from __future__ import annotations

import tempfile
from pathlib import Path

import gradwire.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STATES: list[gradwire.torch.HookState] = []  # of the case that runs


def leave_states() -> None:
    for state in STATES:
        state.close()
    STATES.clear()


def leave_the_store() -> None:
    """For another one, as of another job."""
    dist.barrier()
    STATES.clear()
    if (store := gradwire.kv.joined()) is not None:
        store.close()
    dist.barrier()


def shared_folder() -> Path:
    """One that all ranks see."""
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(names)
    return Path(names[0])


def total(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over all ranks."""
    summed = tensor.clone()
    dist.all_reduce(summed)
    return summed


class Branches(nn.Module):
    """Of two layers behind a first one, some are used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(40, 40, bias=False)
        self.a, self.b = nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False)

    def forward(self, x: torch.Tensor, use: str) -> torch.Tensor:
        x = self.first(x)
        for branch in use:
            x = self.get_submodule(branch)(x)
        return x


def make_branches() -> Branches:
    torch.manual_seed(2)
    return Branches()


class Ledger:
    """What a model's layers were given, and what came of it: all of it is delivered or left to send, or it is lost."""

    def __init__(self, model: Branches) -> None:
        self.model = model
        self.given = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        self.delivered = {name: torch.zeros_like(p) for name, p in model.named_parameters()}

    def step(self, wrapped: DistributedDataParallel, step: int, use: str) -> None:
        """One backward() whose gradients are cleared before it."""
        loss = self.loss(self.model, step, use)
        used = {
            n: p
            for n, p in self.model.named_parameters()
            if p.requires_grad and n.split(".")[0] in (*use, "first")
        }
        for name, gradient in zip(used, torch.autograd.grad(loss, list(used.values())), strict=True):
            self.given[name] += gradient
        self.loss(wrapped, step, use).backward()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.delivered[name] += parameter.grad * dist.get_world_size()

    @staticmethod
    def loss(model: nn.Module, step: int, use: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(99 * dist.get_rank() + step)
        x = torch.randn(16, 40, generator=generator) * torch.rand(40, generator=generator)
        loss: torch.Tensor = model(x, use).pow(3).mean()
        return loss

    def require_nothing_lost(self, state: gradwire.torch.HookState, what: str, least: float = 1e-3) -> None:
        for name, given in self.given.items():
            lost = total(given) - self.delivered[name] - total(left_to_send(state, name, given))
            share = float(lost.norm() / total(given).norm().clamp(min=1e-12))
            assert share < least, (what, name, share)


def left_to_send(state: gradwire.torch.HookState, name: str, like: torch.Tensor) -> torch.Tensor:
    """What this rank has not sent of a parameter, of its shape: elsewhere than in its shard zeros. A shard is of the
    mean of a host's ranks.
    """
    own = state.state_dict()
    place, count = own.get("shard", (0, 1))
    left = torch.zeros(like.shape)
    residual = own.get("residuals", {}).get(name)
    if residual is not None:
        begin = place * -(-like.shape[0] // count) * like[0].numel()
        left.view(-1)[begin : begin + residual.numel()] = count * residual
    return left


class Kinds(nn.Module):
    """Multiplies its input by each of its parameters."""

    def __init__(self, *parameters: torch.Tensor) -> None:
        super().__init__()
        self.own = nn.ParameterList(nn.Parameter(p) for p in parameters)

    def forward(self, factor: float) -> torch.Tensor:
        parts = [
            (p * factor * (1 + 0.5j if p.is_complex() else 1)).abs().pow(2).sum().double() for p in self.own
        ]
        return torch.stack(parts).sum()


def kinds() -> dict[str, Kinds]:
    generator = torch.Generator().manual_seed(5)

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype, device="cpu")

    large = (100, 700)  # travels by itself, from DDP's own memory
    return {
        "complex64": Kinds(
            numbers(3, 3, dtype=torch.cfloat), numbers(3, 3), numbers(*large, dtype=torch.cfloat)
        ),
        "complex128": Kinds(numbers(3, 3, dtype=torch.cdouble), numbers(*large, dtype=torch.cdouble)),
        "no elements": Kinds(numbers(3, 0), numbers(4, 2), numbers(0)),
        "float64": Kinds(numbers(4, 4, dtype=torch.float64), numbers(*large, dtype=torch.float64)),
        "all sorts": Kinds(
            numbers(4, 4, dtype=torch.float64),
            numbers(3),
            numbers(5).bfloat16(),
            numbers(2, dtype=torch.cdouble),
        ),
        "bfloat16": Kinds(numbers(5).bfloat16(), numbers(*large).bfloat16()),
        # DDP's division by two rounds what is subnormal, in float16 below 6.1e-5.
        "float16": Kinds((numbers(5).abs() + 0.5).half(), (numbers(*large).abs() + 0.5).half()),
        "a scalar": Kinds(numbers(), numbers(dtype=torch.float64)),
        "permuted": Kinds(numbers(4, 6).t(), numbers(2, 3, 4, 5).to(memory_format=torch.channels_last)),
    }
