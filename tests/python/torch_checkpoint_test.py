"""gradwire.torch's checkpoints of what not every job has: local steps, rows of tables, momentum of each worker's own.

Ranks are threads. Jobs that are killed and gone on from are in integration/checkpoint_test.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from gradwire.kv import KVStore
from python.inproc_ranks import run_ranks
from torch import nn

pytestmark = pytest.mark.usefixtures("no_job")

Make = Callable[[nn.Module, KVStore], Any]

WORDS, WIDTH = 40, 6
LATE = 5  # the first step that uses the table of rare words


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.second = nn.Linear(8, 3)

    def loss(self, rank: int, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x, y = torch.randn(5, WIDTH, generator=generator), torch.randn(5, 3, generator=generator)
        return (self.second(torch.tanh(self.first(x))) - y).square().mean()


class WordNet(nn.Module):
    """Its table of words has sparse gradients from the first step on, that of rare ones from a later."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.rare = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.last = nn.Linear(WIDTH, 2)

    def loss(self, rank: int, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        hidden = self.words(torch.randint(WORDS, (7,), generator=generator)).mean(0)
        if step >= LATE:
            hidden = hidden + self.rare(torch.randint(WORDS, (4,), generator=generator)).mean(0)
        loss: torch.Tensor = self.last(hidden).square().sum()
        return loss


with torch.random.fork_rng():
    torch.manual_seed(0)
    NET, WORD_NET = Net(), WordNet()  # made once: ranks are threads, and would draw from one generator


def take_steps(model: Any, optimizer: Any, rank: int, steps: Iterable[int], *, scale: float = 1.0) -> None:
    for step in steps:
        optimizer.zero_grad()
        (scale * model.loss(rank, step)).backward()
        optimizer.step()


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def require_same_end(
    fresh: nn.Module, make: Make, folder: Path, saved: int, steps: int, workers: int = 2
) -> None:
    """A job that goes on from where another was saved has the weights of that, which never stopped, on every rank."""
    ends: dict[int, torch.Tensor] = {}

    def never_stopped(store: KVStore) -> None:
        model = copy.deepcopy(fresh)
        optimizer = make(model, store)
        take_steps(model, optimizer, store.rank, range(1, saved + 1))
        gw.torch.save_checkpoint(folder, model, optimizer, {"step": saved})
        take_steps(model, optimizer, store.rank, range(saved + 1, steps + 1))
        ends[store.rank] = weights(model)

    def restored(store: KVStore) -> None:
        model = copy.deepcopy(fresh)
        optimizer = make(model, store)
        begin = gw.torch.load_checkpoint(folder, model, optimizer)["step"] + 1
        take_steps(model, optimizer, store.rank, range(begin, steps + 1))
        assert torch.equal(weights(model), ends[store.rank])

    run_ranks(workers, never_stopped)
    run_ranks(workers, restored)


def save_after(fresh: nn.Module, make: Make, folder: Path, steps: int, workers: int = 2) -> None:
    def body(store: KVStore) -> None:
        model = copy.deepcopy(fresh)
        optimizer = make(model, store)
        take_steps(model, optimizer, store.rank, range(1, steps + 1))
        gw.torch.save_checkpoint(folder, model, optimizer)

    run_ranks(workers, body)


def require_refused(fresh: nn.Module, make: Make, folder: Path, text: str) -> None:
    """By a job that would go on from a checkpoint, before any of it has changed; on all ranks."""
    refused: list[int] = []

    def body(store: KVStore) -> None:
        model = copy.deepcopy(fresh)
        optimizer = make(model, store)
        with pytest.raises(ValueError, match=text):
            gw.torch.load_checkpoint(folder, model, optimizer)
        assert torch.equal(weights(model), weights(fresh))
        refused.append(store.rank)

    run_ranks(2, body)
    assert sorted(refused) == [0, 1]


def test_a_file_that_one_rank_cannot_read_stops_all_alike(tmp_path: Path) -> None:
    """Who could read their own had waited for the others, who had gone on, until GRADWIRE_SLOW_ABORT."""
    save_after(NET, plain, tmp_path, 1)
    (file,) = tmp_path.glob("*.worker-1.state")
    damaged = bytearray(file.read_bytes())
    damaged[-200] ^= 0xFF
    file.write_bytes(damaged)
    texts: dict[int, str] = {}

    def body(store: KVStore) -> None:
        model = copy.deepcopy(NET)
        optimizer = plain(model, store)
        with pytest.raises(gw.DecodeError, match=r"worker 1: .*worker-1\.state") as caught:
            gw.torch.load_checkpoint(tmp_path, model, optimizer)
        texts[store.rank] = str(caught.value)
        assert torch.equal(weights(model), weights(NET))
        take_steps(model, optimizer, store.rank, range(1, 2))  # as the documentation allows

    run_ranks(2, body)
    assert texts[0] == texts[1]


# ---- local steps ---------------------------------------------------------------------------------------------


def local(model: nn.Module, store: KVStore, compression: str = "int4") -> Any:
    return gw.torch.LocalStepOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.02),
        model.named_parameters(),
        compression,
        store,
        codecs={"*": compression},
        sync_every=4,
        fragments=2,
        merge_after=2,
    )


