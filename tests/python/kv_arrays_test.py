"""Every kind of array that a store may be given: dtypes, layouts, several devices, and what it refuses."""

from __future__ import annotations

import functools
import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradwire
import numpy as np
import pytest
import torch
from gradwire import _core
from gradwire.kv import KVStore
from gradwire.stores.arrays import numbers_of
from gradwire.stores.devices import DeviceSum
from gradwire.stores.nonfinite import NonfiniteSums
from numpy.testing import assert_array_equal
from python.dlpack_array import CUDA, DlpackArray
from python.small_arrays import SHAPE, ones, pulled

# ------------------------------------------------------------------------------------- how long they are kept


def test_a_call_that_failed_keeps_no_array_of_later_ones(kv: KVStore, tmp_path: Path) -> None:
    """Its own stay until close(), since threads may still read them."""
    kv.init("w", ones())
    kv.pushpull("w", ones())
    kv.save_checkpoint(tmp_path)
    store = gradwire.kv.create("local")
    store.init("w", ones())
    store.load_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="w"):
        store.pull("w", ones())  # a checkpoint of sums has none
    values = [ones() for _ in range(3)]
    watched = [weakref.ref(value) for value in values]
    for _ in range(len(values)):
        store.pushpull("w", values.pop())
    gc.collect()
    assert [reference() for reference in watched] == [None] * 3
    store.close()


def test_a_call_that_has_ended_keeps_no_array(kv: KVStore) -> None:
    kv.init("w", ones())
    grad, out = ones(), ones()
    watched = [weakref.ref(grad), weakref.ref(out)]
    kv.push("w", grad)
    kv.pull("w", out)
    del grad, out
    gc.collect()
    assert [reference() for reference in watched] == [None] * 2


class _SlowToDie:
    """What an array's memory belongs to: other threads run while it ends."""

    def __init__(self) -> None:
        self._memory = np.zeros(4, np.float32)
        self.__array_interface__ = self._memory.__array_interface__

    def __del__(self) -> None:
        time.sleep(0.01)


def _slow_to_die() -> np.ndarray[Any, Any]:
    return np.asarray(_SlowToDie())


def _run_at_once(bodies: list[Callable[[], Any]]) -> None:
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_arrays_end_once_when_several_threads_close() -> None:
    """As at the end of a process, where the main thread and a coordinator's may both close the engine."""
    store = gradwire.kv.create("local")
    (key,) = store.engine.declare([("w", [4], "float32")])
    tickets = [store.engine.push_pull(key, _slow_to_die(), _slow_to_die()) for _ in range(20)]
    for ticket in tickets:
        ticket.wait()
    _run_at_once([store.engine.close] * 4)


def test_arrays_end_once_when_several_threads_push() -> None:
    store = gradwire.kv.create("local")
    keys = store.engine.declare([(f"w{i}", [4], "float32") for i in range(4)])

    def push(key: int) -> None:
        for _ in range(20):
            store.engine.push_pull(key, _slow_to_die(), _slow_to_die()).wait()

    _run_at_once([functools.partial(push, key) for key in keys])
    store.close()


# ------------------------------------------------------------------------------------- devices


def test_values_of_several_devices_are_summed(kv: KVStore) -> None:
    kv.init("w", ones())
    kv.push("w", [ones(value=value) for value in (1, 2, 3.5)])
    assert_array_equal(pulled(kv, "w"), ones(value=6.5))


def test_several_outs_all_get_the_value(kv: KVStore) -> None:
    kv.init("w", ones())
    outs = [ones(value=0) for _ in range(4)]
    kv.pushpull("w", [ones(), ones(value=2)], out=outs)
    for out in outs:
        assert_array_equal(out, ones(value=3))


def test_several_values_in_place(kv: KVStore) -> None:
    kv.init("w", ones())
    values = [ones(), ones(value=2)]
    kv.pushpull("w", values)
    for value in values:
        assert_array_equal(value, ones(value=3))


def test_sums_on_a_device_have_the_bits_of_those_on_the_host() -> None:
    values = np.random.default_rng(5).normal(size=(4, 999)).astype(np.float32)
    total = DeviceSum.add_on_device([torch.from_numpy(value) for value in values])
    assert_array_equal(total.numpy(), DeviceSum("none", NonfiniteSums(0)).add("w", list(values)))


NO_GPU = pytest.mark.skipif(_core.build_info()["cuda_devices"] > 0, reason="this machine has a CUDA device")


