"""DistributedOptimizer with overlap_step: when sums are awaited, by whom, in which order, and how it is asked for.

Ranks are threads, so that one can hold back a gradient until the other has got somewhere. Whole trainings are compared
by integration/torch_overlap_cases.py.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import gradwire as gw
import gradwire.torch
import pytest
import torch
from gradwire.settings import definitions as settings
from python.inproc_ranks import await_event, run_ranks
from python.overlapping_net import Net, batch, compressing_store, loss_of, make, under_way, wrap
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

torch_optimizer = sys.modules["torch.optim.optimizer"]  # torch.optim has deleted the name


@pytest.fixture
def store() -> Iterator[gw.kv.KVStore]:
    with compressing_store() as opened:
        yield opened


class Deep(nn.Module):
    """Two halves of several layers each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))
        self.second = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


with torch.random.fork_rng():
    torch.manual_seed(0)
    FRESH_DEEP = Deep()
HALF_BYTES = 3 * (36 + 6) * 4  # of Deep's parameters


@pytest.mark.parametrize("fusion_bytes", [0, HALF_BYTES], ids=["each by itself", "three layers together"])
def test_the_next_forward_begins_before_the_last_sum_has_arrived(fusion_bytes: int) -> None:
    """Rank 1 does not finish its gradient of the second half before rank 0 has run the first one again."""
    ran_again = threading.Event()
    seen: list[tuple[str, set[str]]] = []

    def note(which: str, model: nn.Module) -> None:
        seen.append((which, under_way(model)))

    def quick(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH_DEEP)
        optimizer = wrap(model, store)
        model(torch.ones(2, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.first.register_forward_hook(lambda *_: note("first", model))
        model.first.register_forward_hook(lambda *_: ran_again.set())
        model.second.register_forward_hook(lambda *_: note("second", model))
        model(torch.ones(2, 6)).square().mean().backward()
        optimizer.step()
        optimizer.close()

    def late(store: gw.kv.KVStore) -> None:
        model = copy.deepcopy(FRESH_DEEP)
        optimizer = wrap(model, store)
        behind = model.second(torch.ones(2, 6))
        behind.register_hook(lambda _: await_event(ran_again, "rank 0's next forward pass"))
        front = model.first(torch.ones(2, 6))  # made later, so that its gradient comes first
        (behind.sum() + front.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        model(torch.ones(2, 6)).square().mean().backward()
        optimizer.step()
        optimizer.close()

    run_ranks(2, lambda store: late(store) if store.rank else quick(store), fusion_bytes=fusion_bytes)
    of_second = {name for name, _ in FRESH_DEEP.named_parameters() if name.startswith("second")}
    assert seen == [("first", of_second), ("second", set())]


class Records(torch.optim.SGD):
    """Writes down how many parameters each update is of."""

    updates: ClassVar[list[int]] = []

    def step(self, closure: Any = None) -> Any:
        self.updates.append(sum(len(group["params"]) for group in self.param_groups))
        return super().step(closure)


def test_small_parameters_travel_and_are_updated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many frames as the plain loop sends, and one update for all that came at once."""
    monkeypatch.setattr(Records, "updates", [])
    frames: dict[bool, list[int]] = {False: [], True: []}

    def train(store: gw.kv.KVStore) -> None:
        for overlap_step, of_steps in frames.items():
            model = nn.ModuleList(make().first for _ in range(40))
            inner = (Records if overlap_step and store.rank == 0 else torch.optim.SGD)(
                model.parameters(), lr=0.1
            )
            optimizer = gw.torch.DistributedOptimizer(
                inner, model.named_parameters(), store=store, overlap_step=overlap_step
            )
            for _ in range(3):
                before = store.engine.counters()["frames_sent"]
                optimizer.zero_grad()
                sum(layer(batch(store.rank)).square().mean() for layer in model).backward()
                optimizer.step()
                optimizer.synchronize()
                store.barrier()
                if store.rank == 0:
                    of_steps.append(store.engine.counters()["frames_sent"] - before)
            optimizer.close()

    run_ranks(2, train)
    assert frames[True] == frames[False]
    assert sum(Records.updates) == 3 * 80
    assert len(Records.updates) <= 2 * 3  # a bucket's update may begin while another's sum is on its way


def save_and_load(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def evaluate(model: nn.Module, mode: Callable[[], Any]) -> torch.Tensor:
    model.eval()
    with mode():
        result = model(batch(9))
    model.train()
    return result


def average(model: Net) -> torch.Tensor:
    with torch.no_grad():
        return torch.zeros(6, 4).lerp_(model.first.weight, 0.5)


def written(model: Net) -> torch.Tensor:
    with torch.no_grad():
        model.second.bias.mul_(2.0)
    return model.second.bias.detach().clone()


READERS: dict[str, Callable[[Net], Any]] = {
    "state_dict": lambda model: copy.deepcopy(model.state_dict()),
    "kept parameters": lambda model: [p.detach().clone() for p in model.state_dict(keep_vars=True).values()],
    "data": lambda model: model.second.weight.data.clone(),
    "the layer used by hand": lambda model: nn.functional.linear(torch.ones(6), model.second.weight),
    "evaluation": lambda model: evaluate(model, torch.no_grad),
    "inference mode": lambda model: evaluate(model, torch.inference_mode),
    "vector": lambda model: nn.utils.parameters_to_vector(model.parameters()).detach(),
    "an average of weights": average,
    "a write": written,
    "foreach": lambda model: torch._foreach_norm(list(model.parameters())),
    "deepcopy": lambda model: list(copy.deepcopy(model).parameters()),
    "pickle": lambda model: list(pickle.loads(pickle.dumps(model)).parameters()),
    "torch.save": lambda model: list(save_and_load(model).parameters()),
    "text": lambda model: repr(model.first.bias),
    "gradient": lambda model: model.second.weight.grad.clone(),
    "numpy": lambda model: torch.from_numpy(model.first.bias.detach().numpy().copy()),
}


def test_whoever_reads_after_step_sees_what_the_plain_loop_has() -> None:
    """Rank 1 sends nothing before rank 0 is about to read, so every sum is still on its way."""
    reading = {name: threading.Event() for name in READERS}
    pending: dict[str, set[str]] = {}

    def require_equal(name: str, ours: Any, theirs: Any) -> None:
        if isinstance(ours, str):
            assert ours == theirs, name
        else:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=lambda text: f"{name}: {text}")

    def train(store: gw.kv.KVStore) -> None:
        model, plain = make(), make()
        optimizer = wrap(model, store)
        oracle = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
        for step, (name, read) in enumerate(READERS.items()):
            optimizer.zero_grad()
            loss = loss_of(model, 10 * step + store.rank)
            if store.rank == 1:
                await_event(reading[name], f"rank 0's reading by {name}")
            loss.backward()
            optimizer.step()
            means = [torch.zeros_like(p) for p in plain.parameters()]
            for rank in range(2):
                oracle.zero_grad()
                loss_of(plain, 10 * step + rank).backward()
                for mean, p in zip(means, plain.parameters(), strict=True):
                    mean += p.grad
            for mean, p in zip(means, plain.parameters(), strict=True):
                p.grad = mean / 2
            oracle.step()
            if store.rank == 0:
                pending[name] = under_way(model)
                reading[name].set()
            require_equal(name, read(model), read(plain))
        optimizer.close()
        assert not under_way(model)

    run_ranks(2, train)
    everything = {name for name, _ in make().named_parameters()}
    assert pending == dict.fromkeys(READERS, everything)


def test_shapes_and_types_are_told_without_waiting() -> None:
    described = threading.Event()

    def train(store: gw.kv.KVStore) -> None:
        model = make()
        optimizer = wrap(model, store)
        loss = loss_of(model, store.rank)
        if store.rank == 1:
            await_event(described, "rank 0's description")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if store.rank == 0:
            for p in model.parameters():
                told = (p.shape, p.dtype, p.device, p.requires_grad, p.numel(), p.dim(), p.is_leaf)
                assert told[0] == p.size()
                assert p.grad is None  # zero_grad() will have cleared it
                assert isinstance(p, nn.Parameter)
            assert len(under_way(model)) == 4
            described.set()
        optimizer.close()

    run_ranks(2, train)


def test_torch_steps_guarded_parameters_together_as_it_does_others(
    store: gw.kv.KVStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA, where that is its default: the CPU stands in for it."""
    monkeypatch.setattr(torch_optimizer, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
    model = make()
    optimizer = wrap(model, store)
    assert torch_optimizer._default_to_fused_or_foreach(list(model.parameters()), False) == (False, True)
    loss_of(model, 0).backward()
    assert len(under_way(model)) == 4
    assert torch_optimizer._default_to_fused_or_foreach(list(model.parameters()), False) == (False, True)
    optimizer.close()


def test_the_setting_holds_where_the_script_says_nothing(
    store: gw.kv.KVStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overlaps(**given: bool) -> bool:
        model = make()
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), store=store, **given
        )
        loss_of(model, 0).backward()
        guarded = bool(under_way(model))
        assert guarded == optimizer.overlap_step
        optimizer.close()
        return guarded

    assert not overlaps()
    monkeypatch.setenv("GRADWIRE_OVERLAP_STEP", "on")
    assert overlaps()
    assert not overlaps(overlap_step=False)
    assert settings.read({}).overlap_step == "off"


def test_synchronize_is_there_without_it(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), store=store
    )
    loss_of(model, 0).backward()
    optimizer.synchronize()
    assert model.first.weight.grad is not None
    optimizer.close()


class Recorder:
    """The store's engine, which writes down how urgent each gradient is."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.names: list[str] = []
        self.sent: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def declare(self, keys: list[Any]) -> Any:
        ids = self._engine.declare(keys)
        self.names += [name.partition(".")[2].partition(".")[2] for name, _, _ in sorted(keys)]
        return ids

    def push_pull(self, key: int, given: Any, out: Any, priority: int, *rest: Any) -> Any:
        self.sent[self.names[key]] = priority
        return self._engine.push_pull(key, given, out, priority, *rest)

    def bind_slots(self, keys: list[int], arrays: list[Any], priorities: list[int], *rest: Any) -> None:
        self.sent |= {self.names[key]: priority for key, priority in zip(keys, priorities, strict=True)}
        self._engine.bind_slots(keys, arrays, priorities, *rest)


@pytest.mark.parametrize("overlap_step", [False, True])
def test_front_layers_are_the_most_urgent_also_those_that_thaw(
    overlap_step: bool, store: gw.kv.KVStore
) -> None:
    store.engine = engine = Recorder(store.engine)
    model = make()
    model.first.requires_grad_(False)
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        store=store,
        overlap_step=overlap_step,
    )
    names = [name for name, _ in model.named_parameters()]
    for step in range(3):
        model.first.requires_grad_(step > 0)
        optimizer.zero_grad()
        loss_of(model, step).backward()  # in step 1 those that have thawed go by themselves
        optimizer.step()
        assert sorted(engine.sent, key=lambda name: -engine.sent[name]) == (names[2:] if step == 0 else names)
    optimizer.synchronize()
    optimizer.close()


@pytest.mark.parametrize("overlap_step", [False, True])
def test_hooks_of_a_step_are_called_once_a_step_also_after_a_checkpoint(
    overlap_step: bool, store: gw.kv.KVStore
) -> None:
    model = make()
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        store=store,
        overlap_step=overlap_step,
    )
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for seed in range(2):
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.zero_grad()
        loss_of(model, seed).backward()
        optimizer.step()
    assert calls == ["before", "after"] * 2
    optimizer.close()


@pytest.mark.parametrize("overlap_step", [False, True])
def test_hooks_of_all_optimizers_are_called_once_a_step_with_the_one_that_steps(
    overlap_step: bool, store: gw.kv.KVStore
) -> None:
    model = make()
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        store=store,
        overlap_step=overlap_step,
    )
    calls: list[tuple[str, Any]] = []
    handles = [
        register_optimizer_step_pre_hook(lambda which, *_: calls.append(("before", which))),
        register_optimizer_step_post_hook(lambda which, *_: calls.append(("after", which))),
    ]
    optimizer.register_step_pre_hook(lambda which, *_: calls.append(("own before", which)))
    optimizer.register_step_post_hook(lambda which, *_: calls.append(("own after", which)))
    try:
        for seed in range(2):
            optimizer.zero_grad()
            loss_of(model, seed).backward()
            optimizer.step()
        optimizer.synchronize()
    finally:
        for handle in handles:
            handle.remove()
    optimizer.close()
    assert calls == [(when, optimizer) for when in ("before", "own before", "own after", "after")] * 2
