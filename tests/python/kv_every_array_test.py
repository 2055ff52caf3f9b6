"""Every verb of a store, on every kind of array, of every dtype, with and without a codec: one process's sums."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import gradwire as gw
import numpy as np
import pytest
import torch
from gradwire import _core
from gradwire.kv import KVStore
from python.inproc_ranks import run_ranks

VALUES = (0.75, -1.5, 0.25, 0.0)  # of the first device; all dtypes have them exactly
MORE = (0.5, 0.25, 1.0, 0.0)
Make = Callable[[Any, str], Any]


def numpys(values: Any, dtype: str) -> Any:
    return np.array(values, dtype)


def torchs(values: Any, dtype: str) -> Any:
    return torch.tensor(values, dtype=getattr(torch, dtype))


def strided(values: Any, dtype: str) -> Any:
    wide = torch.zeros(len(values), 3, dtype=getattr(torch, dtype))
    wide[:, 1] = torchs(values, dtype)
    return wide[:, 1]


def strided_numpys(values: Any, dtype: str) -> Any:
    wide = np.zeros((len(values), 3), dtype)
    wide[:, 1] = values
    return wide[:, 1]


def with_history(values: Any, dtype: str) -> Any:
    return torchs(values, dtype).requires_grad_()


def negated(values: Any, dtype: str) -> Any:
    return torch._neg_view(-torchs(values, dtype))  # type: ignore[attr-defined]


def cuda(values: Any, dtype: str) -> Any:
    return torchs(values, dtype).cuda()


KINDS: dict[str, Make] = {
    "numpy": numpys,
    "torch": torchs,
    "torch, strided": strided,
    "numpy, strided": strided_numpys,
    "torch, with history": with_history,
    "torch, negated": negated,
} | ({"torch, on CUDA": cuda} if _core.build_info()["cuda_devices"] > 0 else {})
DTYPES = ("float32", "float16", "float64", "bfloat16")
CODECS = ("none", "fp16", "2bit:threshold=0.5")
STORES = ("local", "device", "allreduce")


def plain(array: Any) -> Any:
    return np.asarray(
        array if isinstance(array, np.ndarray) else array.detach().cpu().double().resolve_neg(), np.float64
    )


def encoded(codec: str, values: Any, residual: Any) -> Any:
    """What a codec sends of values, and keeps in residual."""
    given = np.asarray(values, np.float64) + residual
    sent = np.select([given >= 0.5, given <= -0.5], [0.5, -0.5], 0.0) if codec.startswith("2bit") else given
    residual[:] = given - sent
    return sent


class Oracle:
    """Sums of one process. In `local` and `device` each device encodes, elsewhere each worker its devices' sum."""

    def __init__(self, store: str, codec: str) -> None:
        self._of_devices, self._codec = store != "allreduce", codec
        self._ranks = 1 if self._of_devices else 2
        self._residuals = np.zeros((2, len(VALUES)))

    def sum(self, devices: Any) -> Any:
        given = list(devices) if self._of_devices else [np.sum(devices, axis=0)]
        return self._ranks * sum(
            encoded(self._codec, values, residual)
            for values, residual in zip(given, self._residuals, strict=False)
        )


def in_store(name: str, body: Callable[[KVStore], None]) -> None:
    if name == "allreduce":
        return run_ranks(2, body)
    store = gw.kv.create(name)
    try:
        body(store)
    finally:
        store.close()
    return None


def cases() -> Iterator[tuple[str, str, str, str]]:
    for store, codec, kind, dtype in itertools.product(STORES, CODECS, KINDS, DTYPES):
        if not (kind.startswith("numpy") and dtype == "bfloat16"):
            yield store, codec, kind, dtype


