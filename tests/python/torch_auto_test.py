"""compression="auto" under a model: what ranks, threads of this process, owe each other while codecs change.

controller_ranks_test.py has what the controller decides. Time is what a clock of the tests' own says.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from gradwire.autotune import step_times
from gradwire.controller import Budget, Instruments, Options, Pace, accuracy
from gradwire.plan import calibration
from gradwire.stores.placement import Link
from gradwire.torch import session
from gradwire.torch.codecs import auto_codecs
from python.inproc_ranks import run_ranks
from torch import nn

PACE = Pace(sampled=4, settling=1, block=3, link_every=5, review_every=1000)
SLOW = Link(1e6, 1e-4)  # bytes a second


class TickingClock:
    """A thousandth of a second passes whenever it is looked at, so that all steps of a model are alike."""

    def __init__(self) -> None:
        self._looks = 0

    def __call__(self) -> float:
        self._looks += 1
        return self._looks / 1000


@pytest.fixture
def slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codecs are chosen for a slow link, and gain nothing by the clock."""

    def options(*given: Any, **named: Any) -> Options:
        instruments = Instruments(TickingClock(), lambda _: SLOW, calibration.load)
        return Options(*given, **named, pace=PACE, instruments=instruments)

    monkeypatch.setattr(auto_codecs, "Options", options)


MODEL = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 10), nn.LayerNorm(10))


def make_model() -> nn.Sequential:
    return copy.deepcopy(MODEL)


def wrap(store: gw.kv.KVStore, model: nn.Module, **options: Any) -> Any:
    """Weights stay as they are: so gradients do not depend on what has been received."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), "auto", store, **options)


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return model(torch.randn(8, 300, generator=generator))[:, :5].square().mean()


def sums_of_gradients(store: gw.kv.KVStore, optimizer: Any, model: nn.Module, steps: int) -> tuple[Any, Any]:
    """Trains; returns what all ranks have given of the first two layers' weights, as means, and what has arrived."""
    alone = make_model()
    given, received = ([torch.zeros_like(alone[i].weight) for i in (0, 2)] for _ in range(2))
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, store.rank, step).backward()
        optimizer.synchronize()
        alone.zero_grad()
        loss_of(alone, store.rank, step).backward()
        for place, layer in enumerate((0, 2)):
            given[place] += alone[layer].weight.grad
            received[place] += model[layer].weight.grad
        optimizer.step()
    return [store.collectives.all_reduce(total, op="average") for total in given], received


@pytest.mark.parametrize("overlap_step", [False, True])
def test_nothing_of_a_gradient_is_lost_while_codecs_change(slow_link: None, overlap_step: bool) -> None:
    """From fp16 to nf4, in turns with none and fp16, and back to none: at the end all that was given has arrived."""
    wrong: dict[int, list[float]] = {}

    def body(store: gw.kv.KVStore) -> None:
        model = make_model()
        optimizer = wrap(store, model, budget="60% error", overlap_step=overlap_step)
        given, received = sums_of_gradients(store, optimizer, model, steps=40)
        events = [decision["event"] for decision in store.decisions]
        assert events == ["chosen", "reverted"]
        assert store.decisions[0]["codecs"] == ("nf4", "none", "nf4", "none", "none", "none")
        assert set(store.decisions[1]["codecs"]) == {"none"}
        wrong[store.rank] = [float((r - g).norm() / g.norm()) for g, r in zip(given, received, strict=True)]
        optimizer.close()

    run_ranks(2, body)
    assert wrong[0] == wrong[1]
    assert max(wrong[0]) < 1e-4


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (torch.optim.SGD, "sgd"),
        (torch.optim.AdamW, "adam"),
        (torch.optim.NAdam, "adam"),
        *([(torch.optim.Muon, "muon")] if hasattr(torch.optim, "Muon") else []),  # of PyTorch 2.9
        (torch.optim.RMSprop, None),
    ],
)
def test_what_codecs_cost_is_taken_of_the_users_optimizer(
    kind: type[torch.optim.Optimizer], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str | None] = []

    def options(*given: Any, **named: Any) -> Options:
        made = Options(*given, **named)
        found.append(made.optimizer)
        return made

    monkeypatch.setattr(auto_codecs, "Options", options)

    def body(store: gw.kv.KVStore) -> None:
        matrices = [(name, p) for name, p in make_model().named_parameters() if p.dim() == 2]  # for Muon
        optimizer = kind([p for _, p in matrices], lr=0.1)
        gw.torch.DistributedOptimizer(optimizer, matrices, "auto", store).close()

    run_ranks(2, body)
    assert found == [expected] * 2


