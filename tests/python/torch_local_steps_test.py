"""LocalStepOptimizer against DiLoCo in one process (oracle/diloco.py). Ranks are threads."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from gradwire.autotune import step_times
from gradwire.torch import session
from gradwire.torch.local.fragments import Fragments
from gradwire.torch.local.steps import nesterov
from oracle import diloco
from python.inproc_ranks import await_event, run_ranks
from python.local_steps_net import FRESH, adamw, loss_of, require_equal, take_steps, wrap
from torch import nn

LAYERS = {name: {f"{name}.weight", f"{name}.bias"} for name in ("first", "second", "third")}
ALL = set.union(*LAYERS.values())


def averaging(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=1.0)


@pytest.fixture
def store() -> Iterator[gw.kv.KVStore]:
    store = gw.kv.create("local")
    yield store
    store.close()


# ---- what is computed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 4])
def test_every_step_with_an_outer_sgd_of_1_averages_parameters(workers: int) -> None:
    """To the bit: everything is a small multiple of 2^-9, where float32 does not round."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        first.weight.copy_((first.weight * 16).round() / 16)

    def linear(model: nn.Module, rank: int, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randint(-4, 5, (2, 4), generator=generator).float()
        return (model(x) * torch.randint(-4, 5, (2, 3), generator=generator)).sum()

    expected = first.weight.detach().clone()
    for step in range(1, 6):
        after = []
        for rank in range(workers):
            alone = copy.deepcopy(first)
            with torch.no_grad():
                alone.weight.copy_(expected)
            linear(alone, rank, step).backward()
            assert alone.weight.grad is not None
            after.append(alone.weight.detach() - alone.weight.grad / 8)
        expected = torch.stack(after).mean(dim=0)

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(first)
        optimizer = gw.torch.LocalStepOptimizer(
            torch.optim.SGD(model.parameters(), lr=1 / 8),
            model.named_parameters(),
            store=store,
            sync_every=1,
            outer=averaging,
        )
        for step in range(1, 6):
            optimizer.zero_grad()
            linear(model, store.rank, step).backward()
            optimizer.step()
        assert torch.equal(model.weight, expected)

    run_ranks(workers, body)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({"sync_every": 3}, {0: ALL}),
        ({"sync_every": 2, "outer": averaging}, {0: ALL}),
        ({"sync_every": 5, "merge_after": 2}, {0: ALL}),
        ({"sync_every": 1, "mixing": 0.25}, {0: ALL}),
        (  # first has 30 elements, second 42, third 21, which goes to the fragment with fewer
            {"sync_every": 4, "fragments": 2},
            {2: LAYERS["first"] | LAYERS["third"], 0: LAYERS["second"]},
        ),
        (
            {"sync_every": 4, "fragments": 3, "merge_after": 3, "mixing": 0.75},
            {1: LAYERS["first"], 2: LAYERS["second"], 0: LAYERS["third"]},
        ),
    ],
    ids=["diloco", "averaged", "late", "mixed", "streamed", "streamed late"],
)
def test_weights_are_the_papers(workers: int, options: dict[str, Any], offsets: dict[int, set[str]]) -> None:
    steps = 13
    outer = options.get("outer", nesterov)
    late = options.get("merge_after", 0)
    mixing = options.get("mixing", 0.5 if late else 0.0)
    schedule = (offsets, options["sync_every"], late, mixing)
    shared, models = diloco.train(FRESH, workers, steps, loss_of, adamw, outer, *schedule)

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store, **options)
        take_steps(model, optimizer, store.rank, range(1, steps + 1))
        require_equal(model, models[store.rank])
        with optimizer.shared_weights():
            require_equal(model, shared)
        require_equal(model, models[store.rank])

    run_ranks(workers, body)


@pytest.mark.parametrize("steps", [8, 9, 10])
@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({"sync_every": 4}, {0: ALL}),
        ({"sync_every": 4, "mixing": 0.25}, {0: ALL}),
        (
            {"sync_every": 4, "fragments": 3, "merge_after": 2, "mixing": 0.5},
            {1: LAYERS["first"], 2: LAYERS["second"], 0: LAYERS["third"]},
        ),
    ],
    ids=["diloco", "mixed", "streamed late"],
)
def test_synchronize_takes_no_outer_step_without_a_local_one(
    options: dict[str, Any], offsets: dict[int, set[str]], steps: int
) -> None:
    """It had sent what was merged in that very step again: a gradient of about 0, and momentum moved the weights."""
    schedule = (offsets, options["sync_every"], options.get("merge_after", 0), options.get("mixing", 0.0))
    shared, _ = diloco.train(FRESH, 2, steps, loss_of, adamw, nesterov, *schedule, synchronizes=True)

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store, **options)
        take_steps(model, optimizer, store.rank, range(1, steps + 1))
        optimizer.synchronize()
        require_equal(model, shared)
        optimizer.synchronize()
        require_equal(model, shared)

    run_ranks(2, body)


