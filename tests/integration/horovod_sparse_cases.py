"""What ranks do in horovod_ranks_test.py with sparse gradients. horovod_training_cases.py runs these."""

from __future__ import annotations

import copy
from typing import Any

import gradwire.horovod.torch as hvd
import pytest
import torch
from torch import nn
from torch_programs import case


@case
def sparse_gradients_are_gathered() -> None:
    tables = [nn.Embedding(10, 2, sparse=sparse) for sparse in (True, False)]
    rows = torch.tensor([hvd.rank(), 5])
    for table in tables:
        nn.init.zeros_(table.weight)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
        table(rows).sum().backward()
        optimizer.step()
        assert bool(table.weight.grad.is_sparse) == table.sparse
        optimizer.close()
    assert torch.equal(tables[0].weight, tables[1].weight)


@case
def a_group_with_sparse_gradients_sums_all_of_it() -> None:
    sums = []
    for options in ({}, {"groups": 1}, {"groups": 1, "sparse_as_dense": True}):
        model = nn.ModuleDict({"table": nn.Embedding(10, 2, sparse=True), "last": nn.Linear(2, 1)})
        for p in model.parameters():
            nn.init.constant_(p, 0.5)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), **options
        )
        (model["last"](model["table"](torch.tensor([hvd.rank(), 5]))) * (1 + hvd.rank())).sum().backward()
        optimizer.step()
        assert model["table"].weight.grad.is_sparse
        sums.append([p.grad.to_dense() for p in model.parameters()])
        optimizer.close()
    for grouped in sums[1:]:
        assert all(torch.equal(a, b) for a, b in zip(grouped, sums[0], strict=True))
    one, _, bias = sums[0]
    assert bias.item() == pytest.approx(2 * (1 + (hvd.size() - 1) / 2))
    assert one[5, 0].item() == pytest.approx(0.5 * (1 + (hvd.size() - 1) / 2))


@case
def tables_that_a_rank_does_not_use_are_summed() -> None:
    """Nor has ever used: then it does not know that their gradients are sparse."""
    names = ("first", "second")
    uses = [  # by step and rank; which ranks go through the two in which order differs
        [names[:1], names[1:], ()],
        [(), names, names[1:]],
        [(), (), ()],
        [names, names[:1], names],
    ]
    torch.manual_seed(0)
    ours = nn.ModuleDict({name: nn.Embedding(6, 2, sparse=True) for name in names})
    ours["last"] = nn.Linear(2, 1)
    plain = copy.deepcopy(ours)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1), ours.named_parameters())
    oracle = torch.optim.SGD(plain.parameters(), lr=0.1)

    def loss_of(model: nn.ModuleDict, rank: int, used: tuple[str, ...]) -> Any:
        rows = torch.tensor([rank, 5])
        return model["last"](sum((model[name](rows) for name in used), torch.ones(2, 2))).sum()

    for step in uses:
        optimizer.zero_grad()
        loss_of(ours, hvd.rank(), step[hvd.rank()]).backward()
        optimizer.step()
        oracle.zero_grad()
        for rank in range(hvd.size()):
            (loss_of(plain, rank, step[rank]) / hvd.size()).backward()
        oracle.step()
        used = {name for its in step[: hvd.size()] for name in its}
        assert all(ours[name].weight.grad.is_sparse for name in used)
        for ours_, plain_ in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours_, plain_)
    optimizer.close()


@case
def a_gradient_that_is_dense_on_one_rank_and_sparse_on_another_is_refused() -> None:
    table = nn.Embedding(6, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), [("mixed", table.weight)]
    )
    (table.weight if hvd.rank() == 0 else table(torch.tensor([1]))).sum().backward()
    with pytest.raises(
        hvd.HorovodInternalError, match=r"dense on rank 0 and sparse on rank 1; .*sparse_as_dense"
    ):
        optimizer.step()
    optimizer.close()
