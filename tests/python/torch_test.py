"""DistributedOptimizer on one rank: what it is to its user, and what it refuses. integration/torch_ranks_test.py has
several ranks.
"""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import warnings
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from integration.torch_programs import Net, images
from python.inproc_ranks import run_ranks
from torch import nn


def wrap(model: nn.Module, store: gw.kv.KVStore, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), store=store, **options)


def backward(model: nn.Module, seed: int) -> None:
    nn.functional.cross_entropy(model(images(seed)), torch.arange(6) % 4).backward()


@pytest.fixture
def store() -> Any:
    """A local store that compresses, so that hooks are at work."""
    store = gw.kv.create("local")
    store.set_gradient_compression("fp16")
    yield store
    store.close()


def test_alone_and_uncompressed_nothing_is_hooked() -> None:
    store = gw.kv.create("local")
    model = Net()
    optimizer = wrap(model, store, momentum_correction=True)
    backward(model, 0)
    assert all(p.grad is None for p in model.unused.parameters())  # as the docstring says
    optimizer.step()
    stepped = [p for name, p in model.named_parameters() if "unused" not in name]
    assert all("momentum_buffer" in optimizer.state[p] for p in stepped)
    store.close()


def test_is_the_optimizer_it_wraps(store: gw.kv.KVStore) -> None:
    model = Net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    early = torch.optim.lr_scheduler.StepLR(inner, 1)  # made before: it patches step() of the inner one
    optimizer = gw.torch.DistributedOptimizer(inner, model.named_parameters(), store=store)
    late = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups is inner.param_groups
    backward(model, 0)
    optimizer.step()
    late.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch thinks that the inner optimizer has not stepped
        early.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    assert set(inner.state) == set(model.parameters())


def test_gradients_are_sent_while_backward_runs(store: gw.kv.KVStore) -> None:
    events = []

    class Recorder:
        """The store's engine, writing down when slots are marked."""

        def __init__(self, engine: Any) -> None:
            self._engine = engine

        def __getattr__(self, name: str) -> Any:
            return getattr(self._engine, name)

        def mark_ready(self, slot: int, *where: Any) -> None:
            events.append(slot)
            self._engine.mark_ready(slot, *where)

    store.engine = Recorder(store.engine)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    optimizer = wrap(model, store)
    model[1].register_full_backward_hook(lambda *_: events.append("relu"))
    model(torch.randn(2, 4)).sum().backward()
    assert sorted(events[: events.index("relu")]) == [2, 3]  # the last layer's weight and bias
    assert sorted(events[events.index("relu") + 1 :]) == [0, 1]
    optimizer.close()


def test_momentum_correction_survives_a_checkpoint(store: gw.kv.KVStore) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = wrap(model, store, momentum_correction=True)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert checkpoint[1]["param_groups"][0]["momentum"] == 0.9
    after = []
    for _ in range(2):
        model.load_state_dict(checkpoint[0])
        optimizer.load_state_dict(copy.deepcopy(checkpoint[1]))
        optimizer.zero_grad()
        backward(model, 7)
        optimizer.step()
        after.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*after, strict=True):  # not equal: fp16's residual has moved on
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
    optimizer.state.clear()
    model.load_state_dict(checkpoint[0])
    backward(model, 7)
    optimizer.step()
    apart = [float((a - b.detach()).abs().max()) for a, b in zip(after[0], model.parameters(), strict=True)]
    assert max(apart) > 1e-2  # what the momentum did


def test_a_closure_is_called_once(store: gw.kv.KVStore) -> None:
    model = Net()
    optimizer = wrap(model, store)
    calls = []

    def closure() -> float:
        optimizer.zero_grad()
        backward(model, 0)
        calls.append(1)
        return 2.5

    before = model.last.weight.detach().clone()
    assert optimizer.step(closure) == 2.5
    assert calls == [1]
    assert not torch.equal(before, model.last.weight)


def test_a_second_optimizer_of_a_model_needs_the_first_one_closed(store: gw.kv.KVStore) -> None:
    model = Net()
    first = wrap(model, store)
    with pytest.raises(ValueError, match="is in a DistributedOptimizer at this store already"):
        wrap(model, store)
    first.close()
    second = wrap(model, store)
    backward(model, 0)
    second.step()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_whose_servers_have_an_optimizer_is_refused(when: str) -> None:
    """The job had died at the first backward(), by a message of the engine's."""

    def body(store: gw.kv.KVStore) -> None:
        model = nn.Linear(4, 2)
        if when == "before":
            store.set_optimizer("sgd", learning_rate=0.1)
            with pytest.raises(ValueError, match=r"set_optimizer\(\) was called on the store 'dist_sync'"):
                wrap(model, store)
            with pytest.raises(ValueError, match=r"set_optimizer\(\) was called on the store 'dist_sync'"):
                gw.torch.LocalStepOptimizer(
                    torch.optim.SGD(model.parameters(), lr=0.1), store=store, sync_every=2
                )
            return
        optimizer = wrap(model, store)
        store.set_optimizer("sgd", learning_rate=0.1)
        with pytest.raises(ValueError, match=r"set_optimizer\(\) was called on the store 'dist_sync'"):
            model(torch.ones(3, 4)).sum().backward()
        optimizer.close()

    run_ranks(2, body, "dist_sync")


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("options", [{}, {"momentum_correction": True}, {"overlap_step": True}], ids=str)
def test_to_drop_an_optimizer_is_not_to_close_it(
    collects: bool, options: dict[str, Any], store: gw.kv.KVStore
) -> None:
    """Whether a second one was refused had depended on what the garbage collector had done on each rank."""
    model = Net()

    def fold() -> Any:
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = gw.torch.DistributedOptimizer(inner, model.named_parameters(), "2bit", store, **options)
        backward(model, 0)
        optimizer.step()
        return optimizer

    fold().close()
    fold()
    if collects:
        gc.collect()
    with pytest.raises(ValueError, match=r"close\(\) the other first: it is not enough to drop it"):
        fold()


