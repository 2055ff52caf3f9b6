"""HookState and compress_reduce_scatter on one rank: what they say when they are given what cannot work, and how urgent
the hook's gradients are.
"""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.distributed as dist
from gradwire.timeline.part import read_part
from gradwire.torch.ddp import hook as ddp
from integration.torch_jobs import needs_sharding
from python.inproc_ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    if (store := gw.kv.joined()) is not None:
        store.close()


def test_it_can_be_made_before_torch_distributed_is_initialised() -> None:
    """It had raised, so Lightning's DDPStrategy(ddp_comm_state=...) could not have one."""
    state = gw.torch.HookState(codec="2bit")
    assert state.state_dict() == {}
    state.load_state_dict({"rank": 0, "residuals": {"weight": torch.ones(3)}})
    assert torch.equal(state.state_dict()["residuals"]["weight"], torch.ones(3))
    sent = pickle.loads(pickle.dumps(state))  # to a process that is spawned
    assert torch.equal(sent.state_dict()["residuals"]["weight"], torch.ones(3))
    with pytest.raises(RuntimeError, match=r"has joined no other rank yet; it does so where it is made"):
        state.stats()
    with pytest.raises(
        ValueError, match="on_nonfinite='skip'"
    ):  # what needs no other rank is checked at once
        gw.torch.HookState("2bit", on_nonfinite="skip")  # type: ignore[arg-type]
    state.close()


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (
            "momentum_correction",
            r"HookState has no momentum_correction, .*DistributedOptimizer\(momentum_correction=True\)",
        ),
        ("overlap_step", r"HookState has no overlap_step, .*in the place of DDP"),
        ("max_grad_norm", r"call torch\.nn\.utils\.clip_grad_norm_\(\) after backward\(\)"),
        ("compression", "it is called codec here"),
        ("warmup", "HookState has no argument 'warmup'; it has budget, codec, codecs, grad_scaler"),
    ],
)
def test_options_that_it_lacks_are_refused_with_what_to_use(option: str, text: str) -> None:
    """They had been a bare TypeError of Python's."""
    with pytest.raises(TypeError, match=text):
        gw.torch.HookState(**{option: True})


@pytest.mark.parametrize(("state", "given"), [(None, "None"), ("int8", "a str")])
def test_a_hook_without_its_state_says_which_it_needs(group: None, state: Any, given: str) -> None:
    """As torch's own hooks have it: register_comm_hook(None, fp16_compress_hook)."""
    model = DistributedDataParallel(nn.Linear(4, 2))
    model.register_comm_hook(state, gw.torch.ddp_hook)
    text = (
        f"ddp_hook needs a HookState as its state, got {given}: "
        'model.register_comm_hook(gradwire.torch.HookState(codec="int8"), gradwire.torch.ddp_hook)'
    )
    with pytest.raises(TypeError, match=re.escape(text)):
        model(torch.ones(3, 4)).sum().backward()


def test_bad_codecs_and_patterns_are_named(group: None) -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(ValueError, match="2bit"):
        gw.torch.HookState(codec="2bits")
    with pytest.raises(ValueError, match=r"no parameter's name matches 'wieght'.*'weight'"):
        gw.torch.HookState(codec="2bit", named_parameters=model.named_parameters(), codecs={"wieght": "none"})


def test_codecs_need_names(group: None) -> None:
    with pytest.raises(
        ValueError, match=r"none were given; pass named_parameters=model\.named_parameters\(\)"
    ):
        gw.torch.HookState(codec="2bit", codecs={"*.bias": "fp16"})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"codec": 5}, "the codec is 5, expected text"),
        ({"grad_scaler": 1024.0}, r"grad_scaler is 1024\.0, expected a torch\.amp\.GradScaler"),
        ({"named_parameters": nn.Linear(2, 2)}, r"named_parameters is a Linear"),
        ({"named_parameters": [("a", nn.Parameter())], "codecs": ["*"]}, "codecs is .* expected a mapping"),
    ],
)
def test_things_of_another_kind_are_named(arguments: dict[str, Any], text: str, group: None) -> None:
    with pytest.raises(TypeError, match=text):
        gw.torch.HookState(**arguments)