def test_a_lossy_codec_leaves_all_ranks_with_one_shared_model_that_learns() -> None:
    blobs: dict[int, bytes] = {}
    losses: dict[int, list[float]] = {}

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store, compression="int4", codecs={"*": "int4"}, sync_every=4, fragments=2)
        fixed = [loss_of(model, store.rank, 0).item()]
        for _ in range(60):
            optimizer.zero_grad()
            loss_of(model, store.rank, 0).backward()
            optimizer.step()
        optimizer.synchronize()
        fixed.append(loss_of(model, store.rank, 0).item())
        blobs[store.rank] = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        losses[store.rank] = fixed

    run_ranks(2, body)
    assert blobs[0] == blobs[1]
    assert all(last < 0.7 * first for first, last in losses.values())


def test_small_outer_steps_of_bfloat16_parameters_are_not_lost() -> None:
    """Shared weights are float32: 64 outer steps of 2^-12 each move a bfloat16 1.0, which one alone cannot."""

    def body(store: gw.kv.KVStore) -> None:
        weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
        optimizer = gw.torch.LocalStepOptimizer(
            torch.optim.SGD([weight], lr=2**-6),
            [("weight", weight)],
            store=store,
            sync_every=1,
            outer=lambda weights: torch.optim.SGD(weights, lr=2**-6),
        )
        for _ in range(64):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        assert torch.equal(weight, torch.full_like(weight, 1 - 2**-6))

    run_ranks(2, body)


# ---- what it costs -------------------------------------------------------------------------------------------


def test_bytes_are_a_hundredth_of_those_of_halves_every_step() -> None:
    """4 bits and a scale of 32 for each 256 elements, once in 32 steps, for 16 in each."""
    elements, steps = 64 * 1024, 64

    def body(store: gw.kv.KVStore) -> None:
        weight = nn.Parameter(torch.zeros(64, 1024))
        optimizer = gw.torch.LocalStepOptimizer(
            torch.optim.SGD([weight], lr=1.0), [("weight", weight)], "int4", store, sync_every=32
        )
        for step in range(steps):
            weight.grad = torch.randn(64, 1024, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        raw, encoded = store.stats()["bytes_raw"], store.stats()["bytes_encoded"]
        assert raw == steps // 32 * 4 * elements
        assert 100 * encoded < 2 * elements * steps

    run_ranks(2, body)


def test_a_fragment_under_way_keeps_nobody_waiting() -> None:
    """Rank 1 does not end its second step before rank 0 has taken its third."""
    ahead = threading.Event()

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store, sync_every=4, fragments=2, merge_after=3)
        take_steps(model, optimizer, store.rank, range(1, 2))
        if store.rank == 1:
            await_event(ahead, "rank 0's third step")
        take_steps(model, optimizer, store.rank, range(2, 4))
        ahead.set()
        take_steps(model, optimizer, store.rank, range(4, 10))

    run_ranks(2, body)


# ---- who takes part ------------------------------------------------------------------------------------------


def test_frozen_parameters_are_sent_from_when_they_thaw() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        model.first.requires_grad_(False)
        optimizer = wrap(model, store, sync_every=2)
        take_steps(model, optimizer, store.rank, range(1, 4))
        assert torch.equal(model.first.weight, FRESH.first.weight)
        model.first.requires_grad_(True)
        take_steps(model, optimizer, store.rank, range(4, 5))
        assert not torch.equal(model.first.weight, FRESH.first.weight)
        blob = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        assert len(set(store.engine.all_gather("weights", blob))) == 1

    run_ranks(2, body)


def test_what_is_frozen_later_stays_once_it_is_merged() -> None:
    """Its outer gradient is 0 then, but the outer optimizer's momentum would move it on; when it thaws it goes on."""

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store, sync_every=2)
        take_steps(model, optimizer, store.rank, range(1, 4))  # the last has not been merged
        model.first.requires_grad_(False)
        take_steps(model, optimizer, store.rank, range(4, 5))
        merged = model.first.weight.detach().clone()
        assert len(set(store.engine.all_gather("merged", merged.numpy().tobytes()))) == 1
        momentum = optimizer.outer.state_dict()["state"][0]["momentum_buffer"].clone()
        take_steps(model, optimizer, store.rank, range(5, 8))
        optimizer.synchronize()
        assert torch.equal(model.first.weight, merged)
        assert torch.equal(optimizer.outer.state_dict()["state"][0]["momentum_buffer"], momentum)
        model.first.requires_grad_(True)
        take_steps(model, optimizer, store.rank, range(8, 10))
        assert not torch.equal(model.first.weight, merged)
        blob = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        assert len(set(store.engine.all_gather("weights", blob))) == 1

    run_ranks(2, body)


