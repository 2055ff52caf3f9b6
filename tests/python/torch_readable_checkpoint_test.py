"""What gradwire.torch.save_checkpoint() writes, load_checkpoint() can read; else the checkpoint before it stays."""

from __future__ import annotations

import collections
import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import numpy as np
import pytest
import torch
from gradwire.kv import KVStore
from gradwire.torch import readable_bytes
from python.inproc_ranks import run_ranks
from torch import nn

pytestmark = pytest.mark.usefixtures("no_job")


class Marker:
    """An object of the script's."""


class WithExtraState(nn.Linear):
    state: Any = None

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


SEEDING = threading.Lock()  # ranks are threads, which share torch's generator


def distributed(model: nn.Module, store: KVStore) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), "none", store)


def local_steps(model: nn.Module, store: KVStore) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return gw.torch.LocalStepOptimizer(optimizer, model.named_parameters(), "none", store, sync_every=2)


def trained(store: KVStore, make: Callable[[nn.Module, KVStore], Any] = distributed) -> tuple[Any, Any]:
    with SEEDING:
        torch.manual_seed(0)
        model = WithExtraState(3, 2)
    optimizer = make(model, store)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


GENERATORS = {
    "numpy.random": lambda: np.random.RandomState(3).get_state(),
    "Generator": lambda: np.random.default_rng(3).bit_generator.state,
    "torch": lambda: torch.Generator().get_state().numpy(),
}
ARRAYS = [
    *(
        np.arange(6).astype(dtype).reshape(2, 3)
        for dtype in ("?", "i1", "u2", "i8", "f2", "f4", "f8", "c8", "U4")
    ),
    np.arange(6.0).reshape(2, 3).T,
    np.zeros((0, 3), np.float32),
    np.array(4),
]


@pytest.mark.parametrize("generator", GENERATORS)
def test_random_generators_go_on(generator: str, tmp_path: Path, local_store: KVStore) -> None:
    model, optimizer = trained(local_store)
    state = GENERATORS[generator]()
    gw.torch.save_checkpoint(tmp_path, model, optimizer, {"rng": state})
    again = gw.kv.create("local")
    found = gw.torch.load_checkpoint(tmp_path, *fresh(again))["rng"]
    again.close()
    assert pickle.dumps(found, 2) == pickle.dumps(state, 2)
    if generator == "numpy.random":
        one, other = np.random.RandomState(), np.random.RandomState()
        one.set_state(state)
        other.set_state(found)
        assert one.rand(5).tolist() == other.rand(5).tolist()


def fresh(store: KVStore, make: Callable[[nn.Module, KVStore], Any] = distributed) -> tuple[Any, Any]:
    model = WithExtraState(3, 2)
    return model, make(model, store)


@pytest.mark.parametrize("make", [distributed, local_steps])
def test_a_learning_rate_of_numpys_comes_back(
    make: Callable[[nn.Module, KVStore], Any], tmp_path: Path, local_store: KVStore
) -> None:
    model, optimizer = trained(local_store, make)
    optimizer.param_groups[0]["lr"] = 0.05 * (1 + np.cos(0.3))  # as a schedule in NumPy gives
    if make is local_steps:
        optimizer.outer.param_groups[0]["lr"] = np.float32(0.3)
    gw.torch.save_checkpoint(tmp_path, model, optimizer)
    again = gw.kv.create("local")
    _, loaded = fresh(again, make)
    gw.torch.load_checkpoint(tmp_path, model, loaded)
    assert loaded.param_groups[0]["lr"] == 0.05 * (1 + np.cos(0.3))
    if make is local_steps:
        assert loaded.outer.param_groups[0]["lr"] == np.float32(0.3)
    again.close()


def test_arrays_and_numbers_of_numpys_come_back() -> None:
    numbers = [np.float64(0.5), np.float32(0.1), np.int64(-3), np.bool_(True), np.complex64(1j)]
    for value in [*ARRAYS, *numbers]:
        found = readable_bytes.read(readable_bytes.write({"extra": value}))["extra"]
        assert type(found) is type(value)
        np.testing.assert_array_equal(found, value, strict=True)