@NO_GPU
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_device_that_cannot_be_used_is_refused_with_the_reason(kv: KVStore, dtype: str) -> None:
    kv.init("w", ones())
    key, there = kv.dense.ids["w"], DlpackArray(ones().astype(dtype), CUDA)
    calls = [
        lambda: kv.engine.push(key, there, stream=0),
        lambda: kv.engine.pull(key, there, stream=0),
        lambda: kv.engine.push_pull(key, there, there, stream=0),
        lambda: kv.engine.bind_slots([key], [there]),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="cuda: cannot use device 0: "):
            call()
    kv.push("w", ones())  # nothing of it was sent
    assert_array_equal(pulled(kv, "w"), ones())
    assert kv.engine.counters()["bytes_from_devices"] == kv.engine.counters()["bytes_to_devices"] == 0


def test_randomk_draws_other_elements_in_each_round(kv: KVStore) -> None:
    """The same ones in every round would leave all others to the residual for ever."""
    kv.set_gradient_compression("randomk:ratio=0.25")
    kv.init("w", np.zeros(64, np.float32))
    total, sums = np.zeros(64, np.float32), np.zeros(64, np.float32)
    for _ in range(60):
        kv.pushpull("w", [np.ones(64, np.float32)] * 2, out=total)
        sums += total
    assert sums.min() > 0


@pytest.mark.parametrize("codec", ["qsgd", "natural", "terngrad"])
def test_devices_and_rounds_draw_by_themselves(codec: str) -> None:
    """Else errors of rounding would add up over devices, and over rounds, in place of cancelling out."""
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    seen = set()
    for device in range(2):
        for step in range(2):
            devices = DeviceSum(codec, NonfiniteSums(0))
            for _ in range(step):
                devices.add("w", [np.zeros_like(values)] * 2)
            given = [np.zeros_like(values), np.zeros_like(values)]
            given[device] = values
            seen.add(devices.add("w", given).tobytes())
    assert len(seen) == 4


def test_mxnets_numbers_for_four_devices(kv: KVStore) -> None:
    """tests/nightly/test_kvstore.py of MXNet: threshold .5, rate 2, four devices: 0, 0, 4, 4, 8, then down by 4."""
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.init("w", ones(value=0))
    kv.set_optimizer("test", rescale_grad=2)
    for value, expected in ((0, 0), (0.4, 0), (0.2, 4), (0.2, 4), (0.2, 8)):
        kv.push("w", [ones(value=value) for _ in range(4)])
        assert_array_equal(pulled(kv, "w"), ones(value=expected))
    for k in range(1, 11):
        kv.push("w", [ones(value=-0.5) for _ in range(4)])
        assert_array_equal(pulled(kv, "w"), ones(value=8 - 4 * k))


# ------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtypes_of_numpy(kv: KVStore, dtype: Any) -> None:
    kv.init("w", ones(dtype=dtype))
    kv.push("w", ones(value=0.375, dtype=dtype))
    out = ones(value=0, dtype=dtype)
    kv.pull("w", out=out)
    assert out.dtype == dtype
    assert_array_equal(out, ones(value=0.375, dtype=dtype))
    kv.pushpull("w", out)
    assert_array_equal(out, ones(value=0.375, dtype=dtype))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes_of_torch(kv: KVStore, name: str) -> None:
    dtype = getattr(torch, name)
    kv.init("w", torch.ones(SHAPE, dtype=dtype))
    grad = torch.full(SHAPE, 0.375, dtype=dtype, requires_grad=True)
    out = [torch.zeros(SHAPE, dtype=dtype), torch.zeros(SHAPE, dtype=torch.float32), ones(value=0)]
    kv.pushpull("w", grad, out=out)
    assert out[0].dtype == dtype
    for item in out:
        assert_array_equal(
            np.asarray(item if isinstance(item, np.ndarray) else item.float()), ones(value=0.375)
        )


def test_a_float32_out_of_torch_is_written_where_it_is(kv: KVStore) -> None:
    grad = torch.full(SHAPE, 2.0)
    address = grad.data_ptr()
    kv.init("w", grad)
    kv.pushpull("w", grad)
    assert grad.data_ptr() == address
    assert_array_equal(grad.numpy(), ones(value=2))


@pytest.mark.parametrize("make", [torch.bfloat16, torch.float16, np.float16], ids=str)
def test_arrays_of_16_bits_are_read_and_written_where_they_are(kv: KVStore, make: Any) -> None:
    given = ones(value=1 / 3)
    value = given.astype(make) if make is np.float16 else torch.from_numpy(given).to(make)
    exact = np.asarray(value if make is np.float16 else value.float(), np.float32)
    assert np.shares_memory(_bits(numbers_of("push", "w", value, "float32")), _bits(value))
    kv.init("w", value)
    kv.set_gradient_compression("2bit:threshold=0.25")
    kv.pushpull("w", value)
    assert_array_equal(np.asarray(value if make is np.float16 else value.float()), ones(value=0.25))
    kv.set_gradient_compression("none")
    kv.push("w", value)  # with what the codec has left
    assert_array_equal(pulled(kv, "w"), 0.25 + (exact - np.float32(0.25)))