def test_groups_that_are_added_take_part() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = gw.torch.LocalStepOptimizer(
            adamw(model.first.parameters()), model.first.named_parameters(), store=store, sync_every=2
        )
        optimizer.add_param_group({"params": [*model.second.parameters(), *model.third.parameters()]})
        take_steps(model, optimizer, store.rank, range(1, 5))
        blob = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        assert len(set(store.engine.all_gather("weights", blob))) == 1

    run_ranks(2, body)


def test_ranks_that_start_from_different_weights_are_refused_by_name() -> None:
    texts: dict[int, str] = {}

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        if store.rank == 1:
            with torch.no_grad():
                model.second.bias += 1
        optimizer = wrap(model, store, sync_every=2)
        with pytest.raises(ValueError, match="broadcast_parameters") as refused:
            take_steps(model, optimizer, store.rank, range(1, 2))
        texts[store.rank] = str(refused.value)
        gw.torch.broadcast_parameters(model.state_dict(), store=store)  # also after the optimizer was made
        take_steps(model, optimizer, store.rank, range(1, 3))

    run_ranks(2, body)
    assert "'second.bias' of rank 1 is not that of rank 0" in texts[0]
    assert texts[0] == texts[1]


def test_synchronize_refuses_ranks_that_have_taken_more_steps_than_others() -> None:
    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store, sync_every=8)
        take_steps(model, optimizer, store.rank, range(1, 3 + store.rank))
        with pytest.raises(ValueError, match="the ranks have taken 2, 3 local steps"):
            optimizer.synchronize()

    run_ranks(2, body)


def test_synchronize_twice_is_as_once(store: gw.kv.KVStore) -> None:
    model = copy.deepcopy(FRESH)
    optimizer = wrap(model, store, sync_every=8)
    take_steps(model, optimizer, 0, range(1, 4))
    optimizer.synchronize()
    once = copy.deepcopy(model)
    optimizer.synchronize()
    require_equal(model, once)


def test_a_nan_is_told(store: gw.kv.KVStore) -> None:
    model = copy.deepcopy(FRESH)
    optimizer = wrap(model, store, compression="int4", sync_every=1)
    take_steps(model, optimizer, 0, range(1, 2))
    with torch.no_grad():
        model.second.weight[0, 0] = float("nan")
    with pytest.warns(RuntimeWarning, match="NaN or an infinity"):
        take_steps(model, optimizer, 0, range(2, 3))


# ---- around it -----------------------------------------------------------------------------------------------


def test_it_is_the_users_optimizer_with_its_schedule_and_hooks(store: gw.kv.KVStore) -> None:
    model = copy.deepcopy(FRESH)
    optimizer = wrap(model, store, sync_every=2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert type(optimizer).__name__ == "LocalStepAdamW"
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    losses = []
    for step in range(1, 4):
        optimizer.zero_grad()

        def closure(step: int = step) -> torch.Tensor:
            loss = loss_of(model, 0, step)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure))
        schedule.step()
    assert all(loss is not None for loss in losses)
    assert calls == [1, 1, 1]
    assert optimizer.param_groups[0]["lr"] == 0.02 / 8
    assert type(copy.deepcopy(optimizer)) is torch.optim.AdamW
    again = gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), store=store)
    assert optimizer.outer is None  # the other has taken over
    assert type(again).__name__ == "DistributedAdamW"
    with optimizer.shared_weights():
        optimizer.synchronize()


def test_close_waits_for_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "is_open", lambda store: True)  # those of tests are in no list
    closed = threading.Event()

    def body(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH)
        optimizer = wrap(model, store, sync_every=4, merge_after=2)
        take_steps(model, optimizer, store.rank, range(1, 4))
        if store.rank == 1:
            assert not closed.wait(0.5)
        take_steps(model, optimizer, store.rank, range(4, 5))
        optimizer.close()
        closed.set()

    run_ranks(2, body)


def test_a_store_that_gives_weights_is_refused() -> None:
    def body(store: gw.kv.KVStore) -> None:
        with pytest.raises(ValueError, match="there is no mean gradient for an optimizer here"):
            wrap(copy.deepcopy(FRESH), store, sync_every=4)

    run_ranks(1, body, "dist_async")