def test_a_layer_used_twice_in_a_reentrant_checkpoint_is_refused(store: gw.kv.KVStore) -> None:
    model = nn.Linear(4, 4)
    optimizer = wrap(model, store)
    h = torch.randn(2, 4, requires_grad=True)
    for _ in range(2):
        h = torch.utils.checkpoint.checkpoint(model, h, use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        h.sum().backward()
    optimizer.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"momentum_correction": "yes"}, "momentum_correction='yes'"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0"),
        ({"backward_passes_per_step": "2"}, "backward_passes_per_step='2'"),
        ({"on_nonfinite": "stop"}, "on_nonfinite='stop'"),
        ({"max_grad_norm": 0}, "max_grad_norm=0"),
        ({"max_grad_norm": "1"}, "max_grad_norm='1': expected a number above 0"),
        ({"max_grad_norm": 1.0, "momentum_correction": True}, "max_grad_norm, which acts on gradients"),
        ({"codecs": {"cnov.*": "int8"}}, "no parameter's name matches 'cnov.*'.*'conv"),
        ({"codecs": {"conv.*": "int9"}}, "int8"),
        ({"warm_up": ["fp16"]}, "warm_up holds 'fp16'"),
        ({"warm_up": [("fp16", 0)]}, "for how many steps"),
        ({"compression": "2bits"}, "2bit"),
        ({"compression": "2bit:threshold=0"}, "threshold"),
        ({"named_parameters": []}, "10 of the optimizer's 10 parameters"),
        ({"named_parameters": [nn.Parameter()]}, "not a \\(name, parameter\\) pair"),
        ({"named_parameters": [("a", nn.Parameter()), ("a", nn.Parameter())]}, "'a' more than once"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], text: str, store: gw.kv.KVStore) -> None:
    model = Net()
    arguments = {"named_parameters": model.named_parameters(), **arguments}
    with pytest.raises(ValueError, match=text):
        gw.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), store=store, **arguments)


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_complex_parameters_keep_both_parts(compression: str, store: gw.kv.KVStore) -> None:
    """They had been refused. Of several ranks: float64_test.py."""
    model = nn.ParameterDict({"phase": nn.Parameter(torch.zeros(3, dtype=torch.complex64))})
    optimizer = wrap(model, store, compression=compression)
    (model["phase"] * torch.tensor([1 + 2j, 3, -1j])).real.sum().backward()
    torch.testing.assert_close(model["phase"].grad, torch.tensor([1 - 2j, 3, 1j]))
    optimizer.close()


def test_things_of_another_kind_are_named(store: gw.kv.KVStore) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"optimizer is a Linear, expected a torch\.optim\.Optimizer"):
        gw.torch.DistributedOptimizer(model, store=store)
    with pytest.raises(TypeError, match=r"store is 'local', expected what gradwire\.kv\.create\(\) returns"):
        gw.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), store="local")
    weights = torch.optim.SGD(model.parameters(), lr=0.1)
    for arguments, text in (
        ({"grad_scaler": 1024.0}, r"grad_scaler is 1024\.0, expected a torch\.amp\.GradScaler"),
        ({"codecs": ["*"]}, r"codecs is \['\*'\], expected a mapping"),
        ({"compression": 5}, "the codec is 5, expected text"),
        ({"warm_up": 5}, "warm_up is 5, expected a list"),
        ({"named_parameters": model}, r"named_parameters is a Linear.*pass model\.named_parameters\(\)"),
    ):
        with pytest.raises(TypeError, match=text):
            gw.torch.DistributedOptimizer(weights, store=store, **arguments)
    for given in (model, model.parameters()):
        with pytest.raises(TypeError, match=r"expected names with tensors; pass model\.state_dict\(\)"):
            gw.torch.broadcast_parameters(given, store=store)


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_a_step_with_a_nan_is_skipped_alone_too(compression: str) -> None:
    store = gw.kv.create("local")
    model = nn.Linear(4, 3)
    optimizer = wrap(model, store, compression=compression, on_nonfinite="skip_step")
    before = copy.deepcopy(model.state_dict())

    def step(value: float) -> None:
        optimizer.zero_grad()
        model(torch.full((2, 4), value)).sum().backward()
        optimizer.step()

    with pytest.warns(RuntimeWarning, match="no rank takes this step"):
        step(float("nan"))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    step(1.0)
    assert not torch.equal(model.weight, before["weight"])
    store.close()


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.Adam(p), lambda p: torch.optim.SGD(p, lr=0.1)], ids=["adam", "no momentum"]
)
def test_momentum_correction_needs_momentum(make: Any, store: gw.kv.KVStore) -> None:
    model = Net()
    with pytest.raises(ValueError, match="momentum"):
        gw.torch.DistributedOptimizer(
            make(model.parameters()), model.named_parameters(), store=store, momentum_correction=True
        )
    optimizer = gw.torch.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), "2bit", store, momentum_correction="auto"
    )
    assert not optimizer.momentum_correction


def test_gradwire_by_itself_does_not_import_torch() -> None:
    program = "import sys, gradwire, gradwire.kv, gradwire.compress; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=300).returncode == 0
