"""1bit leaves alone what has no gradient: rows of an embedding that no batch has touched."""

from __future__ import annotations

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.inproc_ranks import run_ranks

ROWS, TOUCHED = 64, 8


@pytest.mark.parametrize("codec", ["1bit", "1bit:reply=fp32"])
@pytest.mark.parametrize("width", [32, 20])
def test_rows_that_no_batch_has_touched_stay(codec: str, width: int) -> None:
    """Of rows that do not fill words of 32 elements, one that shares a word with a touched row may move."""
    tables: dict[int, torch.Tensor] = {}
    torch.manual_seed(0)
    start = torch.randn(ROWS, width)

    def train(store: gw.kv.KVStore) -> None:
        table = torch.nn.Embedding.from_pretrained(start.clone(), freeze=False)
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.Adam(table.parameters(), lr=0.01), table.named_parameters(), codec, store=store
        )
        random = torch.Generator().manual_seed(store.rank)
        for _ in range(30):
            optimizer.zero_grad()
            table(torch.randint(TOUCHED, (16,), generator=random)).square().mean().backward()
            optimizer.step()
        tables[store.rank] = table.weight.detach().clone()

    run_ranks(2, train)
    assert torch.equal(tables[0], tables[1])
    moved = (tables[0] != start).any(dim=1)
    assert moved[:TOUCHED].all()
    words = -(-TOUCHED * width // 32)  # that touched rows have elements in
    assert not moved[-(-words * 32 // width) :].any()
    assert (tables[0][:TOUCHED].abs().mean() < start[:TOUCHED].abs().mean()).item()