def test_who_times_steps_is_told_that_they_are_not_alike(store: gw.kv.KVStore, tmp_path: Path) -> None:
    model = copy.deepcopy(FRESH)
    ends = [float(n) for n in range(step_times.WARM_UP + 1)]
    timer = step_times.StepTimer(tmp_path, 0, 1, steps=1)
    timer.write(ends, adamw(model.parameters()))
    assert (found := step_times.read(tmp_path, 1)) is not None
    assert found.unlike is None
    timer.write(ends, wrap(model, store, sync_every=4))
    assert (found := step_times.read(tmp_path, 1)) is not None
    assert found.unlike == "LocalStepOptimizer"


def test_nobody_else_is_disturbed_by_its_warnings(store: gw.kv.KVStore) -> None:
    model = copy.deepcopy(FRESH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take_steps(model, wrap(model, store, sync_every=2, fragments=2), 0, range(1, 5))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sync_every": 0}, "sync_every=0: expected 1 or more"),
        ({"sync_every": 2.0}, r"sync_every=2\.0"),
        ({"sync_every": True}, "sync_every=True"),
        ({"sync_every": 2, "fragments": 3}, "fragments=3: expected 1 to 2"),
        ({"sync_every": 9, "fragments": 4}, r"fragments=4, but the model has 3 layers"),
        ({"sync_every": 2, "merge_after": 2}, "merge_after=2: expected 0 to 1"),
        ({"sync_every": 2, "mixing": 1.5}, r"mixing=1\.5: expected a number from 0 to 1"),
        ({"sync_every": 2, "codecs": {"frist.*": "int4"}}, r"'frist\.\*'; names are '"),
        ({"sync_every": 2, "compression": "int5"}, "int4"),
        ({"sync_every": 2, "compression": "auto"}, "name one for outer gradients"),
    ],
)
def test_bad_arguments_are_named(store: gw.kv.KVStore, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        wrap(copy.deepcopy(FRESH), store, **options)


def test_something_else_than_an_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"optimizer is a Linear, expected a torch\.optim\.Optimizer"):
        gw.torch.LocalStepOptimizer(nn.Linear(1, 1), sync_every=2)


def test_fragments_of_equal_layers_are_strided_and_due_at_even_distances() -> None:
    fragments = Fragments(3, 12)
    fragments.add([(f"blocks.{i}.{part}", torch.zeros(5)) for i in range(7) for part in ("weight", "bias")])
    assert [list(fragments.members(f)) for f in range(3)] == [
        [0, 1, 6, 7, 12, 13],
        [2, 3, 8, 9],
        [4, 5, 10, 11],
    ]
    assert [fragments.due(step) for step in range(1, 14)] == [
        [0] if step % 12 == 4 else [1] if step % 12 == 8 else [2] if step % 12 == 0 else []
        for step in range(1, 14)
    ]


# ---- ranks that differ -------------------------------------------------------------------------------------------


def halving(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.5)


@pytest.mark.parametrize(
    ("of_rank_0", "of_rank_1", "text"),
    [
        ({}, {"sync_every": 8}, "worker 0 has sync_every=4, worker 1 has sync_every=8"),
        ({}, {"fragments": 2}, "worker 0 has fragments=1, worker 1 has fragments=2"),
        ({}, {"mixing": 0.5}, r"worker 0 has mixing=0\.0, worker 1 has mixing=0\.5"),
        ({}, {"merge_after": 1}, "worker 0 has merge_after=0, worker 1 has merge_after=1"),
        ({}, {"outer": averaging}, r"worker 0 has lr of group 0=0\.7, worker 1 has lr of group 0=1\.0"),
        ({"outer": averaging}, {"outer": halving}, r"worker 1 has lr of group 0=0\.5"),
        ({}, {"outer": adamw}, r"worker 0 has class=.*SGD'?, worker 1 has class=.*AdamW"),
    ],
    ids=lambda each: None if isinstance(each, str) else "-".join(each),
)
def test_ranks_that_differ_in_options_hear_the_same(
    of_rank_0: dict[str, Any], of_rank_1: dict[str, Any], text: str
) -> None:
    """Their weights had parted without a word, or they had waited half an hour for each other."""
    heard = {}

    def body(store: gw.kv.KVStore) -> None:
        options = {"sync_every": 4} | (of_rank_1 if store.rank else of_rank_0)
        with pytest.raises(ValueError, match=text) as raised:
            wrap(copy.deepcopy(FRESH), store, **options)
        heard[store.rank] = str(raised.value)

    run_ranks(2, body)
    assert heard[0] == heard[1]
    assert "LocalStepOptimizer" in heard[0]
