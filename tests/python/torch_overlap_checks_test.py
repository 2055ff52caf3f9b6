"""What cannot go with overlap_step is refused, with what to do instead; and models that are compiled in place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from gradwire.settings import definitions as settings
from gradwire.stores import connect
from integration.torch_jobs import has_torch
from python.inproc_ranks import run_ranks
from python.overlapping_net import batch, compressing_store, loss_of, make, wrap
from torch import nn


@pytest.fixture
def store() -> Iterator[gw.kv.KVStore]:
    with compressing_store() as opened:
        yield opened


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_grad_norm": 1.0}, r"max_grad_norm.*optimizer\.synchronize\(\) after backward\(\)"),
        ({"grad_scaler": torch.amp.GradScaler("cpu")}, "grad_scaler.*bfloat16"),
        ({"on_nonfinite": "skip_step"}, "skip_step.*on_nonfinite='warn'"),
    ],
)
def test_options_that_need_all_means_are_refused(
    options: dict[str, Any], text: str, store: gw.kv.KVStore
) -> None:
    with pytest.raises(ValueError, match=text):
        wrap(make(), store, **options)


def test_lbfgs_is_refused(store: gw.kv.KVStore) -> None:
    model = make()
    with pytest.raises(ValueError, match=r"LBFGS.*leave overlap_step out"):
        gw.torch.DistributedOptimizer(
            torch.optim.LBFGS(model.parameters()), model.named_parameters(), store=store, overlap_step=True
        )


def test_libraries_that_sum_in_one_order_are_refused(store: gw.kv.KVStore) -> None:
    of_a_library = gw.kv.KVStore("nccl", store.engine, settings.read())
    with pytest.raises(ValueError, match=r"'nccl'.*'allreduce' or 'dist_sync'"):
        wrap(make(), of_a_library)
    assert {name for name in connect.names() if connect.sums_in_one_order(name)} == {"nccl", "allreduce_mpi"}


def test_closures_are_refused(store: gw.kv.KVStore) -> None:
    optimizer = wrap(make(), store)
    with pytest.raises(ValueError, match=r"step\(closure\).*without a closure"):
        optimizer.step(lambda: 0.0)
    optimizer.close()


def test_a_scaler_that_was_not_named_is_refused(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model, 0)).backward()
    with pytest.raises(RuntimeError, match=r"GradScaler.*optimizer\.synchronize\(\)"):
        scaler.step(optimizer)
    optimizer.synchronize()
    optimizer.grad_scale = torch.tensor(2.0)  # as GradScaler leaves it for fused optimizers
    with pytest.raises(ValueError, match=r"GradScaler.*bfloat16"):
        optimizer.step()
    optimizer.close()


@pytest.mark.parametrize(
    "look",
    [
        lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        lambda model: nn.utils.clip_grad_value_(model.parameters(), 1.0),
        lambda model: [p.grad for p in model.parameters()],
        lambda model: model.zero_grad(),
    ],
    ids=["clip_grad_norm_", "clip_grad_value_", "read", "model.zero_grad"],
)
def test_gradients_cannot_be_touched_before_they_are_means(look: Any, store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store)
    loss_of(model, 0).backward()
    with pytest.raises(RuntimeError, match=r"'first\.weight' was read.*optimizer\.synchronize\(\)"):
        look(model)
    optimizer.synchronize()
    look(model)
    optimizer.close()


def test_clipping_after_synchronize_is_that_of_the_plain_loop(store: gw.kv.KVStore) -> None:
    def train(overlap_step: bool) -> list[torch.Tensor]:
        model = make()
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = gw.torch.DistributedOptimizer(
            inner, model.named_parameters(), store=store, overlap_step=overlap_step
        )
        for seed in range(3):
            optimizer.zero_grad()
            loss_of(model, seed).backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
        optimizer.close()
        return [p.detach().clone() for p in model.parameters()]

    torch.testing.assert_close(train(overlap_step=True), train(overlap_step=False), rtol=0, atol=0)


class CountsInGroups(torch.optim.SGD):
    """Keeps account in a group's options, as optimizers with one step count for a whole group do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


