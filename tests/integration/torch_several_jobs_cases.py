"""What four ranks do in torch_several_jobs_test.py: they form several gradwire jobs, whose checkpoints share a folder.

python -m torch.distributed.run --nproc-per-node 4 torch_several_jobs_cases.py
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch_hook_models import leave_the_store, shared_folder
from torch_programs import case, run_cases_in_a_group

DDP = DistributedDataParallel
Made = tuple[nn.Module, Any]  # a model, and what exchanges its gradients


def in_ddp(group: dist.ProcessGroup, seed: int) -> Made:
    torch.manual_seed(seed)
    wrapped = DDP(nn.Sequential(nn.Linear(8, 30), nn.Linear(30, 3)), process_group=group)
    state = gw.torch.HookState("2bit", process_group=group)
    wrapped.register_comm_hook(state, gw.torch.ddp_hook)
    return wrapped, state


def mesh(*names: str) -> DeviceMesh:
    """Of two by two ranks; 0 and 2, and 1 and 3, are along its first dimension."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=names)


def sharded(group: DeviceMesh, seed: int) -> Made:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, 30), nn.Linear(30, 3))
    fully_shard(net, mesh=group)
    return net, gw.torch.compress_reduce_scatter(net, "2bit", group.get_group())


def tensor_parallel(whole: DeviceMesh, seed: int) -> Made:
    """Of shards that are uneven, and a bias that both ranks of a tensor have."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, 30), nn.ReLU(), nn.Linear(30, 3))
    parallelize_module(net, whole["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net, mesh=whole["data"])
    return net, gw.torch.compress_reduce_scatter(net, "int8:block=32", whole.get_group("data"))


def replicated(stages: DeviceMesh, seed: int) -> Made:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, 30), nn.Linear(30, 3))
    fully_shard(net, mesh=stages["replicate", "shard"])
    return net, gw.torch.compress_all_reduce(net, "2bit")


def train(model: nn.Module, same: int, steps: range) -> None:
    """Ranks of the same number have the same data, as those of one tensor need."""
    for step in steps:
        model.zero_grad()
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + same))
        model(x).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * p.grad)


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [(p.to_local() if isinstance(p, DTensor) else p).detach().clone() for p in model.parameters()]


def assert_equal(one: Any, other: Any) -> None:
    """Of all tensors that two states have."""
    tensors = [[leaf for leaf in tree_leaves(state) if torch.is_tensor(leaf)] for state in (one, other)]
    assert tensors[0]
    torch.testing.assert_close(*tensors, rtol=0, atol=0)


def require_each_goes_on(make: Callable[[int], Made], same: int | None = None) -> Path:
    """Jobs that save to one folder go on with the bits of jobs that never stopped. Returns the folder.

    Args:
        make: of a seed.
        same: the number of a rank's data. Default: its own rank.
    """
    same = dist.get_rank() if same is None else same
    folder = shared_folder()
    model, exchange = make(dist.get_rank() % 2)
    train(model, same, range(3))
    gw.torch.save_checkpoint(folder, model, exchange, {"who": dist.get_rank()})
    saved = weights(model)
    train(model, same, range(3, 5))
    leave_the_store()
    later, exchange = make(7)
    assert gw.torch.load_checkpoint(folder, later, exchange) == {"who": dist.get_rank()}
    for ours, theirs in zip(weights(later), saved, strict=True):
        assert torch.equal(ours, theirs)
    train(later, same, range(3, 5))
    for ours, theirs in zip(weights(later), weights(model), strict=True):
        assert torch.equal(ours, theirs)
    leave_the_store()
    return folder


@case
def groups_of_ddp_have_a_checkpoint_each() -> None:
    group = mesh("data", "model").get_group("data")
    folder = require_each_goes_on(lambda seed: in_ddp(group, seed))
    assert sorted(path.name for path in folder.iterdir()) == ["job-from-rank-0", "job-from-rank-1"]


@case
def stages_of_sharded_models_have_a_checkpoint_each() -> None:
    require_each_goes_on(lambda seed: sharded(mesh("data", "stage")["data"], seed))


@case
def shards_of_a_tensor_have_a_checkpoint_each() -> None:
    whole = mesh("data", "tensor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's, about views
        require_each_goes_on(lambda _: tensor_parallel(whole, 0), same=whole.get_local_rank("data"))


@case
def stages_with_replicas_have_a_checkpoint_each() -> None:
    ranks = torch.tensor([[[0], [2]], [[1], [3]]])
    stages = DeviceMesh("cpu", ranks, mesh_dim_names=("stage", "replicate", "shard"))
    require_each_goes_on(lambda seed: replicated(stages, seed))
    ranks = torch.tensor([[[0, 2]], [[1, 3]]])  # of several shards, which are jobs of one rank
    stages = DeviceMesh("cpu", ranks, mesh_dim_names=("stage", "replicate", "shard"))
    folder = require_each_goes_on(lambda seed: replicated(stages, seed))
    assert (folder / "job-from-rank-1" / "shard-1-of-2").is_dir()


@case
def torchs_checkpoints_have_the_residuals_of_all_jobs() -> None:
    whole = mesh("data", "model")
    for make in (lambda: in_ddp(whole.get_group("data"), 0), lambda: sharded(whole["data"], 0)):
        folder = shared_folder()
        model, exchange = make()
        train(model, dist.get_rank(), range(3))
        saved = exchange.own_state()
        dcp.save({"exchange": exchange}, checkpoint_id=folder)
        train(model, dist.get_rank(), range(3, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            dcp.load({"exchange": exchange}, checkpoint_id=folder)
        assert_equal(exchange.own_state(), saved)
        leave_the_store()


@case
def a_job_of_other_ranks_is_given_a_folder_by_name() -> None:
    group = mesh("data", "model").get_group("data")
    folder = shared_folder()
    model, state = in_ddp(group, dist.get_rank() % 2)
    train(model, dist.get_rank(), range(1))
    gw.torch.save_checkpoint(folder, model, state)
    trained = weights(model)
    leave_the_store()
    halves = mesh("stage", "data").get_group("data")  # 0 and 1, 2 and 3
    later, state = in_ddp(halves, 7)
    if dist.get_rank() >= 2:
        with pytest.raises(
            ValueError, match="job-from-rank-0 and job-from-rank-1, and none of this job, job-from"
        ):
            gw.torch.load_checkpoint(folder, later, state)
    where = folder if dist.get_rank() < 2 else folder / "job-from-rank-0"
    gw.torch.load_checkpoint(where, later, state)
    everyone: list[Any] = [None] * 4
    dist.all_gather_object(everyone, trained)
    for ours, theirs in zip(weights(later), everyone[0], strict=True):
        assert torch.equal(ours, theirs)
    leave_the_store()
    whole, state = in_ddp(dist.group.WORLD, 7)
    with pytest.raises(ValueError, match="job-from-rank-0 and job-from-rank-1, and this job has all ranks"):
        gw.torch.load_checkpoint(folder, whole, state)
    gw.torch.load_checkpoint(folder / "job-from-rank-1", whole, state)
    for ours, theirs in zip(weights(whole), everyone[1], strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(
        ValueError, match=r"checkpoints of several jobs, .*, and this job has all ranks; save it"
    ):
        gw.torch.save_checkpoint(folder, whole, state)
    other = shared_folder()
    gw.torch.save_checkpoint(other, whole, state)
    leave_the_store()
    model, state = in_ddp(group, 7)
    gw.torch.load_checkpoint(other, model, state)  # all jobs begin from it
    for ours, theirs in zip(weights(model), everyone[1], strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(
        ValueError, match="has a checkpoint of one job itself, and this job, which has a part of the ranks"
    ):
        gw.torch.save_checkpoint(other, model, state)
    leave_the_store()


if __name__ == "__main__":
    run_cases_in_a_group()
