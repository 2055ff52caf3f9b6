"""DistributedOptimizer with overlap_step: when sums are awaited, and what is refused. Ranks are threads, so that one
can hold back a gradient until the other has got somewhere. torch_overlap_cases.py compares whole trainings.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from gradwire import joining, settings
from gradwire.torch.parameter_guard import keeper_of, release
from python.inproc_ranks import await_event, run_ranks
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

torch_optimizer = sys.modules["torch.optim.optimizer"]  # torch.optim has deleted the name


@pytest.fixture
def store() -> Iterator[gw.kv.KVStore]:
    """A local store that compresses, so that hooks are at work."""
    store = gw.kv.create("local")
    store.set_gradient_compression("fp16")
    yield store
    store.close()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


with torch.random.fork_rng():
    torch.manual_seed(0)
    FRESH = Net()  # made once: ranks are threads, and would draw from one generator


def make() -> Net:
    return copy.deepcopy(FRESH)


def wrap(model: nn.Module, store: gw.kv.KVStore, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return gw.torch.DistributedOptimizer(
        optimizer, model.named_parameters(), store=store, overlap_step=True, **options
    )


def batch(seed: int) -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))


def loss_of(model: nn.Module, seed: int) -> torch.Tensor:
    return model(batch(seed)).square().mean()


def under_way(model: nn.Module) -> set[str]:
    """Names of the parameters whose sums have not been taken in."""
    return {name for name, p in model.named_parameters() if keeper_of(p) is not None}


# ---- when sums are awaited -------------------------------------------------------------------------------------


def test_the_next_forward_begins_before_the_last_sum_has_arrived() -> None:
    """Rank 1 does not finish its gradient of the second layer before rank 0 has run the first one again."""
    ran_again = threading.Event()
    seen: list[tuple[str, set[str]]] = []

    def quick(store: gw.kv.KVStore) -> None:
        model = make()
        optimizer = wrap(model, store)
        loss_of(model, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        for layer in (model.first, model.second):
            layer.register_forward_hook(lambda which, *_: seen.append((repr(which), under_way(model))))
        model.first.register_forward_hook(lambda *_: ran_again.set())
        loss_of(model, 1).backward()
        optimizer.step()
        optimizer.close()

    def late(store: gw.kv.KVStore) -> None:
        model = make()
        optimizer = wrap(model, store)
        behind = model.second(torch.ones(2, 6))
        behind.register_hook(lambda _: await_event(ran_again, "rank 0's next forward pass"))
        front = model.first(batch(2))  # made later, so that its gradient comes first
        (behind.sum() + front.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss_of(model, 3).backward()
        optimizer.step()
        optimizer.close()

    run_ranks(2, lambda store: late(store) if store.rank else quick(store))
    (_, at_first), (_, at_second) = seen
    assert {"second.weight", "second.bias"} <= at_first
    assert not at_first & {"first.weight", "first.bias"}
    assert not at_second & {"second.weight", "second.bias"}


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


class LetsGoWhenLookedAt(list[nn.Parameter]):
    """As when another thread takes their sums in, just after somebody has found them guarded."""

    def __iter__(self) -> Iterator[nn.Parameter]:
        yield from super().__iter__()
        for parameter in super().__iter__():
            release(parameter)


def test_a_parameter_that_another_thread_has_released_meanwhile_is_read(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store)
    loss_of(model, 0).backward()
    assert torch.stack(LetsGoWhenLookedAt([model.first.bias])).shape == (1, 6)
    optimizer.close()


def test_a_step_that_ends_beside_a_copy_leaves_no_guard(store: gw.kv.KVStore) -> None:
    """Another thread steps at the moment at which the parameter is torch's own."""
    model = make()
    optimizer = wrap(model, store)
    loss_of(model, 0).backward()

    def finish() -> None:
        optimizer.step()
        optimizer.synchronize()

    other = threading.Thread(target=finish)

    class Memo(dict[int, Any]):
        def get(self, key: int, default: Any = None) -> Any:
            if type(model.first.weight) is nn.Parameter and other.ident is None:
                other.start()
                other.join(0.3)
            return super().get(key, default)

    copied = copy.deepcopy(model.first.weight, Memo())
    other.join()
    assert not under_way(model)
    assert torch.equal(copied, make().first.weight)
    optimizer.close()