@pytest.mark.parametrize("codec", ["int4", "2bit:threshold=auto,reply=2bit", "topk"])
@pytest.mark.parametrize("saved", [5, 7, 8], ids=["under way", "between", "just sent"])
def test_local_steps_go_on_with_the_bits_of_a_run_that_never_stopped(
    codec: str, saved: int, tmp_path: Path
) -> None:
    """Also where servers keep a residual of their own, as they do for int4, and where scales are agreed."""
    require_same_end(NET, lambda model, store: local(model, store, codec), tmp_path, saved, 17)


@pytest.mark.parametrize("workers", [3, 6])
def test_local_steps_go_on_with_other_workers_and_lose_no_residual(workers: int, tmp_path: Path) -> None:
    owed: dict[str, list[dict[str, torch.Tensor]]] = {"before": [], "after": []}

    def note(when: str, optimizer: Any) -> None:
        residuals = optimizer.state_dict()["gradwire"].get("residuals", {})
        owed[when].append({name: residual.double() for name, residual in residuals.items()})

    def of_all(when: str, name: str) -> torch.Tensor:
        return torch.stack([each[name] for each in owed[when] if name in each])

    def save(store: KVStore) -> None:
        model = copy.deepcopy(NET)
        optimizer = local(model, store)
        take_steps(model, optimizer, store.rank, range(1, 8))
        note("before", optimizer)
        gw.torch.save_checkpoint(tmp_path, model, optimizer)

    def go_on(store: KVStore) -> None:
        model = copy.deepcopy(NET)
        optimizer = local(model, store)
        gw.torch.load_checkpoint(tmp_path, model, optimizer)
        note("after", optimizer)
        take_steps(model, optimizer, store.rank, range(8, 14))
        optimizer.synchronize()
        blob = weights(model).numpy().tobytes()
        assert len(set(store.engine.all_gather("weights", blob))) == 1

    run_ranks(4, save)
    run_ranks(workers, go_on)
    for name, _ in NET.named_parameters():
        before, after = of_all("before", name), of_all("after", name)
        assert len(before) == 4
        assert before.sum(0).abs().max() > 0
        rounding = 3 * 2.0**-24 * before.abs().sum(0)
        assert bool(((after.sum(0) - before.sum(0)).abs() <= rounding).all()), name


def plain(model: nn.Module, store: KVStore, **options: Any) -> Any:
    given = {"compression": "int4", "codecs": {"*": "int4"}, **options}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    return gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), store=store, **given)


def test_gradients_do_not_become_outer_gradients(tmp_path: Path) -> None:
    save_after(NET, plain, tmp_path / "gradients", 3)
    save_after(NET, local, tmp_path / "outer", 3)
    text = "the checkpoint is of a DistributedOptimizer and optimizer is a LocalStepOptimizer"
    require_refused(NET, local, tmp_path / "gradients", text)
    text = "the checkpoint is of a LocalStepOptimizer and optimizer is a DistributedOptimizer"
    require_refused(NET, plain, tmp_path / "outer", text)


# ---- rows of tables ------------------------------------------------------------------------------------------


def sparse(model: nn.Module, store: KVStore, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), "fp16", store, **options)


@pytest.mark.parametrize("saved", [3, 5, 6])
def test_tables_that_the_first_steps_have_found_are_there_again(saved: int, tmp_path: Path) -> None:
    """The checkpoint had tables that the job, before its first step, had not. Of the rare words no rank has a gradient
    yet, or they are a table since step 5.
    """
    require_same_end(WORD_NET, sparse, tmp_path, saved, 9)


def test_names_of_tables_in_older_checkpoints_are_read() -> None:
    def body(store: KVStore) -> None:
        model = copy.deepcopy(WORD_NET)
        optimizer = sparse(model, store)
        optimizer._reducer.take_over_rows(["words.weight", "rare.weight"])
        take_steps(model, optimizer, store.rank, [1])
        assert model.words.weight.grad.is_sparse
        assert model.rare.weight.grad.is_sparse
        assert len(model.rare.weight.grad._indices()[0]) == 0
        optimizer.close()

    run_ranks(2, body)


