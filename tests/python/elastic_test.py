"""gradwire.elastic without a death: shares, commits, what is refused. Deaths: integration/elastic_test.py."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from gradwire.elastic import Sampler, State, TorchState
from gradwire.launch.job import make_job
from gradwire.settings import definitions as settings
from gradwire.stores import connect


@pytest.fixture
def store() -> Iterator[Any]:
    opened = gw.kv.create("local")
    yield opened
    opened.close()


def shares(examples: int, workers: int, *, taken: int = 0, epoch: int = 3) -> list[list[int]]:
    found = []
    for rank in range(workers):
        sampler = Sampler(examples, seed=5)
        sampler.load_state_dict({"epoch": epoch, "taken": taken})
        sampler.share_among(rank, workers)
        found.append(list(sampler))
        assert len(sampler) == len(found[-1])
    return found


@pytest.mark.parametrize(("examples", "workers"), [(12, 3), (13, 3), (2, 5), (1, 4)])
def test_shares_of_an_epoch_are_equal_and_miss_nothing(examples: int, workers: int) -> None:
    found = shares(examples, workers)
    assert {len(share) for share in found} == {-(-examples // workers)}
    assert set().union(*found) == set(range(examples))
    assert sum(map(len, found)) - examples < workers  # no more is repeated than has to be


def test_what_is_left_of_an_epoch_is_shared_out_anew() -> None:
    """Four workers take 5 examples each; then there are three."""
    before = [share[:5] for share in shares(60, 4)]
    after = shares(60, 3, taken=20)
    seen = [index for share in (*before, *after) for index in share]
    assert set(seen) == set(range(60))
    assert len(seen) - 60 < 3


def test_record_counts_what_all_workers_take_and_epochs_differ() -> None:
    sampler = Sampler(100, seed=1)
    sampler.share_among(1, 4)
    first = list(sampler)
    sampler.record(5)
    assert sampler.state_dict() == {"epoch": 0, "taken": 20}
    assert list(sampler) == first[5:]
    sampler.set_epoch(1)
    assert sampler.state_dict() == {"epoch": 1, "taken": 0}
    assert list(sampler) != first
    with pytest.raises(ValueError, match="examples=0, expected 1 or more"):
        Sampler(0)


def test_restore_goes_back_to_the_last_commit(store: Any) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), store=store
    )
    state = TorchState(model, optimizer, store, sampler=Sampler(8), step=0, notes=["a"])

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        state.step += 1

    step()
    state.commit()
    committed = [p.detach().clone() for p in model.parameters()]
    momentum = optimizer.state_dict()["state"][0]["momentum_buffer"].clone()
    step()
    state.notes.append("b")
    state.sampler.record(2)
    state.restore()
    assert (state.step, state.notes, state.sampler.taken) == (1, ["a"], 0)
    assert all(torch.equal(p, kept) for p, kept in zip(model.parameters(), committed, strict=True))
    assert torch.equal(optimizer.state_dict()["state"][0]["momentum_buffer"], momentum)
    step()
    state.restore()  # a commit can be gone back to more than once
    assert all(torch.equal(p, kept) for p, kept in zip(model.parameters(), committed, strict=True))


def test_run_calls_the_function_once_and_lets_its_errors_through(store: Any) -> None:
    state = State(store, step=4)

    @gw.elastic.run
    def train(state: State, by: int) -> int:
        state.step += by
        state.commit()
        state.check()
        return int(state.step)

    assert train(state, by=3) == 7

    @gw.elastic.run
    def fail(state: State) -> None:
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        fail(state)


def test_what_no_other_rank_could_take_is_refused(store: Any) -> None:
    for value, words in (
        ({1, 2}, "rows is or holds a set, expected numbers, text"),
        ([{"a": (1, 2)}], "rows is or holds a tuple"),
        ({1: 0.5}, r"rows has the key 1, expected text: use str\(1\)"),
    ):
        with pytest.raises(TypeError, match=words):
            State(store, rows=value)
    state = State(store, rows=[1, 0.5, None, "a", {"b": [float("nan")]}])
    state.rows = [object()]
    with pytest.raises(TypeError, match="rows is or holds a object"):
        state.commit()
    model = torch.nn.Linear(3, 2)
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        "2bit",
        store,
        warm_up=[("none", 3)],
    )
    with pytest.raises(ValueError, match="warm_up changes codecs step by step"):
        TorchState(model, optimizer, store)


def test_local_steps_are_refused_before_a_worker_dies(store: Any) -> None:
    """The first death had ended the job: no rounds can be put back where there are other workers."""
    model = torch.nn.Linear(3, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = gw.torch.LocalStepOptimizer(inner, model.named_parameters(), "none", store, sync_every=2)
    with pytest.raises(
        ValueError, match=r"not take optimizer, a LocalStepOptimizer: .*use DistributedOptimizer"
    ):
        TorchState(model, optimizer, store)
    with pytest.raises(ValueError, match="does not take inner, a LocalStepOptimizer"):
        TorchState(model, store=store, inner=optimizer)


@pytest.mark.parametrize(("came_back_in", "since"), [(2, 1), (3, 3)])
def test_who_misses_a_generation_of_its_job_comes_as_a_new_one(
    came_back_in: int, since: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = gw.kv.create("local")
    assert (store.generation, store.since) == (1, 1)
    later = connect.open_engine("local", store._settings)._replace(since=came_back_in)
    monkeypatch.setattr(connect, "open_engine", lambda kind, values: later)
    again = gw.kv.rejoin(store)
    assert again.since == since
    again.close()


def member_name() -> str:
    return str(connect._node_options(settings.read({"GRADWIRE_ON_FAILURE": "continue"}))["member"])


def test_each_forked_process_has_a_name_of_its_own() -> None:
    own = member_name()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        forked = pool.apply_async(member_name).get(60)
    assert forked != own == member_name()


def test_without_a_store_there_is_nothing_to_go_on_in() -> None:
    with pytest.raises(ValueError, match="no store is open"):
        State(step=0)


@pytest.mark.parametrize(
    ("variables", "arguments", "words"),
    [
        ({}, {"restarts": 2}, "--restarts 2 needs --on-failure continue"),
        ({}, {"joins": "tcp://10.0.0.1:4"}, "needs --on-failure continue"),
        (
            {"GRADWIRE_ON_FAILURE": "continue", "GRADWIRE_MIN_WORKERS": "5"},
            {},
            "--min-workers 5 is more than",
        ),
        ({"GRADWIRE_ON_FAILURE": "continue"}, {"joins": "10.0.0.1"}, "expected tcp://host:port"),
        ({"GRADWIRE_ON_FAILURE": "never"}, {}, "expected one of abort, continue"),
    ],
)
def test_the_launcher_refuses_what_cannot_be(
    variables: dict[str, str], arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        make_job(["true"], 4, 0, env=variables, **arguments)


def test_scheduler_and_servers_are_told_that_the_job_goes_on() -> None:
    variables = {"GRADWIRE_ON_FAILURE": "continue", "GRADWIRE_MIN_WORKERS": "2"}
    job = make_job(["true"], 4, 1, env=variables | {"GRADWIRE_REGROUP_TIMEOUT": "7s"})
    scheduler, server = " ".join(job.scheduler_command(3)), " ".join(job.server_command(0, "tcp://h:1"))
    assert "--on-failure continue --min-workers 2 --regroup-timeout 7 --regroup-patience 1800" in scheduler
    assert "--on-failure continue" in server
    assert "--min-workers" not in server


def test_on_failure_of_a_store_is_checked() -> None:
    wrong: Any = "go on"
    with pytest.raises(ValueError, match="on_failure='go on', expected 'abort' or 'continue'"):
        gw.kv.create("local", on_failure=wrong)