def test_a_codec_that_the_user_names_stays(slow_link: None) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = make_model()
        optimizer = wrap(store, model, budget="60% error", codecs={"2.*": "none", "*.bias": "fp16"})
        for step in range(8):
            optimizer.zero_grad()
            loss_of(model, store.rank, step).backward()
            optimizer.step()
        assert store.decisions[0]["codecs"] == ("nf4", "none", "none", "none", "none", "none")
        optimizer.close()

    run_ranks(2, body)


def unsent(store: gw.kv.KVStore, optimizer: Any) -> torch.Tensor:
    """What of the first layer is still to be sent."""
    return torch.from_numpy(store.engine.residual(optimizer._reducer.exchange._parameters[0].key))


def train_until_owed(store: gw.kv.KVStore, model: nn.Module, optimizer: Any) -> torch.Tensor:
    """Trains to where a trial has just left nf4 for none; returns what of the first layer is still to be sent."""
    exchange = optimizer._reducer.exchange
    for step in range(40):
        before = exchange.state()["auto"]["codecs"]["0.weight"]
        optimizer.zero_grad()
        loss_of(model, store.rank, step).backward()
        after = exchange.state()["auto"]["codecs"]["0.weight"]
        if (before, after) == ("nf4", "none") and (owed := unsent(store, optimizer)).any():
            return owed
    raise AssertionError("no trial has left nf4 for none")


def require_owed_arrives(store: gw.kv.KVStore, model: nn.Module, optimizer: Any, owed: torch.Tensor) -> None:
    """The next gradient is every rank's own and what it owed, by none or by fp16; and what servers had not sent."""
    key = optimizer._reducer.exchange._parameters[0].key
    servers = torch.from_numpy(store.engine.server_residual(key))
    store.barrier()  # a push of another rank's would be a round under way, of which servers tell nothing
    alone = make_model()
    loss_of(alone, store.rank, 99).backward()
    model.zero_grad()
    loss_of(model, store.rank, 99).backward()
    own = alone[0].weight.grad.flatten()
    assert owed.norm() > 0.05 * own.norm()
    expected = store.collectives.all_reduce(own + owed, op="average")
    if servers.numel():
        expected += servers / store.num_workers
    assert (model[0].weight.grad.flatten() - expected).norm() < 1e-3 * expected.norm()


def test_what_is_owed_goes_into_a_checkpoint_and_out_of_it(
    slow_link: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "begins_with", lambda *_: "fp16")  # so that all of it arrives at once

    def body(store: gw.kv.KVStore) -> None:
        model = make_model()
        optimizer = wrap(store, model, budget="60% error")
        owed = train_until_owed(store, model, optimizer)
        state = optimizer.state_dict()
        optimizer.close()
        again = make_model()
        optimizer = wrap(store, again, budget="60% error")
        optimizer.load_state_dict(state)
        require_owed_arrives(store, again, optimizer, owed)
        optimizer.close()

    run_ranks(2, body)


@pytest.mark.parametrize(("before", "after"), [(2, 2), (4, 2)])
@pytest.mark.parametrize("is_proven", [True, False], ids=["goes on with none", "is chosen anew"])
def test_what_is_owed_goes_into_a_checkpoint_of_the_whole_job_too(
    before: int, after: int, is_proven: bool, slow_link: None, tmp_path: Path
) -> None:
    owed: dict[int, torch.Tensor] = {}

    def save(store: gw.kv.KVStore) -> None:
        model = make_model()
        optimizer = wrap(store, model, budget="60% error")
        owed[store.rank] = train_until_owed(store, model, optimizer)
        optimizer._reducer.exchange._auto._controller._is_watching = is_proven
        gw.torch.save_checkpoint(tmp_path, model, optimizer)
        require_owed_arrives(store, model, optimizer, owed[store.rank])  # nothing has changed here
        optimizer.close()

    def load(store: gw.kv.KVStore) -> None:
        model = make_model()
        optimizer = wrap(store, model, budget="60% error")
        gw.torch.load_checkpoint(tmp_path, model, optimizer)
        codec = optimizer.state_dict()["gradwire"]["auto"]["codecs"]["0.weight"]
        assert codec == ("none" if is_proven else "nf4")
        inherited = sum(owed[rank] for rank in range(store.rank, before, after))
        assert torch.equal(optimizer.state_dict()["gradwire"]["residuals"]["0.weight"], inherited)
        if is_proven:
            require_owed_arrives(store, model, optimizer, inherited)
        optimizer.close()

    run_ranks(before, save)
    run_ranks(after, load)