class CountsByItself(torch.optim.SGD):
    """Keeps account in an attribute."""

    def step(self, closure: Any = None) -> Any:
        self.steps = getattr(self, "steps", 0) + 1
        return super().step(closure)


@pytest.mark.filterwarnings("ignore:.*without the last step")  # where not all sums were there at once
@pytest.mark.parametrize(
    ("kind", "where"), [(CountsInGroups, "of a parameter group"), (CountsByItself, "of its own")]
)
def test_an_optimizer_with_state_of_all_parameters_is_refused(
    kind: type[torch.optim.SGD], where: str, store: gw.kv.KVStore
) -> None:
    model = make()
    optimizer = gw.torch.DistributedOptimizer(
        kind(model.parameters(), lr=0.1), model.named_parameters(), store=store, overlap_step=True
    )
    loss_of(model, 0).backward()

    def step() -> None:
        optimizer.step()
        optimizer.synchronize()

    with pytest.raises(ValueError, match=rf"{kind.__name__} changes 'steps' {where}.*leave overlap_step out"):
        step()
    optimizer.close()


@pytest.mark.skipif(
    not has_torch("2.13"), reason="dynamo of an older PyTorch leaves the call to Python, which waits"
)
def test_what_is_compiled_in_place_asks_for_synchronize(store: gw.kv.KVStore) -> None:
    model, plain = make(), make()
    inner = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    optimizer = wrap(model, store)
    model.compile(backend="eager")
    for seed in range(3):
        for each, weights in ((optimizer, model), (inner, plain)):
            each.zero_grad()
            loss_of(weights, seed).backward()
        if seed == 1:
            with pytest.raises(RuntimeError, match=r"call optimizer\.synchronize\(\) before it"):
                model(batch(seed))
        optimizer.step()
        optimizer.synchronize()
        inner.step()
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()), rtol=0, atol=0)
    optimizer.close()


class Blocks(nn.Module):
    """Calls what it holds in containers, which are never called themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = nn.ModuleList([nn.ModuleList([nn.Linear(4, 4)])])
        self.named = nn.ModuleDict({"head": nn.Linear(4, 3)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.named["head"](self.listed[0][0](x))


def test_blocks_that_are_compiled_in_place_in_containers_are_waited_for(store: gw.kv.KVStore) -> None:
    with torch.random.fork_rng():
        model = Blocks()
    plain = copy.deepcopy(model)
    inner = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    optimizer = wrap(model, store)
    model.listed[0][0].compile(backend="eager")
    model.named["head"].compile(backend="eager")
    for seed in range(3):
        for each, weights in ((optimizer, model), (inner, plain)):
            each.zero_grad()
            loss_of(weights, seed).backward()
            each.step()
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))
    optimizer.close()


@pytest.mark.parametrize(
    ("option", "of_rank_0", "of_rank_1"),
    [("overlap_step", True, False), ("max_grad_norm", 1.0, None), ("momentum_correction", False, True)],
)
def test_ranks_that_differ_in_what_all_do_alike_hear_the_same(
    option: str, of_rank_0: Any, of_rank_1: Any
) -> None:
    """They had trained one step, and then waited half an hour for each other."""
    heard = {}

    def body(store: gw.kv.KVStore) -> None:
        model = make()
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        given = {option: of_rank_1 if store.rank else of_rank_0}
        with pytest.raises(ValueError, match="options of DistributedOptimizer differ") as raised:
            gw.torch.DistributedOptimizer(inner, model.named_parameters(), store=store, **given)
        heard[store.rank] = str(raised.value)

    run_ranks(2, body)
    assert heard[0] == heard[1]
    assert f"worker 0 has {option}={of_rank_0}, worker 1 has {option}={of_rank_1}; give" in heard[0]
