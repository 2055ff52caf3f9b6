"""Ranks that make calls which can never meet: all fail at once, and each hears who is in what.

Every pair of verbs, one of them on rank 0 and the other on the other ranks. Verbs that return by themselves are
followed by a barrier, as a script's next step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import gradwire as gw
import numpy as np
import pytest
import torch
from gradwire.kv import KVStore
from python.inproc_ranks import errors_of_ranks

RANKS = 3


def ones(*shape: int) -> Any:
    return np.ones(shape or (4,), np.float32)


class Verb(NamedTuple):
    call: Callable[[KVStore, Path], Any]
    words: str  # of an error that names it
    is_round: bool = False  # and no exchange
    ends: bool = False  # by itself


def _push_then_pull(store: KVStore, _: Path) -> None:
    store.push("a", ones())
    store.pull("a", ones())


def _push_rows(store: KVStore, _: Path) -> None:
    store.push("table", gw.RowSparse([1], ones(1, 2)))
    store.row_sparse_pull("table", out=ones(1, 2), row_ids=[1])


VERBS = {
    "barrier": Verb(lambda store, _: store.barrier(), "'barrier'"),
    "init": Verb(lambda store, _: store.init("new", ones()), "'declare'"),
    "init of a table": Verb(
        lambda store, _: store.init("other table", gw.RowSparse([], [], (3, 2))), "'declare rows'"
    ),
    "set_gradient_compression": Verb(
        lambda store, _: store.set_gradient_compression("fp16"), "'compression'"
    ),
    "set_optimizer": Verb(lambda store, _: store.set_optimizer("sgd", learning_rate=0.1), "'optimizer'"),
    "all_reduce": Verb(lambda store, _: store.collectives.all_reduce(ones()), "'all_reduce'"),
    "reduce_scatter": Verb(lambda store, _: store.collectives.reduce_scatter(ones(6)), "'reduce_scatter'"),
    "collectives.broadcast": Verb(lambda store, _: store.collectives.broadcast(ones()), "'broadcast'"),
    "all_gather": Verb(lambda store, _: store.collectives.all_gather(ones()), "'all_gather'"),
    "all_to_all": Verb(lambda store, _: store.collectives.all_to_all([ones()] * RANKS), "'all_to_all'"),
    "save_checkpoint": Verb(lambda store, folder: store.save_checkpoint(folder / "a"), "'checkpoint begins'"),
    "load_checkpoint": Verb(
        lambda store, folder: store.load_checkpoint(folder / "b"), "'checkpoint is opened'"
    ),
    "join": Verb(lambda store, _: store.join(), "'join'"),
    "broadcast_parameters": Verb(
        lambda store, _: gw.torch.broadcast_parameters({"w": torch.ones(3)}, store=store),
        "'broadcast_parameters'",
    ),
    "pushpull": Verb(lambda store, _: store.pushpull("a", ones()), "push_pull, round 0 of key 'a'", True),
    "push and pull": Verb(_push_then_pull, "pull, round 0 of key 'a'", True),
    "pushpull of another key": Verb(
        lambda store, _: store.pushpull("b", ones()), "push_pull, round 0 of key 'b'", True
    ),
    "rows": Verb(_push_rows, "pull, round 0 of table 0", True),
    "pull": Verb(lambda store, _: store.pull("a", ones()), "'barrier'", ends=True),
    "push": Verb(lambda store, _: store.push("b", ones()), "'barrier'", ends=True),
}
# The same round, or exchange; and who joins is not awaited in rounds of keys. Beside tables nobody can join.
MEET = {
    frozenset(pair)
    for pair in [
        ("pushpull", "push and pull"),
        ("pushpull of another key", "push"),
        ("pull", "push"),
        ("barrier", "pull"),
        ("barrier", "push"),
        ("join", "pushpull"),
        ("join", "push and pull"),
        ("join", "pushpull of another key"),
        ("join", "rows"),
    ]
}


def run_pair(first: Verb, others: Verb, folder: Path) -> list[BaseException | None]:
    """What rank 0 gets, which makes one call, and the others, which make another."""

    def body(store: KVStore) -> None:
        store.init(["a", "b"], [ones(), ones()])
        if not {VERBS["join"]} & {first, others}:  # which is refused beside tables
            store.init("table", gw.RowSparse([], [], (3, 2)))
        verb = first if store.rank == 0 else others
        verb.call(store, folder)
        if verb.ends:
            store.barrier()

    errors = errors_of_ranks(RANKS, body)
    return [errors.get(rank) for rank in range(RANKS)]


def wrong(names: tuple[str, str], folder: Path) -> str | None:
    """What is not as it should be of a pair of verbs; None: nothing."""
    first, others = (VERBS[name] for name in names)
    own = folder / " and ".join(names)
    own.mkdir()
    errors = run_pair(first, others, own)
    texts = [str(error) for error in errors]
    as_expected = (
        all(isinstance(error, gw.CallMismatch) for error in errors)
        and all(first.words in text and others.words in text for text in texts)
        and all("the same calls in the same order" in text for text in texts)
    )
    return None if as_expected else f"{names}: {[repr(error) for error in errors]}"


def test_every_pair_of_verbs_fails_at_once_on_all_ranks_with_both_words(tmp_path: Path) -> None:
    pairs = [pair for pair in itertools.combinations(VERBS, 2) if frozenset(pair) not in MEET]
    with ThreadPoolExecutor(24) as pool:  # each waits for most of its time
        found = list(pool.map(lambda pair: wrong(pair, tmp_path), pairs))
    assert [text for text in found if text is not None] == []


def test_it_is_both_an_error_of_the_job_and_of_its_callers() -> None:
    assert issubclass(gw.CallMismatch, gw.TransportError)
    assert issubclass(gw.CallMismatch, ValueError)


@pytest.mark.parametrize("name", ["barrier", "pushpull", "rows", "save_checkpoint"])
def test_who_has_left_is_named_to_those_who_wait(name: str, tmp_path: Path) -> None:
    leaving = Verb(lambda store, _: store.close(), "")
    errors = run_pair(leaving, VERBS[name], tmp_path)
    assert errors[0] is None
    for error in errors[1:]:
        assert isinstance(error, gw.TransportError), error
        assert "worker 0 " in str(error)
        assert "left the job" in str(error)


def test_local_steps_of_unequal_number_are_told_at_synchronize() -> None:
    """23, 26 and 23 steps with a round every 5."""

    def body(store: KVStore) -> None:
        weight = torch.nn.Parameter(torch.zeros(4, 8))
        optimizer = gw.torch.LocalStepOptimizer(
            torch.optim.SGD([weight], lr=1.0), [("w", weight)], store=store, sync_every=5
        )
        for _ in range(26 if store.rank == 1 else 23):
            optimizer.zero_grad()
            (weight * 0.01).sum().backward()
            optimizer.step()
        optimizer.synchronize()

    errors = errors_of_ranks(RANKS, body)
    assert len({str(error) for error in errors.values()}) == 1, errors
    assert sorted(errors) == [0, 1, 2]
    assert all(isinstance(error, ValueError) for error in errors.values())
    assert "the ranks have taken 23, 26, 23 local steps" in str(errors[0])