def test_a_checkpoint_that_is_refused_changes_neither_model_nor_optimizer(tmp_path: Path) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = make_model()
        parameters = model.named_parameters()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = gw.torch.DistributedOptimizer(optimizer, parameters, "nf4", store)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, store.rank, step).backward()
            optimizer.step()
            if step == 0:
                gw.torch.save_checkpoint(tmp_path, model, optimizer)
        weight = model[0].weight.detach().clone()
        momentum = optimizer.state[model[0].weight]["momentum_buffer"].clone()
        residual = optimizer.state_dict()["gradwire"]["residuals"]["0.weight"]
        with pytest.raises(ValueError, match="has pushed already"):
            gw.torch.load_checkpoint(tmp_path, model, optimizer)
        assert torch.equal(model[0].weight, weight)
        assert torch.equal(optimizer.state[model[0].weight]["momentum_buffer"], momentum)
        assert torch.equal(optimizer.state_dict()["gradwire"]["residuals"]["0.weight"], residual)

    run_ranks(2, body)


def test_who_times_steps_is_told_that_codecs_take_turns(
    slow_link: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(store: gw.kv.KVStore) -> None:
        wrap(store, make_model(), budget="60% error")
        if store.rank == 0:
            monkeypatch.setattr(step_times, "_joined_store", lambda: store)
            timer = step_times.StepTimer(tmp_path, 0, 1, steps=1)
            timer.write([0.0] * (step_times.WARM_UP + 1), optimizer=None)

    run_ranks(2, body)
    assert (found := step_times.read(tmp_path, 1)) is not None
    assert found.unlike == "compression='auto'"


def test_a_closed_optimizer_leaves_the_store_the_compression_that_it_had(
    slow_link: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "is_open", lambda store: True)  # those of tests are in no list

    def body(store: gw.kv.KVStore) -> None:
        model = make_model()
        optimizer = wrap(store, model, budget="60% error")
        assert str(store.compression).startswith("nf4")
        optimizer.close()
        assert str(store.compression).startswith("none")

    run_ranks(2, body)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_step_that_is_vetoed_leaves_what_is_owed(slow_link: None) -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = make_model()
        optimizer = wrap(store, model, budget="60% error", on_nonfinite="skip_step")
        owed = train_until_owed(store, model, optimizer)
        model.zero_grad()
        (loss_of(model, store.rank, 98) * (float("inf") if store.rank == 0 else 1.0)).backward()
        optimizer.step()
        require_owed_arrives(store, model, optimizer, owed)
        assert not unsent(store, optimizer).any()  # and it is sent once
        optimizer.close()

    run_ranks(2, body)


def test_one_worker_has_nothing_to_choose() -> None:
    store = gw.kv.create("local")
    model = make_model()
    optimizer = wrap(store, model)
    loss_of(model, 0, 0).backward()
    assert store.decisions == []
    assert str(store.compression) == "none:reply=none"
    optimizer.close()
    store.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"compression": "2bit", "budget": "1 points"}, "give compression='auto'"),
        ({"compression": "auto", "budget": "a lot"}, "expected points of accuracy"),
        ({"compression": "auto", "warm_up": [("fp16", 5)]}, "leave warm_up out"),
        ({"compression": "auto:ratio=1"}, "takes a budget and nothing else"),
    ],
)
def test_misuse_is_refused(options: dict[str, Any], text: str) -> None:
    store = gw.kv.create("local")
    model = make_model()
    with pytest.raises(ValueError, match=text):
        gw.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), store=store, **options
        )
    store.close()


def test_the_environment_turns_it_on_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_COMPRESSION", "auto:budget=5% error")
    assert session.auto_budget("2bit", None) == Budget("error", 0.05)
    monkeypatch.setenv("GRADWIRE_COMPRESSION", "auto")
    assert session.auto_budget("auto", "2 points") == Budget("points", 2.0)
    monkeypatch.setenv("GRADWIRE_COMPRESSION", "int8")
    assert session.auto_budget("auto", "2 points") is None
