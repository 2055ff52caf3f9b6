"""What HookState and compress_reduce_scatter say when they are given what cannot work, on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    if (store := gw.kv.joined()) is not None:
        store.close()


def test_without_torch_distributed_it_says_what_to_call() -> None:
    with pytest.raises(ValueError, match=r"call torch\.distributed\.init_process_group\(\) first"):
        gw.torch.HookState(codec="2bit")


def test_bad_codecs_and_patterns_are_named(group: None) -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(ValueError, match="2bit"):
        gw.torch.HookState(codec="2bits")
    with pytest.raises(ValueError, match=r"no parameter's name matches 'wieght'.*'weight'"):
        gw.torch.HookState(codec="2bit", named_parameters=model.named_parameters(), codecs={"wieght": "none"})


def test_one_rank_compresses_too_and_a_second_group_meets_the_store_at_hand(group: None) -> None:
    model = nn.Linear(300, 2)
    wrapped = DistributedDataParallel(model)
    state = gw.torch.HookState(codec="2bit:threshold=0.01")
    wrapped.register_comm_hook(state, gw.torch.ddp_hook)
    wrapped(torch.randn(3, 300, generator=torch.Generator().manual_seed(0))).mean().backward()
    multiples = model.weight.grad / 0.01
    torch.testing.assert_close(multiples, multiples.round())
    assert set(multiples.unique().tolist()) <= {-1.0, 0.0, 1.0}
    with pytest.raises(ValueError, match="has joined its job already"):
        gw.kv.join("tcp://127.0.0.1:1", 0, 1)
    gw.torch.HookState(codec="none", process_group=dist.new_group([0]))


def test_a_model_that_is_not_sharded_is_refused(group: None) -> None:
    with pytest.raises(ValueError, match=r"call torch\.distributed\.fsdp\.fully_shard"):
        gw.torch.compress_reduce_scatter(nn.Linear(2, 2), codec="int8")


def test_names_that_are_not_there_are_told() -> None:
    with pytest.raises(AttributeError, match="it has DistributedOptimizer, HookState"):
        _ = gw.torch.HookStat
