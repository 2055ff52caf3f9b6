"""A DDP or FSDP2 job that is saved whole and gone on from, for torch_hook_checkpoint_test.py.

python -m torch.distributed.run --nproc-per-node 2 torch_hook_checkpoint_worker.py ddp|fsdp save FOLDER
python -m torch.distributed.run --nproc-per-node 3 torch_hook_checkpoint_worker.py ddp|fsdp load FOLDER
python -m torch.distributed.run --nproc-per-node 4 torch_hook_checkpoint_worker.py hsdp|local save FOLDER
python -m torch.distributed.run --nproc-per-node 6 torch_hook_checkpoint_worker.py hsdp|local load FOLDER
"""

from __future__ import annotations

import functools
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

# With residuals at workers and at servers, agreed scales, and choices that are drawn by the number of the round.
CODECS = (
    "2bit",
    "2bit:threshold=0.001",
    "2bit:threshold=auto,reply=2bit",
    "int8",
    "int4",
    "randomk:ratio=0.1",
    "fp16",
)
CODECS += ("none",)
SAVED, STEPS = 3, 6
FULL = StateDictOptions(full_state_dict=True)


class Net(nn.Module):
    """Small layers, which travel together, and a large one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide, self.last = nn.Linear(20, 64), nn.Linear(64, 1200), nn.Linear(1200, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.wide(torch.relu(self.first(x)))))


class Job(ABC):
    """One that trains from the first step on."""

    def __init__(self, codec: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model: nn.Module = self.wrap(Net(), codec)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)

    hook: Any  # what exchanges gradients

    @abstractmethod
    def wrap(self, net: nn.Module, codec: str) -> nn.Module:
        """Has what exchanges gradients be self.hook; returns what is trained."""

    def optimizer_state(self) -> Any:
        return self.optimizer.state_dict()

    def load_optimizer(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)

    @abstractmethod
    def residuals(self) -> dict[str, torch.Tensor]:
        """What this rank has not sent yet, by parameter."""

    def train(self, steps: range) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            x = torch.randn(30, 20, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            self.model(x).square().mean().backward()
            self.optimizer.step()

    def weights(self) -> list[torch.Tensor]:
        return [getattr(p, "_local_tensor", p).detach().clone() for p in self.model.parameters()]


class Hooked(Job):
    def wrap(self, net: nn.Module, codec: str) -> nn.Module:
        wrapped = DistributedDataParallel(net, bucket_cap_mb=0.05)
        self.hook = gw.torch.HookState(codec)
        wrapped.register_comm_hook(self.hook, gw.torch.ddp_hook)
        return wrapped

    def residuals(self) -> dict[str, torch.Tensor]:
        return dict(self.hook.state_dict().get("residuals", {}))

    def load_what_is_left_over(self) -> None:
        """Of a parameter that is not trained."""
        own = {
            "rank": self.hook._store.rank,
            "residuals": {"frozen": torch.full((7,), 1.0 + dist.get_rank())},
        }
        self.hook.load_state_dict(own | {"shard": self.shard()})

    def shard(self) -> list[int]:
        return [0, 1]


class HookedOnHosts(Hooked):
    """Of two ranks."""

    def wrap(self, net: nn.Module, codec: str) -> nn.Module:
        wrapped = DistributedDataParallel(net, bucket_cap_mb=0.05)
        self.hook = gw.torch.HookState(codec, local_group=local_group())
        wrapped.register_comm_hook(self.hook, gw.torch.ddp_hook)
        return wrapped

    def shard(self) -> list[int]:
        return [dist.get_rank(local_group()), 2]

    def residuals(self) -> dict[str, torch.Tensor]:
        shard = dist.get_rank(local_group())
        return {f"{name} of shard {shard}": residual for name, residual in super().residuals().items()}


@functools.cache
def local_group() -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_subgroups(2)[0]
    return group


class Sharded(Job):
    def wrap(self, net: nn.Module, codec: str) -> nn.Module:
        assert isinstance(net, Net)
        fully_shard(net.wide)
        fully_shard(net)
        self.hook = gw.torch.compress_reduce_scatter(net, codec.removesuffix(",reply=2bit"))
        return net

    def optimizer_state(self) -> Any:
        return get_optimizer_state_dict(self.model, self.optimizer, options=FULL)

    def load_optimizer(self, state: Any) -> None:
        set_optimizer_state_dict(self.model, self.optimizer, state, options=FULL)

    def residuals(self) -> dict[str, torch.Tensor]:
        found = {}
        for module, scatter in self.hook._scatters.items():
            if scatter._state is not None and scatter._codec.lossy:
                for name, residual in scatter._state.by_parameter().items():
                    found[f"{module}/{name}"] = residual.flatten()
        return found


class Replicated(Job):
    """Of two shards."""

    def wrap(self, net: nn.Module, codec: str) -> nn.Module:
        assert isinstance(net, Net)
        names = ("replicate", "shard")
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=names)
        fully_shard(net.wide, mesh=mesh)
        fully_shard(net, mesh=mesh)
        self.hook = gw.torch.compress_all_reduce(net, codec)
        self.mesh = mesh
        return net

    def optimizer_state(self) -> Any:
        return tree_map(lambda each: getattr(each, "_local_tensor", each), self.optimizer.state_dict())

    def load_optimizer(self, state: Any) -> None:
        """Its buffers are sharded as parameters are."""
        parameters = list(self.model.parameters())
        for number, parameter in enumerate(parameters):
            buffer = state["state"][number]["momentum_buffer"]
            self.optimizer.state[parameter]["momentum_buffer"] = DTensor.from_local(
                buffer, self.mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
            )

    def residuals(self) -> dict[str, torch.Tensor]:
        shard = self.mesh.get_local_rank("shard")
        own = self.hook.state_dict().get("residuals", {})
        return {f"{name} of shard {shard}": residual for name, residual in own.items()}


@contextmanager
def job(kind: type[Job], codec: str, seed: int) -> Iterator[Job]:
    """Its ranks leave each other at the end, for another one."""
    yield kind(codec, seed)
    dist.barrier()
    if (store := gw.kv.joined()) is not None:
        store.close()
    dist.barrier()


def sum_of_residuals(one: Job) -> dict[str, torch.Tensor]:
    """Over all ranks, of which those that are new have none."""
    own = one.residuals()
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {name: residual.numel() for name, residual in own.items()})
    found = {}
    for name, elements in sorted({name: n for each in everyone for name, n in each.items()}.items()):
        found[name] = own.get(name, torch.zeros(elements)).double()
        dist.all_reduce(found[name])
    return found


def save(kind: type[Job], folder: Path) -> None:
    """Goes on with the bits of a job that never stopped."""
    for number, codec in enumerate(CODECS):
        here = folder / str(number)
        with job(kind, codec, 0) as first:
            if isinstance(first, Hooked):
                first.load_what_is_left_over()
            first.train(range(SAVED))
            extra = {"step": SAVED, "optimizer": first.optimizer_state()}
            gw.torch.save_checkpoint(here, first.model, first.hook, extra)
            totals = sum_of_residuals(first)
            if kind is Sharded:
                dcp.save({"residuals": first.hook}, checkpoint_id=folder / f"dcp.{number}")
            first.train(range(SAVED, STEPS))
        if dist.get_rank() == 0:
            torch.save(totals, folder / f"{number}.totals")
        with job(kind, codec, 7) as later:
            extra = gw.torch.load_checkpoint(here, later.model, later.hook)
            later.load_optimizer(extra["optimizer"])
            for name, total in sum_of_residuals(later).items():
                assert torch.equal(total, totals[name]), (codec, name)
            later.train(range(extra["step"], STEPS))
            for a, b in zip(later.weights(), first.weights(), strict=True):
                assert torch.equal(a, b), codec
        if kind is Sharded:
            with job(kind, codec, 7) as later:
                dcp.load({"residuals": later.hook}, checkpoint_id=folder / f"dcp.{number}")
                for name, total in sum_of_residuals(later).items():
                    assert torch.equal(total, totals[name]), (codec, name)
    say("every codec goes on bit for bit")


def load(kind: type[Job], folder: Path) -> None:
    """On another number of ranks no residual is lost."""
    for number, codec in enumerate(CODECS):
        with job(kind, codec, 7) as later:
            extra = gw.torch.load_checkpoint(folder / str(number), later.model, later.hook)
            later.load_optimizer(extra["optimizer"])
            totals = torch.load(folder / f"{number}.totals")
            now = sum_of_residuals(later)
            assert now.keys() == totals.keys(), (codec, now.keys(), totals.keys())
            for name, total in now.items():
                torch.testing.assert_close(total, totals[name], rtol=1e-6, atol=1e-9)
                assert codec == "none" or total.any(), (codec, name)
            later.train(range(extra["step"], STEPS))
    say("every codec goes on with others")


def refuse(kind: type[Job], folder: Path) -> None:
    """A checkpoint of something else, or a model that lacks what it has, is refused on all ranks."""
    other = Sharded if kind is Hooked else Hooked
    with (
        job(other, "int8", 7) as one,
        pytest.raises(ValueError, match=r"the checkpoint is of .*, and given is"),
    ):
        gw.torch.load_checkpoint(folder / "3", one.model, one.hook)
    if kind is Hooked:
        with job(Hooked, "int8", 7) as one:
            one.model.module.renamed = one.model.module.wide  # type: ignore[union-attr]
            del one.model.module.wide  # type: ignore[union-attr]
            with pytest.raises(
                ValueError, match=r"not sent of 'wide\.weight', and the model has no parameter"
            ):
                gw.torch.load_checkpoint(folder / "3", one.model, one.hook)
        with job(Hooked, "int8", 7) as one:
            one.train(range(1))
            with pytest.raises(ValueError, match="has pushed already"):
                gw.torch.load_checkpoint(folder / "3", one.model, one.hook)
    say("others are refused")


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main() -> None:
    kind = {"ddp": Hooked, "fsdp": Sharded, "hsdp": Replicated, "local": HookedOnHosts}[sys.argv[1]]
    folder = Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if sys.argv[2] == "save":
        save(kind, folder)
        if kind in (
            Hooked,
            Sharded,
        ):  # files of the others are in folders of their own, where these find none
            refuse(kind, folder)
    else:
        load(kind, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