def test_tables_go_on_with_more_workers(tmp_path: Path) -> None:
    save_after(WORD_NET, sparse, tmp_path, 3)

    def body(store: KVStore) -> None:
        model = copy.deepcopy(WORD_NET)
        optimizer = sparse(model, store)
        gw.torch.load_checkpoint(tmp_path, model, optimizer)
        take_steps(model, optimizer, store.rank, range(4, 8))
        blob = weights(model).numpy().tobytes()
        assert len(set(store.engine.all_gather("weights", blob))) == 1

    run_ranks(3, body)


def test_gradients_that_travel_otherwise_are_refused_by_name(tmp_path: Path) -> None:
    save_after(WORD_NET, sparse, tmp_path, 3)
    text = r"gradients of 'words\.weight' travel as rows either here or .* give sparse_parameters"
    require_refused(WORD_NET, lambda m, s: sparse(m, s, sparse_as_dense=True), tmp_path, text)
    text = r"gradients of 'rare\.weight' travel as rows either here or"
    require_refused(WORD_NET, lambda m, s: sparse(m, s, sparse_parameters=["rare.weight"]), tmp_path, text)


# ---- momentum of each worker's own ---------------------------------------------------------------------------


def correcting(model: nn.Module, store: KVStore, compression: str = "none") -> Any:
    return plain(model, store, compression=compression, codecs={"*": compression}, momentum_correction=True)


def velocities(optimizer: Any) -> torch.Tensor:
    state, group = optimizer.state, optimizer.param_groups[0]
    return torch.cat([state[p]["momentum_buffer"].flatten() for p in group["params"]]).double()


@pytest.mark.parametrize("workers", [3, 4, 6])
def test_other_workers_go_on_with_the_mean_of_momentum(workers: int, tmp_path: Path) -> None:
    """Where no gradient comes any more, the next steps are those of the job that never stopped."""
    ends: list[torch.Tensor] = []
    rest = range(4, 9)

    def never_stopped(store: KVStore) -> None:
        model = copy.deepcopy(NET)
        optimizer = correcting(model, store)
        take_steps(model, optimizer, store.rank, range(1, 4))
        gw.torch.save_checkpoint(tmp_path, model, optimizer)
        before = weights(model)
        take_steps(model, optimizer, store.rank, rest, scale=0.0)
        assert (weights(model) - before).abs().max() > 1e-2
        ends.append(weights(model))

    def restored(store: KVStore) -> None:
        model = copy.deepcopy(NET)
        optimizer = correcting(model, store)
        gw.torch.load_checkpoint(tmp_path, model, optimizer)
        take_steps(model, optimizer, store.rank, rest, scale=0.0)
        torch.testing.assert_close(weights(model), ends[0], rtol=1e-6, atol=1e-7)

    run_ranks(4, never_stopped)
    run_ranks(workers, restored)


@pytest.mark.parametrize("workers", [2, 3, 6])
def test_every_worker_is_one_workers_to_inherit(workers: int, tmp_path: Path) -> None:
    was: dict[int, torch.Tensor] = {}
    now: dict[int, torch.Tensor] = {}

    def save(store: KVStore) -> None:
        model = copy.deepcopy(NET)
        optimizer = correcting(model, store, "2bit:threshold=auto")
        take_steps(model, optimizer, store.rank, range(1, 4))
        gw.torch.save_checkpoint(tmp_path, model, optimizer)
        was[store.rank] = velocities(optimizer)

    def restored(store: KVStore) -> None:
        model = copy.deepcopy(NET)
        optimizer = correcting(model, store, "2bit:threshold=auto")
        gw.torch.load_checkpoint(tmp_path, model, optimizer)
        now[store.rank] = velocities(optimizer)
        take_steps(model, optimizer, store.rank, range(4, 6))

    run_ranks(4, save)
    run_ranks(workers, restored)
    for rank in range(workers):
        expected = sum((was[each] for each in range(rank, 4, workers)), torch.zeros_like(was[0]))
        torch.testing.assert_close(now[rank], workers / 4 * expected, rtol=1e-6, atol=1e-7)


def test_momentum_of_each_worker_is_not_taken_for_that_of_all(tmp_path: Path) -> None:
    save_after(NET, correcting, tmp_path, 3)
    require_refused(NET, plain, tmp_path, "give momentum_correction=True")
