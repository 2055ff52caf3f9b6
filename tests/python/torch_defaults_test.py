"""torch.set_default_dtype() and torch.set_default_device() change what users make, and nothing that gradwire makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.two_ranks import batch, require_equal, run_two, seeded, wrapped
from torch import nn


@pytest.fixture(params=["float64", "bfloat16"])
def default_dtype(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, request.param))
    yield
    torch.set_default_dtype(before)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(20, 4, sparse=True, device="cpu", dtype=torch.float32)
        self.last = nn.Linear(4, 2, device="cpu", dtype=torch.float32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.rows(ids))


def train(model: nn.Module, optimizer: Any, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        ids = (torch.arange(3, device="cpu") + rank + step) % 20
        model(ids).square().sum().backward()
        optimizer.step()


OPTIONS: list[dict[str, Any]] = [
    {"compression": "none"},
    {"compression": "2bit:threshold=0.01"},
    {"compression": "int8", "on_nonfinite": "skip_step", "max_grad_norm": 1.0},
    {"compression": "fp16", "overlap_step": True},
    {"compression": "auto", "budget": "30% error"},
]


def trained(folder: Path, options: dict[str, Any], device: str | None) -> list[nn.Module]:
    """Trains, saves and goes on, and returns each rank's model."""
    models: dict[int, nn.Module] = {}

    def body(store: gw.kv.KVStore) -> None:
        with torch.device(device or "cpu"):
            model = seeded(Table)
            model.load_state_dict(
                {
                    n: torch.linspace(-1, 1, p.numel(), dtype=torch.float32, device="cpu").view_as(p)
                    for n, p in model.named_parameters()
                }
            )
            optimizer = wrapped(model, store, **options)
            gw.torch.broadcast_parameters(model.state_dict(), store=store)
            train(model, optimizer, store.rank, range(3))
            gw.torch.broadcast_optimizer_state(optimizer, store=store)
            gw.torch.save_checkpoint(folder, model, optimizer)
            optimizer.load_state_dict(optimizer.state_dict())
            train(model, optimizer, store.rank, range(3, 6))
            optimizer.synchronize()
            optimizer.close()
            models[store.rank] = model

    run_two(body)
    return [models[0], models[1]]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_default_device(options: dict[str, Any], tmp_path: Path) -> None:
    plain, meta = (trained(tmp_path / str(d), options, d) for d in (None, "meta"))
    for ours, theirs in zip(meta, plain, strict=True):
        if options["compression"] != "auto":  # which goes by measured times
            require_equal(ours, theirs)
        assert all(p.device.type == "cpu" for p in ours.parameters())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_default_dtype(options: dict[str, Any], tmp_path: Path, default_dtype: None) -> None:
    wide = trained(tmp_path / "wide", options, None)
    assert all(p.dtype == torch.float32 for model in wide for p in model.parameters())
    if options["compression"] == "auto":
        return
    torch.set_default_dtype(torch.float32)
    for ours, theirs in zip(wide, trained(tmp_path / "plain", options, None), strict=True):
        require_equal(ours, theirs)


def test_local_steps_and_samplers_under_a_default_device() -> None:
    def body(store: gw.kv.KVStore) -> None:
        with torch.device("meta"):
            model = nn.Linear(4, 2, device="cpu")
            for parameter in model.parameters():
                nn.init.constant_(parameter, 0.5)
            optimizer = gw.torch.LocalStepOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model.named_parameters(),
                "int4",
                store,
                sync_every=2,
                fragments=1,
                merge_after=1,
            )
            for step in range(5):
                optimizer.zero_grad()
                with torch.device("cpu"):
                    model(batch(store.rank, step, 3, 4)).square().sum().backward()
                optimizer.step()
            optimizer.synchronize()
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.close()
            sampler = gw.torch.ShardSampler(range(11), store, seed=3)
            indices = store.engine.all_gather("indices", bytes(sampler))
            assert sorted(b"".join(indices)) == list(range(11))

    run_two(body)
