"""Several HookStates, local steps and an optimizer on one rank's one store: none changes another's codecs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.distributed as dist
from gradwire.torch.ddp import hook as ddp
from gradwire.torch.process_group import store_of
from python.inproc_ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

THRESHOLD = 0.01
TWO_BITS = f"2bit:threshold={THRESHOLD}"


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    if (store := gw.kv.joined()) is not None:
        store.close()


class Trained:
    """A model. One rank's mean is its own gradient, but for what its codec makes of it."""

    def __init__(self) -> None:
        self.model = nn.Linear(300, 2)
        self.plain = copy.deepcopy(self.model)
        self.wrapped: nn.Module = self.model

    def step(self) -> None:
        x = torch.randn(3, 300, generator=torch.Generator().manual_seed(0))
        for model in (self.wrapped, self.plain):
            model.zero_grad()
            model(x).mean().backward()

    def require(self, codec: str) -> None:
        """Takes a step, in which weights travel by the codec, and biases uncompressed."""
        self.step()
        assert torch.equal(self.model.bias.grad, self.plain.bias.grad)
        if codec == "none":
            assert torch.equal(self.model.weight.grad, self.plain.weight.grad)
            return
        multiples = self.model.weight.grad / THRESHOLD
        torch.testing.assert_close(multiples, multiples.round())
        assert set(multiples.round().unique().tolist()) <= {-1.0, 0.0, 1.0}


class Hooked(Trained):
    """With a hook."""

    def __init__(self, codec: str | None, **options: Any) -> None:
        super().__init__()
        self.wrapped = DistributedDataParallel(self.model)
        self.state = gw.torch.HookState(codec, **options)
        self.wrapped.register_comm_hook(self.state, gw.torch.ddp_hook)


class Optimized(Trained):
    """With a DistributedOptimizer."""

    def __init__(self, codec: str | None, **options: Any) -> None:
        super().__init__()
        inner = torch.optim.SGD(self.model.parameters(), lr=0.1)
        named = self.model.named_parameters()
        self.optimizer = gw.torch.DistributedOptimizer(inner, named, codec, store_of(), **options)

    def step(self) -> None:
        super().step()
        self.optimizer.step()  # gradients do not depend on weights here


@pytest.mark.parametrize("codecs", [("none", TWO_BITS), (TWO_BITS, "none")])
def test_each_hook_has_its_codec(codecs: tuple[str, str]) -> None:
    hooks = [Hooked(codec) for codec in codecs]
    for _ in range(3):  # DDP cuts its buckets anew after the first
        for hook, codec in zip(hooks, codecs, strict=True):
            hook.require(codec)


def test_a_warm_up_of_the_first_hook_leaves_the_second_alone() -> None:
    first, second = Hooked(TWO_BITS, warm_up=[("none", 2)]), Hooked("none")
    for expected in ("none", "none", TWO_BITS, TWO_BITS):
        first.require(expected)
        second.require("none")


def test_a_warm_up_of_the_second_hook_leaves_the_first_alone() -> None:
    first, second = Hooked("none"), Hooked(TWO_BITS, warm_up=[("none", 2)])
    for expected in ("none", "none", TWO_BITS, TWO_BITS):
        first.require("none")
        second.require(expected)


def test_a_warm_up_goes_on_from_its_state_and_leaves_others_alone() -> None:
    first, second = Hooked("none"), Hooked(TWO_BITS, warm_up=[("none", 2)])
    second.require("none")
    second.require("none")
    saved = second.state.state_dict()
    second.require(TWO_BITS)
    second.state.load_state_dict(saved | {"step": 1})
    second.require("none")
    second.require(TWO_BITS)
    first.require("none")


def test_a_hook_that_ends_takes_no_codec_along() -> None:
    first, second = Hooked("none"), Hooked(TWO_BITS)
    second.require(TWO_BITS)
    first.state.close()
    third = Hooked("none")
    for hook, codec in ((second, TWO_BITS), (third, "none")):
        hook.require(codec)


def test_codecs_that_are_chosen_leave_the_first_hook_alone() -> None:
    first = Hooked(TWO_BITS)
    second = Hooked("auto", budget="30% error")
    for _ in range(3):
        first.require(TWO_BITS)
        second.step()


@pytest.mark.parametrize("codec", ["none", TWO_BITS])
@pytest.mark.parametrize("hook_is_first", [True, False])
def test_local_steps_and_a_hook_each_have_their_codec(codec: str, hook_is_first: bool) -> None:
    store_of()  # where a hook comes second, it joins no store of its own
    hook = Hooked(codec) if hook_is_first else None
    model = nn.Linear(300, 2)
    optimizer = gw.torch.LocalStepOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), "int4", sync_every=1
    )
    hook = hook or Hooked(codec)
    for _ in range(2):
        hook.require(codec)
        optimizer.zero_grad()
        model(torch.randn(3, 300, generator=torch.Generator().manual_seed(1))).square().mean().backward()
        optimizer.step()
    residuals = optimizer.state_dict()["gradwire"]["residuals"]
    assert residuals["weight"].abs().max() > 0
    assert "bias" not in residuals
    optimizer.close()


@pytest.mark.parametrize("codecs", [("none", TWO_BITS), (TWO_BITS, "none")])
@pytest.mark.parametrize("kinds", [(Hooked, Optimized), (Optimized, Hooked)])
def test_an_optimizer_and_a_hook_each_have_their_codec(
    kinds: tuple[type[Trained], type[Trained]], codecs: tuple[str, str]
) -> None:
    store_of()  # where a hook comes second, it joins no store of its own
    trained = [kind(codec) for kind, codec in zip(kinds, codecs, strict=True)]
    for _ in range(3):
        for each, codec in zip(trained, codecs, strict=True):
            each.require(codec)


def test_a_warm_up_of_an_optimizer_leaves_the_hook_alone() -> None:
    hook, optimizer = Hooked("none"), Optimized(TWO_BITS, warm_up=[("none", 2)])
    for expected in ("none", "none", TWO_BITS, TWO_BITS):
        hook.require("none")
        optimizer.require(expected)
    optimizer.optimizer.close()
    hook.require("none")


def test_rows_of_an_optimizer_beside_a_hook_have_its_codec() -> None:
    hook = Hooked("none")
    table = nn.Embedding(40, 8, sparse=True)
    inner = torch.optim.SGD(table.parameters(), lr=0.1)
    optimizer = gw.torch.DistributedOptimizer(
        inner, table.named_parameters(), TWO_BITS, store_of(), warm_up=[("none", 3)]
    )
    for step in range(5):  # in the first they are found to be rows
        hook.require("none")
        optimizer.zero_grad()
        table(torch.tensor([3, 5, 5])).square().mean().backward()
        found = table.weight.grad.to_dense().abs().unique()
        is_two_bits = found.numel() <= 2 and bool((found < 1.01 * THRESHOLD).all())
        assert is_two_bits == (step >= 3), (step, found)
        optimizer.step()
    optimizer.close()


def test_ranks_that_differ_in_a_second_hook_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    own = threading.local()
    monkeypatch.setattr(ddp, "store_of", lambda _: own.store)

    def body(store: gw.kv.KVStore) -> None:
        own.store = store
        gw.torch.HookState("none")
        with pytest.raises(ValueError, match="set_key_compression"):
            gw.torch.HookState("fp16" if store.rank == 0 else "int8")

    run_ranks(2, body)
