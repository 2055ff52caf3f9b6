"""What the ranks of torch_sparse_test.py do: sparse gradients beside the sums that each rank makes of all ranks' data.

python torch_sparse_cases.py STORE    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

import copy
import sys
import warnings
from typing import Any

import gradwire as gw
import gradwire.torch
import numpy as np
import pytest
import torch
from torch import nn
from torch_programs import CASES, case

WORDS, WIDTH = 500, 8


class Model(nn.Module):
    """A table of words and a layer; a second table is used by some ranks, and in some steps by none."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.rare = nn.EmbeddingBag(40, WIDTH, mode="sum", sparse=sparse)
        self.last = nn.Linear(WIDTH, 2)

    def loss(self, rank: int, step: int) -> torch.Tensor:
        drawn = np.random.default_rng(100 * step + rank)
        hidden = self.words(torch.from_numpy(drawn.integers(0, WORDS, 12))).mean(0)
        if (rank + step) % 3 == 0:
            hidden = hidden + self.rare(torch.from_numpy(drawn.integers(0, 40, (1, 4)))).sum(0)
        loss: torch.Tensor = self.last(hidden).square().sum()
        return loss


def means(model: Model, ranks: int, step: int) -> dict[str, torch.Tensor]:
    """The means of all ranks' gradients, dense, summed in rank order."""
    sums: dict[str, torch.Tensor] = {}
    for rank in range(ranks):
        alone = copy.deepcopy(model)
        alone.zero_grad()
        alone.loss(rank, step).backward()
        for name, parameter in alone.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
            sums[name] = sums[name] + gradient if name in sums else gradient
    return {name: total * float(np.float32(1 / ranks)) for name, total in sums.items()}


def made(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model()


def wrapped(model: Model, store: gw.kv.KVStore, optimizer: Any = None, **options: Any) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"compression": "none", **options}  # a store keeps what the case before has set
    own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter in own]
    return gw.torch.DistributedOptimizer(optimizer, named, store=store, **given)


def train(model: Model, optimizer: Any, store: gw.kv.KVStore, steps: int, tolerance: float = 0) -> None:
    """Steps whose gradients are the means: to the bit where nothing is compressed."""
    for step in range(steps):
        expected = means(model, store.num_workers, step)
        optimizer.zero_grad()
        model.loss(store.rank, step).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            torch.testing.assert_close(
                parameter.grad.to_dense(),
                expected[name],
                rtol=tolerance,
                atol=tolerance,
                msg=lambda t, n=name: f"{n}: {t}",
            )
        optimizer.step()
    blob = b"".join(p.detach().contiguous().numpy().tobytes() for p in model.parameters())
    assert len(set(store.engine.all_gather("weights", blob))) == 1


@case
def means_are_those_of_dense_sums(store: gw.kv.KVStore) -> None:
    model = made()
    optimizer = wrapped(model, store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, store, 6)
    assert model.words.weight.grad.is_sparse
    assert model.words.weight.grad.is_coalesced()
    assert len(model.words.weight.grad._indices()[0]) <= 12 * store.num_workers
    assert not model.last.weight.grad.is_sparse
    optimizer.close()


@case
def bytes_grow_with_the_rows(store: gw.kv.KVStore) -> None:
    model = made()
    optimizer = wrapped(model, store, sparse_parameters=["words.weight", "rare.weight"])
    before = store.engine.pushed()[1]
    train(model, optimizer, store, 4)
    sent = (store.engine.pushed()[1] - before) / 4
    assert sent < 4 * (12 + 4) * (WIDTH + 1) + 4 * (2 * WIDTH + 2) + 2 * 16 * store.engine.num_servers
    optimizer.close()


@case
def rows_are_compressed(store: gw.kv.KVStore) -> None:
    model = made()
    optimizer = wrapped(model, store, compression="fp16")
    train(model, optimizer, store, 6, tolerance=2e-2)
    residual = optimizer.state_dict()["gradwire"]["residuals"]["words.weight"]
    assert residual["rows"].shape == (len(residual["ids"]), WIDTH)
    assert 0 < len(residual["ids"]) <= 6 * 12  # of the rows that this rank has sent
    assert residual["rows"].abs().max() > 0
    optimizer.close()


@case
def tables_of_two_bit_jobs_may_have_a_codec_of_their_own(store: gw.kv.KVStore) -> None:
    model = made()
    optimizer = wrapped(
        model, store, compression="2bit", codecs={"words.*": "fp16", "rare.*": "none", "last.*": "none"}
    )
    train(model, optimizer, store, 4, tolerance=2e-2)
    optimizer.close()


@case
def optimizers_that_take_sparse_gradients_do(store: gw.kv.KVStore) -> None:
    model = made()
    tables = [*model.words.parameters(), *model.rare.parameters()]
    optimizer = wrapped(model, store, torch.optim.SparseAdam(tables, lr=0.01))
    for step in range(3):
        optimizer.zero_grad()
        model.loss(store.rank, step).backward()
        optimizer.step()
    blob = b"".join(p.detach().numpy().tobytes() for p in tables)
    assert len(set(store.engine.all_gather("tables", blob))) == 1
    assert not torch.equal(model.words.weight, made().words.weight)
    optimizer.close()


@case
def sparse_as_dense_gives_dense_means_without_a_warning(store: gw.kv.KVStore) -> None:
    model = made()
    optimizer = wrapped(model, store, torch.optim.Adam(model.parameters()), sparse_as_dense=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, store, 3)
    assert not model.words.weight.grad.is_sparse
    optimizer.close()