def test_threads_may_read_while_sums_arrive(store: gw.kv.KVStore) -> None:
    """As a thread that serves, and one that keeps an average, beside the one that trains."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    optimizer = wrap(model, store)
    done, failures = threading.Event(), []

    def read() -> None:
        try:
            while not done.is_set():
                nn.utils.parameters_to_vector(model.parameters())
                copy.deepcopy(model[-1].weight)
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for each in readers:
        each.start()
    for seed in range(20):
        optimizer.zero_grad()
        loss_of(model, seed).backward()
        optimizer.step()
    done.set()
    for each in readers:
        each.join()
    optimizer.close()
    assert not failures


def test_the_optimizer_is_kept_while_a_step_is_under_way() -> None:
    """As by a function that trains and returns the model."""
    left = threading.Event()

    def weights_after(store: gw.kv.KVStore) -> Net:
        model = make()
        optimizer = wrap(model, store)
        loss = loss_of(model, store.rank)
        if store.rank == 1:
            await_event(left, "the end of rank 0's function")
        loss.backward()
        optimizer.step()
        return model

    def train(store: gw.kv.KVStore) -> None:
        model = weights_after(store)
        left.set()
        assert not torch.equal(model.first.weight, make().first.weight)
        assert not torch.equal(model.second.weight, make().second.weight)

    run_ranks(2, train)


def test_closing_the_store_ends_the_step(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store)
    loss_of(model, 0).backward()
    optimizer.step()
    store.close()
    assert not under_way(model)
    assert not torch.equal(model.first.weight, make().first.weight)


def test_a_forked_process_is_told_instead_of_waiting_for_ever(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store)
    loss_of(model, 0).backward()
    child = os.fork()
    if child == 0:  # where nothing of pytest is to run
        try:
            optimizer.synchronize()
        except RuntimeError as error:
            os._exit(0 if "was forked" in str(error) else 2)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    optimizer.step()
    optimizer.close()


@pytest.mark.parametrize("call", ["synchronize", "step", "zero_grad", "read", "copy"])
def test_a_process_that_is_forked_while_another_thread_takes_sums_in_does_not_hang(
    call: str, store: gw.kv.KVStore
) -> None:
    model = make()
    optimizer = wrap(model, store)
    loss_of(model, 0).backward()
    if call in ("read", "copy"):
        optimizer.step()
    kept = [p for p in model.parameters() if keeper_of(p) is not None]
    held, release_it = threading.Event(), threading.Event()

    def hold() -> None:
        with optimizer._reducer._lock:
            held.set()
            release_it.wait()

    other = threading.Thread(target=hold)
    other.start()
    await_event(held, "the other thread")
    child = os.fork()
    if child == 0:  # where nothing of pytest is to run
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        use = {"read": lambda: kept and kept[0].sum(), "copy": lambda: kept and copy.deepcopy(kept[0])}
        try:
            use.get(call, getattr(optimizer, call, None))()
        except RuntimeError as error:
            os._exit(0 if "was forked" in str(error) else 2)
        os._exit(0 if not kept else 1)
    release_it.set()
    other.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    optimizer.step()
    optimizer.close()


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


def test_after_a_failure_weights_can_be_read_once_it_is_said_that_a_step_is_in_part() -> None:
    stepped = threading.Event()

    def train(store: gw.kv.KVStore) -> None:
        model = make()
        optimizer = wrap(model, store)
        if store.rank == 1:  # leaves in the middle of the job
            assert stepped.wait(60)
            return
        loss_of(model, 0).backward()
        optimizer.step()
        stepped.set()
        for _ in range(2):
            with pytest.raises(
                gw.TransportError, match=r"worker 1 left.*optimizer\.close\(\) to read weights.*in part"
            ):
                model.state_dict()["first.weight"].sum()
        with pytest.warns(RuntimeWarning, match=r"4 of 4 parameters .* without the last step"):
            optimizer.close()
        assert torch.equal(model.first.weight, make().first.weight)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.close()

    run_ranks(2, train)


class Fails(torch.optim.SGD):
    """SGD that does not step while told so."""

    is_told_to = True

    def step(self, closure: Any = None) -> Any:
        if self.is_told_to:
            raise ArithmeticError("as told")
        return super().step(closure)


def test_an_optimizer_that_raises_leaves_nothing_for_the_next_step(store: gw.kv.KVStore) -> None:
    hooks = dict(nn.modules.module._global_forward_pre_hooks)
    model, plain = make(), make()
    inner = Fails(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = gw.torch.DistributedOptimizer(
        inner, model.named_parameters(), store=store, overlap_step=True, codecs={"*": "none"}
    )
    oracle = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    loss_of(model, 0).backward()
    for go_on in (optimizer.step, *[optimizer.synchronize] * 4):  # once for every sum, at most
        with contextlib.suppress(ArithmeticError):
            go_on()
    assert not under_way(model)
    assert nn.modules.module._global_forward_pre_hooks == hooks
    optimizer.is_told_to = False
    for each, weights in ((optimizer, model), (oracle, plain)):
        each.zero_grad()
        loss_of(weights, 1).backward()
        each.step()
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


# ---- what cannot go with it ------------------------------------------------------------------------------------


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
    assert {name for name in joining.names() if joining.sums_in_one_order(name)} == {"nccl", "allreduce_mpi"}


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


# ---- how it is asked for ---------------------------------------------------------------------------------------


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


# ---- urgency ---------------------------------------------------------------------------------------------------


class Recorder:
    """The store's engine, which writes down how urgent each gradient is."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.names: list[str] = []
        self.sent: dict[str, int] = {}
        self.bound: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def declare(self, keys: list[Any]) -> Any:
        ids = self._engine.declare(keys)
        self.names += [name.partition(".")[2].partition(".")[2] for name, _, _ in sorted(keys)]
        return ids

    def push_pull(self, key: int, given: Any, out: Any, priority: int, scale: float) -> Any:
        self.sent[self.names[key]] = priority
        return self._engine.push_pull(key, given, out, priority, scale)

    def bind_slots(self, keys: list[int], arrays: list[Any]) -> None:
        self.bound = [self.names[key] for key in keys]
        self._engine.bind_slots(keys, arrays)


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
    for step in range(3):
        model.first.requires_grad_(step > 0)
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    optimizer.synchronize()
    names = [name for name, _ in model.named_parameters()]
    if overlap_step:
        assert sorted(engine.sent, key=lambda name: -engine.sent[name]) == names
    else:
        assert engine.bound == names  # a slot's number is its urgency
    optimizer.close()


# ---- hooks of a step -------------------------------------------------------------------------------------------


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
