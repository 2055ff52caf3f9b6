"""PowerSGD over a store of one worker against the paper's algorithm, and against PyTorch's hook."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import gradwire
import numpy as np
import pytest
import torch
from gradwire.power_sgd import PowerSGD
from numpy.testing import assert_allclose, assert_array_equal
from oracle import power_sgd as oracle
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook

SHAPES = [(40, 30), (7,), (16, 3, 3, 3), (2, 2)]  # of which the first and the third are worth compressing
RANK = 2
STEPS = 6


def gradients(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_it_is_the_papers_algorithm(local_store: Any, rank: int) -> None:
    power = PowerSGD(local_store, SHAPES, rank=rank, min_rate=1.0)
    assert 0 in power.compressed
    bases = dict(zip(power.compressed, power.state_dict()["bases"], strict=True))
    q = {index: basis.astype(np.float64) for index, basis in bases.items()}
    errors = {i: [np.zeros((SHAPES[i][0], gradients(0)[i].size // SHAPES[i][0]))] for i in power.compressed}
    for step in range(STEPS):
        own, expected = gradients(step), gradients(step)
        assert power.all_reduce(own)
        for index, array in enumerate(expected):
            if index in power.compressed:
                given = array.reshape(errors[index][0].shape).astype(np.float64)
                result, errors[index], q[index] = oracle.step([given], errors[index], q[index])
                assert_allclose(own[index].reshape(given.shape), result, rtol=1e-3, atol=1e-4)
            else:
                assert_array_equal(own[index], array)
    kept = sum(float(np.square(error[0]).sum()) for error in errors.values())
    assert power.residual_norm() == pytest.approx(np.sqrt(kept), rel=1e-3)


def test_what_it_sends_is_counted(local_store: Any) -> None:
    power = PowerSGD(local_store, SHAPES, rank=RANK, min_rate=2.0)
    assert power.compressed == [0, 2]
    assert power.elements == 1200 + 7 + 432 + 4
    assert power.elements_sent == RANK * (40 + 30) + 7 + RANK * (16 + 27) + 4


def test_a_matrix_of_that_rank_arrives_at_once(local_store: Any) -> None:
    rng = np.random.default_rng(3)
    matrix = (rng.normal(size=(50, 2)) @ rng.normal(size=(2, 60))).astype(np.float32)
    power = PowerSGD(local_store, [matrix.shape], rank=2)
    own = matrix.copy()
    assert power.all_reduce([own])
    assert_allclose(own, matrix, rtol=1e-3, atol=1e-3)
    zeros = [np.zeros_like(matrix)]
    fresh = PowerSGD(local_store, [matrix.shape], rank=2)
    assert fresh.all_reduce(zeros)
    assert not zeros[0].any()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(30, 40, bias=True), nn.Linear(40, 20, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def test_it_gives_what_pytorchs_hook_gives(tmp_path: Path) -> None:
    """In a process of its own: the hook leaves threads in Gloo that may abort theirs once the group is destroyed."""
    child = multiprocessing.get_context("spawn").Process(target=_compare_and_leave, args=(tmp_path,))
    child.start()
    child.join(timeout=300)
    child.kill()
    assert child.exitcode == 0


def _compare_and_leave(folder: Path) -> None:
    """One worker, the same gradients and the same first factors, five steps of error feedback and warm start."""
    local_store = gradwire.kv.create("local")
    dense_steps = 2  # the fewest that the hook allows
    torch.distributed.init_process_group(
        "gloo", init_method=(folder / "rendezvous").as_uri(), rank=0, world_size=1
    )
    torch.manual_seed(1)
    theirs = nn.parallel.DistributedDataParallel(Net())
    state = hook.PowerSGDState(
        None, matrix_approximation_rank=RANK, start_powerSGD_iter=dense_steps, min_compression_rate=1
    )
    theirs.register_comm_hook(state, hook.powerSGD_hook)
    parameters = list(theirs.parameters())
    power = PowerSGD(local_store, [p.shape for p in parameters], rank=RANK, min_rate=1.0)
    for step in range(dense_steps + 5):
        x = torch.randn(16, 30, generator=torch.Generator().manual_seed(step))
        theirs.zero_grad()
        theirs(x).square().sum().backward()
        if step < dense_steps:
            _start_from(power, state, parameters)
            continue
        own = [g.clone() for g in torch.autograd.grad(theirs.module(x).square().sum(), parameters)]
        assert power.all_reduce(own)
        for ours, parameter in zip(own, parameters, strict=True):
            assert parameter.grad is not None
            scale = float(parameter.grad.abs().max())
            assert_allclose(ours.numpy(), parameter.grad.numpy(), rtol=1e-3, atol=1e-4 * scale)
    local_store.close()
    os._exit(0)


def _start_from(power: PowerSGD, state: Any, parameters: list[torch.Tensor]) -> None:
    """Gives the hook our first factors, in its order of gradients: the reverse of ours."""
    bases = dict(zip(power.compressed, power.state_dict()["bases"], strict=True))
    order = [index for index in reversed(range(len(parameters))) if index in bases]
    rows = [parameters[index].shape[0] for index in order]
    state.q_memory_dict[0] = torch.cat([torch.from_numpy(bases[index].reshape(-1)) for index in order])
    state.p_memory_dict[0] = torch.zeros(RANK * sum(rows))