def _bits(array: Any) -> Any:
    return array.view(np.int16) if isinstance(array, np.ndarray) else array.view(torch.int16).numpy()


def test_values_of_16_bits_of_several_devices_are_summed_in_float32(kv: KVStore) -> None:
    kv.init("w", ones())
    kv.push("w", [ones(value=2048, dtype=np.float16), ones(value=1, dtype=np.float16)])
    assert_array_equal(pulled(kv, "w"), ones(value=2049))
    kv.push("w", [torch.full(SHAPE, value, dtype=torch.bfloat16) for value in (256.0, 1.0)])
    assert_array_equal(pulled(kv, "w"), ones(value=257))


def test_of_several_outs_those_of_float32_get_all_bits(kv: KVStore) -> None:
    kv.init("w", ones())
    outs = [torch.zeros(SHAPE, dtype=torch.bfloat16), torch.zeros(SHAPE), ones(value=0)]
    kv.pushpull("w", ones(value=1 / 3), out=outs)
    assert_array_equal(outs[1].numpy(), ones(value=1 / 3))
    assert_array_equal(outs[2], ones(value=1 / 3))
    assert torch.equal(outs[0], torch.full(SHAPE, 1 / 3, dtype=torch.bfloat16))


def test_arrays_that_are_not_contiguous(kv: KVStore) -> None:
    square = np.arange(24, dtype=np.float32).reshape(4, 6)
    kv.init("w", square[:, ::2])
    assert_array_equal(pulled(kv, "w"), square[:, ::2])
    kv.push("w", square[:, 1::2])
    target = np.zeros((3, 4), np.float32)
    kv.pull("w", out=target.T)
    assert_array_equal(target.T, square[:, 1::2])
    wide = np.zeros((4, 6), np.float32)
    kv.pushpull("w", square[:, 3:], out=wide[:, ::2])
    assert_array_equal(wide[:, ::2], square[:, 3:])
    assert not wide[:, 1::2].any()


def test_torch_arrays_that_are_not_contiguous(kv: KVStore) -> None:
    square = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    kv.init("w", square[:, ::2])
    out = torch.zeros(3, 4)
    kv.pushpull("w", square[:, 1::2], out=out.T)
    assert torch.equal(out.T, square[:, 1::2])


def test_a_scalar_and_an_array_of_one_element(kv: KVStore) -> None:
    kv.init("scalar", np.float32(2).reshape(()))
    kv.init("one", ones(1))
    out = np.zeros((), np.float32)
    kv.pushpull("scalar", np.full((), 5, np.float32), out=out)
    assert out == 5


def test_an_array_of_several_partitions(kv: KVStore) -> None:
    random = np.random.default_rng(0)
    grad = random.normal(size=600_011).astype(np.float32)
    kv.init("w", np.zeros_like(grad))
    out = np.zeros_like(grad)
    kv.pushpull("w", grad, out=out)
    assert_array_equal(out, grad)


# ------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("out", [None, 1.5, "w"])
def test_an_out_that_is_no_array(kv: KVStore, out: Any) -> None:
    kv.init("w", ones())
    with pytest.raises(TypeError, match="out of key 'w'"):
        kv.pull("w", out=out)


def test_an_out_of_whole_numbers(kv: KVStore) -> None:
    kv.init("w", ones())
    with pytest.raises(ValueError, match="int32"):
        kv.pull("w", out=np.zeros(SHAPE, np.int32))


def test_an_out_of_another_shape_among_several(kv: KVStore) -> None:
    kv.init("w", ones(4))
    with pytest.raises(ValueError, match=r"\(4,\).*\(2, 4\)"):
        kv.pull("w", out=[ones(4), ones(2, 4)])


@pytest.mark.parametrize("position", [0, 1])
def test_a_read_only_out(kv: KVStore, position: int) -> None:
    kv.init("w", ones())
    outs = [ones(value=0), ones(value=0)]
    outs[position].flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kv.pull("w", out=outs)
    assert not any(out.any() for out in outs)


def test_a_list_without_any_array(kv: KVStore) -> None:
    kv.init("w", ones())
    with pytest.raises(ValueError, match="no array at all"):
        kv.push("w", [])


def test_values_of_different_shapes_for_one_key(kv: KVStore) -> None:
    kv.init("w", ones())
    with pytest.raises(ValueError, match="shapes"):
        kv.push("w", [ones(), ones(2)])