def test_a_store_of_another_maker_is_refused(group: None) -> None:
    model = nn.Linear(2, 2)
    theirs = gw.kv.create("torch")
    with pytest.raises(TypeError, match=r"store is a Torch of another maker.*allreduce"):
        gw.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), store=theirs)
    with pytest.raises(TypeError, match=r"store is a Torch of another maker.*allreduce"):
        gw.torch.broadcast_parameters(model.state_dict(), store=theirs)


def test_a_store_that_gives_weights_is_refused(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(store: gw.kv.KVStore) -> None:
        monkeypatch.setattr(ddp, "store_of", lambda _: store)
        with pytest.raises(ValueError, match="there is no mean gradient for an optimizer here"):
            gw.torch.HookState(codec="2bit")

    run_ranks(1, body, "dist_async")


def test_bad_values_are_named(group: None) -> None:
    """on_nonfinite="skip" had passed for "warn"."""
    with pytest.raises(
        ValueError, match="HookState: on_nonfinite='skip': expected warn, skip_step or ignore"
    ):
        gw.torch.HookState(codec="2bit", on_nonfinite="skip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="HookState: warm_up was given with the codec 'auto'"):
        gw.torch.HookState(codec="auto", warm_up=[("fp16", 5)])


@pytest.mark.parametrize(
    ("of_rank_0", "of_rank_1", "text"),
    [
        (
            {"on_nonfinite": "skip_step"},
            {"on_nonfinite": "ignore"},
            "worker 0 has skips steps with a NaN=True, worker 1 has skips steps with a NaN=False",
        ),
        (
            {"warm_up": [("none", 5)]},
            {"warm_up": [("none", 6)]},
            r"worker 0 has warm_up=\[\(5, 'none.*\(6, 'none",
        ),
        ({}, {"warm_up": [("fp16", 6)]}, r"worker 0 has warm_up=\[\], worker 1"),
    ],
)
def test_ranks_that_differ_hear_the_same(
    of_rank_0: dict[str, Any], of_rank_1: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = {}
    here = threading.local()
    monkeypatch.setattr(ddp, "store_of", lambda _: here.store)

    def body(store: gw.kv.KVStore) -> None:
        here.store = store
        with pytest.raises(ValueError, match=text) as raised:
            gw.torch.HookState("2bit", **(of_rank_1 if store.rank else of_rank_0))._join()
        heard[store.rank] = str(raised.value)

    run_ranks(2, body)
    assert heard[0] == heard[1]


def test_a_state_that_was_loaded_is_not_lost_before_the_first_step(group: None) -> None:
    """A job that is stopped before its first step saves again."""

    def make() -> tuple[nn.Module, gw.torch.HookState]:
        model = nn.Linear(300, 2)
        wrapped = DistributedDataParallel(model)
        state = gw.torch.HookState(
            "2bit:threshold=0.01", named_parameters=model.named_parameters(), warm_up=[("fp16", 2)]
        )
        wrapped.register_comm_hook(state, gw.torch.ddp_hook)
        return wrapped, state

    model, state = make()
    for _ in range(3):
        model(torch.ones(3, 300)).mean().backward()
    saved = state.state_dict()
    state.close()
    assert saved["residuals"]["weight"].any()
    model, state = make()
    state.load_state_dict(saved)
    again = state.state_dict()
    assert (again["step"], again["rank"]) == (3, 0)
    assert torch.equal(again["residuals"]["weight"], saved["residuals"]["weight"])
    state.close()


def test_a_second_model_needs_a_hook_state_of_its_own(group: None) -> None:
    """It had ended in "drain: 2 of 4 slots are not marked"."""
    state = gw.torch.HookState(codec="none")
    models = [DistributedDataParallel(nn.Linear(4, 4)) for _ in range(2)]
    for model in models:
        model.register_comm_hook(state, gw.torch.ddp_hook)
    models[0](torch.ones(2, 4)).sum().backward()
    with pytest.raises(ValueError, match="make a HookState for each model"):
        models[1](torch.ones(2, 4)).sum().backward()
    models[0](torch.ones(2, 4)).sum().backward()  # the first one goes on


def test_an_arm_sets_aside_codecs_and_warm_up(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_COMPRESSION", "2bit:threshold=0.01")
    model = nn.Linear(300, 2)
    wrapped = DistributedDataParallel(model)
    state = gw.torch.HookState(
        "none",
        named_parameters=model.named_parameters(),
        codecs={"*": "none"},
        warm_up=[("none", 100)],
    )
    wrapped.register_comm_hook(state, gw.torch.ddp_hook)
    wrapped(torch.randn(3, 300, generator=torch.Generator().manual_seed(0))).mean().backward()
    assert set((model.weight.grad / 0.01).round().unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert "step" not in state.state_dict()


def test_a_hook_that_ends_leaves_the_store_what_it_had(group: None) -> None:
    state = gw.torch.HookState("2bit:threshold=0.01", warm_up=[("fp16", 100)])
    store = gw.kv.joined()
    assert store is not None
    assert store.compression.spec.startswith("fp16")
    state.close()
    assert store.compression.spec == "none"


def test_one_rank_compresses_too_and_a_second_group_meets_the_store_at_hand(group: None) -> None:
    model = nn.Linear(300, 2)
    wrapped = DistributedDataParallel(model)
    state = gw.torch.HookState(codec="2bit:threshold=0.01")
    wrapped.register_comm_hook(state, gw.torch.ddp_hook)
    wrapped(torch.randn(3, 300, generator=torch.Generator().manual_seed(0))).mean().backward()
    multiples = model.weight.grad / 0.01
    torch.testing.assert_close(multiples, multiples.round())
    assert set(multiples.unique().tolist()) <= {-1.0, 0.0, 1.0}
    with pytest.raises(ValueError, match="has joined its job already"):
        gw.kv.join("tcp://127.0.0.1:1", 0, 1)
    gw.torch.HookState(codec="none", process_group=dist.new_group([0]))


@needs_sharding
def test_a_model_that_is_not_sharded_is_refused(group: None) -> None:
    with pytest.raises(ValueError, match=r"call torch\.distributed\.fsdp\.fully_shard"):
        gw.torch.compress_reduce_scatter(nn.Linear(2, 2), codec="int8")


def test_names_that_are_not_there_are_told() -> None:
    with pytest.raises(AttributeError, match="it has DistributedOptimizer, GroupCompression, HookState"):
        _ = gw.torch.HookStat


# ---- urgency: the order of the forward pass, told by the timeline ------------------------------------------------

SMALL, LARGE = 50_000, 70_000  # elements; from 65 536 on a gradient travels by itself, from DDP's own memory


class Layers(nn.Module):
    """A small parameter, a large one, a small one, ...; used in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.ones(n)) for n in (SMALL, LARGE) * 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x * layer.mean()
        return x


def priorities(folder: Path, engine: gw._core.Engine) -> dict[str, int]:
    """Returns how urgent each key was, by the numbers of its first layer and of its last."""
    path = engine.write_timeline(str(folder), "store")
    assert path is not None
    part = read_part(Path(path))
    of_keys = {span.key: span.priority for span in part.spans(part.keys) if span.stage == "ready"}
    return {re.sub(r"gradient\.0\.\w+\.", "", name): priority for name, priority in of_keys.items()}


# Two small ones share a key, which goes where the first of them does.
FORWARD = {"0 to 2": 0, "1": -1, "3": -3, "4 to 6": -4, "5": -5, "7": -7}


@pytest.mark.parametrize("is_named", [True, False], ids=["with names", "without"])
def test_priorities_are_places_in_the_forward_pass(is_named: bool, group: None, tmp_path: Path) -> None:
    model = Layers()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5)
    named = model.named_parameters() if is_named else None
    wrapped.register_comm_hook(gw.torch.HookState(codec="none", named_parameters=named), gw.torch.ddp_hook)
    store = gw.kv.joined()
    assert store is not None
    for step in range(3):  # DDP cuts its buckets anew after the first
        if step == 2:
            store.engine.start_timeline()
        wrapped(torch.ones(())).backward()
    assert priorities(tmp_path, store.engine) == FORWARD


def test_names_tell_the_order_to_a_hook_that_is_registered_late(group: None, tmp_path: Path) -> None:
    """It sees buckets in the order in which gradients were ready."""
    model = Layers()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5)
    for _ in range(2):
        wrapped(torch.ones(())).backward()
    state = gw.torch.HookState(codec="none", named_parameters=model.named_parameters())
    wrapped.register_comm_hook(state, gw.torch.ddp_hook)
    store = gw.kv.joined()
    assert store is not None
    for step in range(2):
        if step == 1:
            store.engine.start_timeline()
        wrapped(torch.ones(())).backward()
    assert priorities(tmp_path, store.engine) == FORWARD