def all_verbs(store: KVStore, oracle: Oracle, make: Make, dtype: str) -> None:
    """Each verb on one array, on several devices', and on several keys, beside what one process makes of them."""

    def expect(out: Any, expected: Any, what: str) -> None:
        np.testing.assert_allclose(
            plain(out), expected, rtol=1e-2 if dtype == "bfloat16" else 1e-3, err_msg=what
        )

    first, zeros = make(VALUES, dtype), [0.0] * len(VALUES)
    out = make(zeros, dtype)
    store.init("w", first)
    store.pull("w", out)
    expect(out, VALUES, "pull of a first value")
    store.push("w", first)
    store.pull("w", out)
    expect(out, oracle.sum([VALUES]), "push")
    devices = [make(VALUES, dtype), make(MORE, dtype)]
    store.push("w", devices)
    outs = [make(zeros, dtype), make(zeros, "float32")]
    store.pull("w", outs)
    expected = oracle.sum([VALUES, MORE])
    for each in outs:
        expect(each, expected, "push of two devices, pull to two outs")
    store.pushpull("w", devices, out=out)
    expect(out, oracle.sum([VALUES, MORE]), "pushpull of two devices")
    value = make(VALUES, dtype)
    store.pushpull("w", value)
    expect(value, oracle.sum([VALUES]), "pushpull in place")
    mixed = [make(VALUES, dtype), np.array(MORE, np.float32)]
    store.push_pull("w", mixed, make(zeros, dtype))
    expected = oracle.sum([VALUES, MORE])
    store.pull("w", out)
    expect(out, expected, "push_pull of two kinds")
    store.push(["w", "w"], [make(VALUES, dtype), make(MORE, dtype)])
    store.pull("w", out)
    expect(out, oracle.sum([VALUES, MORE]), "push of a key twice")
    for verb in (store.push_pull, store.pushpull):
        fresh = Oracle(store.type, oracle._codec)
        given = [make(MORE, dtype), make(VALUES, dtype)]
        verb(f"new by {verb.__name__}", given)
        for each in given:
            expected = fresh.sum([MORE, VALUES]) if each is given[0] else plain(given[0])
            expect(each, expected, f"{verb.__name__} of a new key")
    target = make(zeros, dtype)
    store.broadcast("other", make(VALUES, dtype), out=target)
    expect(target, VALUES, "broadcast")


@pytest.mark.parametrize(("store", "codec"), itertools.product(STORES, CODECS))
def test_sums_are_those_of_one_process(store: str, codec: str) -> None:
    for name, each, kind, dtype in cases():
        if (name, each) != (store, codec):
            continue

        def body(opened: KVStore, kind: str = kind, dtype: str = dtype) -> None:
            opened.set_gradient_compression(codec)
            all_verbs(opened, Oracle(store, codec), KINDS[kind], dtype)

        try:
            in_store(store, body)
        except Exception as error:
            raise AssertionError(f"{store}, {codec}, {kind}, {dtype}: {error!r}") from error


SPARSE = {
    "coo": lambda: torch.tensor([0.0, 1.0]).to_sparse(),
    "csr": lambda: torch.tensor([[0.0, 1.0]]).to_sparse_csr(),
}


@pytest.mark.parametrize("layout", SPARSE)
@pytest.mark.parametrize("store", STORES)
def test_a_sparse_tensor_is_refused_in_our_words(store: str, layout: str) -> None:
    def body(opened: KVStore) -> None:
        sparse, dense = SPARSE[layout](), np.zeros(2, np.float32)
        opened.init("w", dense)
        calls: list[Callable[[], Any]] = [
            lambda: opened.init("new", sparse),
            lambda: opened.push("w", sparse),
            lambda: opened.push("w", [dense, sparse]),
            lambda: opened.pull("w", sparse),
            lambda: opened.pull("w", [dense, sparse]),
            lambda: opened.pushpull("w", sparse),
            lambda: opened.pushpull("w", dense, out=sparse),
            lambda: opened.push_pull("newer", sparse),
            lambda: opened.broadcast("newest", sparse),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"torch.sparse_\w+ tensor.*to_dense\(\).*RowSparse"):
                call()
        opened.pushpull("w", dense)  # nothing of them was sent

    in_store(store, body)


def test_an_out_whose_elements_are_one_in_memory_is_refused() -> None:
    store = gw.kv.create("local")
    store.init("w", np.zeros(4, np.float32))
    store.push("w", torch.zeros(1).expand(4))  # to be read it is as good as any
    with pytest.raises(ValueError, match=r"out of key 'w' are one in memory.*clone"):
        store.pull("w", torch.zeros(1).expand(4))
    store.close()
