"""Warm-up: which codec a step has, and what a step is. On one rank whose store compresses."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import gradwire as gw
import gradwire.torch
import numpy as np
import pytest
import torch
from gradwire.torch.codecs.warm_up import sparsity_ramp
from python.compressed_net import changed_by_the_codec, loss_of, make, wrap


@pytest.fixture
def store() -> Iterator[gw.kv.KVStore]:
    store = gw.kv.create("local")
    yield store
    store.close()


def test_a_warm_up_goes_from_codec_to_codec(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store, "2bit:threshold=0.01", warm_up=[("none", 2), ("fp16", 1)])
    seen = []
    for seed in range(5):
        seen.append((store.compression.spec.partition(":")[0], len(changed_by_the_codec(model, seed))))
        optimizer.step()
    assert [name for name, _ in seen] == ["none", "none", "fp16", "2bit", "2bit"]
    assert [changed for _, changed in seen[:2]] == [0, 0]
    assert all(changed == 3 for _, changed in seen[2:])
    optimizer.close()


@pytest.mark.parametrize("overlap_step", [False, True])
def test_a_warm_up_counts_steps(overlap_step: bool, store: gw.kv.KVStore) -> None:
    """And not calls of backward(), of which a step may have several."""
    model = make()
    optimizer = wrap(model, store, "2bit:threshold=0.01", warm_up=[("none", 2)], overlap_step=overlap_step)
    seen = []
    for seed in range(4):
        seen.append(store.compression.spec.partition(":")[0])
        optimizer.zero_grad()
        loss_of(model, seed).backward()
        if seed < 3:
            loss_of(model, seed + 10).backward()
        optimizer.step()
    assert seen == ["none", "none", "2bit", "2bit"]
    assert optimizer.state_dict()["gradwire"]["step"] == 4
    optimizer.close()


def test_a_warm_up_counts_neither_closures_nor_steps_that_are_vetoed(store: gw.kv.KVStore) -> None:
    model = make()
    inner = torch.optim.LBFGS(model.parameters(), max_iter=3)
    optimizer = gw.torch.DistributedOptimizer(
        inner, model.named_parameters(), "fp16", store, warm_up=[("none", 2)]
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        assert store.compression.spec.partition(":")[0] == "none"
        return loss

    optimizer.step(closure)
    optimizer.step(closure)
    assert store.compression.spec.partition(":")[0] == "fp16"
    optimizer.close()
    optimizer = wrap(model, store, "fp16", warm_up=[("none", 1)], on_nonfinite="skip_step")
    for factor in (float("nan"), 1.0):
        assert store.compression.spec.partition(":")[0] == "none"
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            (loss_of(model, 0) * factor).backward()
        optimizer.step()
    assert store.compression.spec.partition(":")[0] == "fp16"
    optimizer.close()


def test_a_sparsity_ramp_sends_a_quarter_of_the_share_before_in_each_stage(store: gw.kv.KVStore) -> None:
    compression = "topk:ratio=0.001,values=fp16,reply=fp32"
    stages = sparsity_ramp(2, compression)
    assert [steps for _, steps in stages] == [2] * 4
    shares = [float(spec.partition("ratio=")[2].partition(",")[0]) for spec, _ in stages]
    assert shares == [
        0.25,
        0.0625,
        0.015625,
        0.00390625,
    ]  # the paper's sparsity: 75, 93.75, 98.44, 99.6 %, then 99.9
    assert all("values=fp16" in spec and spec.endswith("reply=fp32") for spec, _ in stages)
    model = make()
    optimizer = wrap(model, store, compression, warm_up=stages)
    sent = []
    for seed in range(10):
        changed_by_the_codec(model, seed)
        optimizer.step()
        gradient = model.first.weight.grad
        sent.append(int(gradient.count_nonzero()) / gradient.numel())
    assert store.compression.spec.startswith("topk:ratio=0.001,")
    expected = np.repeat([*shares, 0.001], 2)
    elements = model.first.weight.numel()
    assert sent == [np.ceil(share * elements) / elements for share in expected]
    optimizer.close()


def test_a_sparsity_ramp_ends_where_its_codec_begins_and_needs_a_share() -> None:
    assert sparsity_ramp(5, "topk:ratio=0.25") == []
    assert [spec.partition(",")[0] for spec, _ in sparsity_ramp(5, "randomk:ratio=0.05,seed=3")] == [
        "randomk:ratio=0.25",
        "randomk:ratio=0.0625",
    ]
    with pytest.raises(ValueError, match="expected topk or randomk"):
        sparsity_ramp(5, "2bit")
    with pytest.raises(ValueError, match="steps=0"):
        sparsity_ramp(0, "topk")