def test_threads_read_at_a_time() -> None:
    """torch's list of what is safe is the process's."""
    written, errors = readable_bytes.write({"extra": np.float64(0.5)}), []

    def read() -> None:
        try:
            for _ in range(100):
                readable_bytes.read(written)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_what_the_script_has_made_safe_stays_so() -> None:
    torch.serialization.add_safe_globals([np.ndarray, Marker])
    try:
        readable_bytes.read(readable_bytes.write({"extra": np.ones(2), "other": Marker()}))
        assert {np.ndarray, Marker} <= set(torch.serialization.get_safe_globals())
    finally:
        torch.serialization.clear_safe_globals()
    readable_bytes.write({"extra": np.ones(2)})
    assert not torch.serialization.get_safe_globals()


UNREADABLE = [
    ("extra['a'][1]", {"a": [1, Marker()]}, "Marker"),
    ("extra", lambda: 1, "function"),
    ("a key of extra", {Marker: 1}, "builtins.type"),
    ("extra['rows']", {"rows": np.array([Marker()], object)}, "of dtype object"),
    ("extra['paths'][0]", {"paths": (Path("a"),)}, "Path"),
    ("extra", collections.deque([1]), "collections.deque"),
]


@pytest.mark.parametrize("make", [distributed, local_steps])
def test_what_could_not_be_read_is_refused_on_all_ranks(
    make: Callable[[nn.Module, KVStore], Any], tmp_path: Path
) -> None:
    """Rank 1 alone has it; what was in the folder is there after it."""
    texts: list[list[str]] = [[], []]

    def body(store: KVStore) -> None:
        model, optimizer = trained(store, make)
        gw.torch.save_checkpoint(tmp_path, model, optimizer, {"step": 1})
        for _, extra, _ in UNREADABLE:
            with pytest.raises(TypeError) as raised:
                gw.torch.save_checkpoint(tmp_path, model, optimizer, extra if store.rank == 1 else None)
            texts[store.rank].append(str(raised.value))
        store.barrier()

    run_ranks(2, body)
    assert texts[0] == texts[1]
    for text, (named, _, kind) in zip(texts[0], UNREADABLE, strict=True):
        assert f"worker 1: gradwire.torch: save_checkpoint: {named} is a " in text
        assert kind in text

    def load(store: KVStore) -> None:
        assert gw.torch.load_checkpoint(tmp_path, *fresh(store, make)) == {"step": 1}

    run_ranks(2, load)


def test_what_a_module_keeps_is_named(tmp_path: Path, local_store: KVStore) -> None:
    model, optimizer = trained(local_store)
    model.state = {"seen": np.arange(3)}
    gw.torch.save_checkpoint(tmp_path, model, optimizer)
    model.state = {"seen": Marker()}
    with pytest.raises(TypeError, match=r"model\['_extra_state'\]\['seen'\] is a .*Marker"):
        gw.torch.save_checkpoint(tmp_path, model, optimizer)
    model.state = None
    optimizer.param_groups[0]["schedule"] = Marker()
    with pytest.raises(TypeError, match=r"optimizer\['param_groups'\]\[0\]\['schedule'\] is a .*Marker"):
        gw.torch.save_checkpoint(tmp_path, model, optimizer)


def save_as_before(folder: Path, store: KVStore, state: Any) -> None:
    """What earlier versions wrote without a look at it."""
    written = io.BytesIO()
    torch.save(state, written)
    store.save_checkpoint(folder, written.getvalue())


def test_checkpoints_of_before(tmp_path: Path, local_store: KVStore) -> None:
    model, optimizer = trained(local_store)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with_numpy, with_objects, of_the_store = (tmp_path / name for name in ("numpy", "objects", "store"))
    save_as_before(with_numpy, local_store, {**state, "extra": np.random.RandomState(3).get_state()})
    save_as_before(with_objects, local_store, {**state, "extra": Marker()})
    local_store.save_checkpoint(of_the_store, b"of a script's own")
    again = gw.kv.create("local")
    given = fresh(again)
    with pytest.raises(ValueError, match=r"holds a \S*Marker, which is not made from a file") as raised:
        gw.torch.load_checkpoint(with_objects, *given)
    assert "weights_only" not in str(raised.value)
    with pytest.raises(ValueError, match="was not written by gradwire"):
        gw.torch.load_checkpoint(of_the_store, *given)
    assert gw.torch.load_checkpoint(with_numpy, *given)[0] == "MT19937"
    again.close()
