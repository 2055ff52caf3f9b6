"""Stores of other makers, and the interface of MXNet's RFC 16795 on ours."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any, get_args

import gradwire
import numpy as np
import pytest
from gradwire.compress import Compression
from gradwire.gathered_sum import GatheredSum
from gradwire.kv import AbstractKVStore, OwnName
from gradwire.stores import backend, connect


class Echo(AbstractKVStore):
    """The smallest store there is: a worker alone."""

    rank = 0
    num_workers = 1

    def broadcast(self, name: Any, tensor: Any, root_rank: Any = 0) -> None:
        pass

    def push_pull(self, name: Any, tensor: Any, output: Any = None) -> None:
        if output is not None:
            output[...] = tensor


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_registered", {})
    gradwire.kv.register(Echo)


def ones(*shape: int, value: float = 1.0) -> np.ndarray:
    return np.full(shape, value, np.float32)


@pytest.mark.usefixtures("echo")
def test_a_registered_class_is_made_by_name() -> None:
    store = gradwire.kv.create("ECHO")
    assert isinstance(store, Echo)
    assert store.type == "echo"
    assert "echo" in gradwire.kv.stores()
    out = np.zeros(3, np.float32)
    store.push_pull("w", ones(3, value=2), out)
    assert out.tolist() == [2, 2, 2]
    assert not store.is_capable("optimizer")
    with pytest.raises(NotImplementedError, match="'echo' sums and does not update weights"):
        store.set_optimizer("sgd")
    with pytest.raises(NotImplementedError, match="'echo' does not compress"):
        store.set_gradient_compression("2bit")
    with pytest.raises(ValueError, match="unknown capability"):
        store.is_capable("flight")


def test_what_is_no_store_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a class derived from"):
        gradwire.kv.register(dict)  # type: ignore[type-var]
    taken = type("Allreduce", (Echo,), {})
    with pytest.raises(ValueError, match="'allreduce' is a store of gradwire's own"):
        gradwire.kv.register(taken)


def entry(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    found = importlib.metadata.EntryPoint("telegraph", value, backend.ENTRY_POINTS)

    def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
        return [found] if group == backend.ENTRY_POINTS else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


def test_an_entry_point_is_imported_only_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "telegraph_store.py").write_text(
        "from gradwire.kv import AbstractKVStore\n"
        "class Telegraph(AbstractKVStore):\n"
        "    rank, num_workers = 0, 1\n"
        "    def broadcast(self, name, tensor, root_rank=0): pass\n"
        "    def push_pull(self, name, tensor, output=None): pass\n"
        "not_a_store = 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    entry(monkeypatch, "no_such_module:Telegraph")
    assert "telegraph" in gradwire.kv.stores()
    with pytest.raises(ModuleNotFoundError):
        gradwire.kv.create("telegraph")
    entry(monkeypatch, "telegraph_store:Telegraph")
    assert gradwire.kv.create("telegraph").type == "telegraph"
    entry(monkeypatch, "telegraph_store:not_a_store")
    with pytest.raises(TypeError, match=r"telegraph_store:not_a_store .* is 7, expected a class"):
        gradwire.kv.create("telegraph")


def test_the_installed_package_offers_torch() -> None:
    assert "torch" in backend.names()


def test_names_for_type_checkers_are_the_stores() -> None:
    assert list(get_args(OwnName)) == connect.names()


def test_the_rfcs_verbs_on_a_store_of_ours() -> None:
    store = gradwire.kv.create("local")
    assert isinstance(store, AbstractKVStore)
    weight = ones(5, value=3)
    store.broadcast("w", weight, 0)  # as in the RFC: in place, root_rank third
    assert weight.tolist() == [3] * 5
    out = np.zeros(5, np.float32)
    store.push_pull("w", ones(5, value=2), out)
    assert out.tolist() == [2] * 5
    fresh = ones(2, 2, value=4)
    store.push_pull("never declared", fresh)
    assert fresh.tolist() == [[4, 4], [4, 4]]
    other = np.zeros(5, np.float32)
    store.broadcast("v", value=weight, out=other)  # as in MXNet's KVStoreBase
    assert other.tolist() == [3] * 5
    with pytest.raises(ValueError, match="root_rank=7 is no worker"):
        store.broadcast("x", ones(1), 7)
    store.close()


@pytest.mark.parametrize(
    "spec",
    [
        *("2bit:threshold=0.5", "2bit:threshold=0.5,reply=2bit", "2bit:threshold=auto"),
        *("fp16", "1bit", "topk", "int8", "nf2", "nf4", "qsgd", "randomk", "terngrad", "natural"),
    ],
)
def test_gathered_sums_are_those_of_a_store(spec: str) -> None:
    """A local store of one worker does what a server does; several rounds, so that residuals count."""
    store = gradwire.kv.create("local")
    store.engine.set_compression(Compression.parse(spec).spec, Compression.parse(spec).reply)
    gathered = GatheredSum(Compression.parse(spec), 0, lambda payload: [payload])
    random = np.random.default_rng(5)
    (key,) = store.engine.declare([("w", [70_000], "float32")])
    for _ in range(4):
        grad = random.normal(0, 0.4, 70_000).astype(np.float32)
        out = np.zeros_like(grad)
        store.engine.push_pull(key, grad, out).wait()
        np.testing.assert_array_equal(gathered.add("w", grad), out)
    store.close()


@pytest.mark.usefixtures("echo")
def test_a_store_of_another_maker_does_not_go_on_without_a_worker() -> None:
    """on_failure="continue" had been taken, and ignored."""
    assert isinstance(gradwire.kv.create("echo", on_failure="abort"), Echo)
    with pytest.raises(ValueError, match="on_failure='continue' was given, which a store of another maker"):
        gradwire.kv.create("echo", on_failure="continue")