@case
def clipping_needs_dense_gradients_and_says_so(store: gw.kv.KVStore) -> None:
    model = made()
    optimizer = wrapped(model, store, max_grad_norm=1000.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, optimizer, store, 3)
    assert len([w for w in caught if "sparse_as_dense=True says that this is meant" in str(w.message)]) == 1
    optimizer.close()


@case
def a_nan_in_a_row_vetoes_the_step_on_all_ranks(store: gw.kv.KVStore) -> None:
    model = made()
    optimizer = wrapped(model, store, compression="fp16", on_nonfinite="skip_step")
    train(model, optimizer, store, 2, tolerance=2e-2)
    before = copy.deepcopy(model.state_dict())
    optimizer.zero_grad()
    loss = model.words(torch.tensor([3])).sum()
    (loss * float("nan") if store.rank == 0 else loss).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    optimizer.close()


@case
def residuals_of_rows_are_saved_and_restored(store: gw.kv.KVStore) -> None:
    def run(*, stops: bool) -> bytes:
        model = made()
        options: dict[str, Any] = {
            "compression": {"type": "fp16", "reply": "fp32"},  # so that servers keep no residual
            "sparse_parameters": ["words.weight", "rare.weight"],
        }
        optimizer = wrapped(model, store, **options)
        for step in range(6):
            if stops and step == 3:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer.close()
                optimizer = wrapped(model, store, **options)
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            model.loss(store.rank, step).backward()
            optimizer.step()
        unsent = optimizer.state_dict()["gradwire"]["residuals"]["words.weight"]["rows"]
        assert unsent.abs().max() > 0
        optimizer.close()
        return b"".join(each.detach().numpy().tobytes() for each in [unsent, *model.parameters()])

    assert run(stops=True) == run(stops=False)


class LateModel(Model):
    """Its table of rare words comes with step 3, on one rank; with words=False no other table is there."""

    def __init__(self, *, words: bool = True) -> None:
        super().__init__()
        self._words = words

    def loss(self, rank: int, step: int) -> torch.Tensor:
        drawn = np.random.default_rng(100 * step + rank)
        hidden = self.last.weight.sum(0)
        if self._words:
            hidden = hidden + self.words(torch.from_numpy(drawn.integers(0, WORDS, 12))).mean(0)
        if step >= 3 and (rank == 1 or step > 3):
            hidden = hidden + self.rare(torch.from_numpy(drawn.integers(0, 40, (1, 4)))).sum(0)
        loss: torch.Tensor = self.last(hidden).square().sum()
        return loss


def sparse_tables(model: Model) -> list[torch.Tensor]:
    return [model.words.weight, model.rare.weight]


@case
def a_table_that_comes_later_travels_as_rows(store: gw.kv.KVStore) -> None:
    for codec, tolerance in (("none", 0.0), ("fp16", 2e-2)):
        torch.manual_seed(0)
        model = LateModel()
        optimizer = wrapped(model, store, compression=codec)
        for step in range(6):
            expected = means(model, store.num_workers, step)
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                model.loss(store.rank, step).backward()
            gradient = model.rare.weight.grad
            assert (gradient is None) == (step < 3)
            assert gradient is None or gradient.is_sparse
            for name, parameter in model.named_parameters():
                mean = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
                torch.testing.assert_close(mean, expected[name], rtol=tolerance, atol=tolerance)
            optimizer.step()
        before = store.engine.pushed()[1]
        optimizer.zero_grad()
        model.loss(store.rank, 6).backward()
        # Rows, the layer, and headers: less than the table of rare words alone, which has 40 rows.
        assert store.engine.pushed()[1] - before < 4 * (12 + 4) * (WIDTH + 1) + 4 * (2 * WIDTH + 2) + 200
        optimizer.close()


@case
def optimizers_that_take_no_dense_gradients_wait_for_a_table(store: gw.kv.KVStore) -> None:
    torch.manual_seed(0)
    model = LateModel()
    optimizer = wrapped(model, store, torch.optim.SparseAdam(sparse_tables(model), lr=0.01))
    rare = model.rare.weight.detach().clone()
    for step in range(6):
        assert torch.equal(model.rare.weight, rare) == (step <= 3)
        optimizer.zero_grad()
        model.loss(store.rank, step).backward()
        optimizer.step()
    blob = b"".join(p.detach().numpy().tobytes() for p in sparse_tables(model))
    assert len(set(store.engine.all_gather("tables", blob))) == 1
    optimizer.close()


@case
def a_late_table_where_no_other_is_warns(store: gw.kv.KVStore) -> None:
    """Ranks that have joined could not agree on it."""
    torch.manual_seed(0)
    model = LateModel(words=False)
    optimizer = wrapped(model, store)
    told = []
    for step in range(6):
        expected = means(model, store.num_workers, step)
        optimizer.zero_grad()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.loss(store.rank, step).backward()
        told += [str(each.message) for each in caught]
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=0)
        optimizer.step()
    assert len(told) == 1
    assert "give sparse_parameters=['rare.weight']" in told[0]
    optimizer.close()


@case
def unknown_names_are_refused(store: gw.kv.KVStore) -> None:
    with pytest.raises(ValueError, match=r"sparse_parameters has 'word\.weight'"):
        wrapped(made(), store, sparse_parameters=["word.weight"])


def main(name: str) -> None:
    torch.set_num_threads(1)
    store = gw.kv.create(name)
    for case_name, run in CASES.items():
        run(store)
        print(case_name, "passed", flush=True)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1])
