"""gradwire.byteps.torch in one process: BytePS's names and defaults, one rank by itself, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import gradwire.byteps.torch as bps
import pytest
import torch
from gradwire.byteps.torch import sums
from gradwire.byteps.torch.parallel import DistributedDataParallel

# byteps/torch/__init__.py and ops.py of BytePS 0.2.5: parameters with their defaults, where a script may give them.
BYTEPS = {
    "init": "(lazy=True)",
    "shutdown": "()",
    "size": "()",
    "local_size": "()",
    "rank": "()",
    "local_rank": "()",
    "declare": "(name)",
    "push_pull": "(tensor, average=True, name=None, version=0, priority=0, compression=none)",
    "push_pull_async": "(tensor, average=True, name=None, version=0, priority=0)",
    "push_pull_async_inplace": "(tensor, average=True, name=None, version=0, priority=0)",
    "push_pull_inplace": "(tensor, average=True, name=None, version=0, priority=0)",
    "byteps_push_pull": "(tensor, average=True, name=None, version=0, priority=0)",
    "poll": "(handle)",
    "synchronize": "(handle)",
    "DistributedOptimizer": "(optimizer, named_parameters=None, compression=none, backward_passes_per_step=1)",
    "broadcast_parameters": "(params, root_rank, prefix='Parameter.')",
    "broadcast_optimizer_state": "(optimizer, root_rank, prefix='Parameter.')",
    "broadcast_object": "(obj, root_rank=0, name=None)",
}


@pytest.fixture
def alone(no_job: None) -> Iterator[None]:
    bps.init()
    yield
    bps.shutdown()


def signature(function: Any) -> str:
    words = []
    for name, parameter in inspect.signature(function).parameters.items():
        given = "none" if parameter.default is bps.Compression.none else repr(parameter.default)
        words.append(name if parameter.default is parameter.empty else f"{name}={given}")
    return f"({', '.join(words)})"


@pytest.mark.parametrize("name", BYTEPS)
def test_calls_of_byteps_can_be_made(name: str) -> None:
    """Ours may take more, behind what BytePS's takes."""
    ours, theirs = signature(getattr(bps, name)), BYTEPS[name]
    assert ours == theirs or ours.startswith(theirs.removesuffix(")") + ", "), ours


def test_one_rank_by_itself(alone: None) -> None:
    assert (bps.rank(), bps.size(), bps.local_rank(), bps.local_size()) == (0, 1, 0, 1)
    bps.init(lazy=False)  # has been called
    mine = torch.tensor([1, 2, 3])
    assert torch.equal(bps.push_pull(mine, name="ints"), mine)
    handle = bps.push_pull_async(mine.double(), average=False, name="doubles")
    assert torch.equal(bps.synchronize(handle), mine.double())
    bps.synchronize(bps.byteps_push_pull(mine))  # BytePS has names for those that have none
    assert bps.broadcast_object({"a": mine}, 0) == {"a": mine}


def test_an_optimizer_of_one_rank_is_torchs(alone: None) -> None:
    weights = []
    for is_ours in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        optimizer: Any = torch.optim.Adam(model.parameters())
        if is_ours:
            optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
            assert isinstance(optimizer, torch.optim.Adam)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((1, 4), float(step))).square().sum().backward()
            optimizer.step()
        weights.append(model.weight.detach().clone())
    assert torch.equal(*weights)


def test_ddp_of_one_rank_is_the_module(alone: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))
    wrapped = DistributedDataParallel(model)
    with wrapped.no_sync():
        wrapped(torch.randn(3, 4)).sum().backward()
    wrapped(torch.randn(3, 4)).sum().backward()
    wrapped.synchronize()
    assert model[0].weight.grad is not None
    assert list(wrapped.state_dict()) == [f"module.{name}" for name in model.state_dict()]
    with pytest.raises(ValueError, match=r"device_ids=\[0, 1\], expected one device"):
        DistributedDataParallel(model, device_ids=[0, 1])


@pytest.mark.parametrize(
    "call",
    [
        bps.rank,
        bps.local_size,
        lambda: bps.push_pull(torch.ones(2), name="a"),
        lambda: bps.push_pull_async(torch.ones(2)),
        lambda: bps.poll(0),
        lambda: bps.synchronize(0),
        lambda: bps.broadcast_parameters([], 0),
        lambda: bps.broadcast_object(1),
        lambda: bps.DistributedOptimizer(torch.optim.SGD([torch.ones(2)], lr=1.0)),
    ],
)
def test_what_comes_before_init_says_so(call: Any) -> None:
    with pytest.raises(ValueError, match=r"call bps\.init\(\) first"):
        call()


def test_a_sum_that_is_waited_for_needs_a_name(alone: None) -> None:
    with pytest.raises(ValueError, match="name is missing"):
        bps.push_pull(torch.ones(2))
    with pytest.raises(TypeError, match="name is 3, expected a str"):
        bps.declare(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("compression", [bps.Compression.none, bps.Compression.fp16, "fp16"])
@pytest.mark.parametrize("call", [bps.push_pull, bps.push_pull_async, bps.push_pull_inplace])
def test_what_is_no_tensor_is_named(call: Any, compression: Any, alone: None) -> None:
    with pytest.raises(TypeError, match=r"given a list, expected a torch\.Tensor"):
        call([1.0], name="a", compression=compression)


def test_sums_go_by_priority_and_then_by_place() -> None:
    """BytePS's torch plug-in gives priority=-index: the front layer's is 0, and goes first."""
    order = [(40_000, 3), (2, 1), (0, 0), (0, 1), (0, 65_534), (0, None), (-1, 0), (-1, 7), (-32_767, 70_000)]
    found = [sums.store_priority(priority, place) for priority, place in order]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(order)
    assert all(-(2**31) <= one < 2**31 for one in found)
    assert sums.store_priority(-1_000_000, None) == found[-1]


def test_a_push_pull_hands_both_to_the_store(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[tuple[str, int]] = []
    submit = sums.submit_sum

    def watched(tensors: Any, result: Any, name: str, *others: Any, **options: Any) -> int:
        submitted.append((name, options["priority"]))
        return submit(tensors, result, name, *others, **options)

    monkeypatch.setattr(sums, "submit_sum", watched)
    names = [f"layer.{i}" for i in range(4)]
    for i in (3, 1, 2, 0):  # as backward() comes to them; nothing was declared
        bps.synchronize(bps.push_pull_async(torch.ones(2), name=names[i], priority=-i, compression="2bit"))
    for i in (3, 1):
        bps.synchronize(bps.byteps_push_pull(torch.ones(2), name=names[i], priority=-9))
    by_urgency = sorted(submitted, key=lambda one: -one[1])
    assert [name for name, _ in by_urgency] == [*names, names[3], names[1]]  # 3 has come before 1


def test_names_come_in_pairs(alone: None) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match=r"has a Parameter, expected \(name, parameter\) pairs"):
        bps.DistributedOptimizer(optimizer, model.parameters())
    with pytest.raises(ValueError, match="unknown codec"):
        bps.DistributedOptimizer(optimizer, model.named_parameters(), "3bit")
