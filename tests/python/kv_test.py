"""The in-process store: every method of MXNet's interface, and every kind of array it may be given."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gradwire
import numpy as np
import pytest
import torch
from gradwire import _core, nccl
from gradwire.devices import DeviceSum
from gradwire.kv import KVStore
from numpy.testing import assert_array_equal
from python.dlpack_array import CUDA, DlpackArray

SHAPE = (4, 3)


def ones(*shape: int, value: float = 1.0, dtype: Any = np.float32) -> Any:
    return np.full(shape or SHAPE, value, dtype)


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GRADWIRE_ROLE", "DMLC_ROLE", "GRADWIRE_COMPRESSION"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(params=["local", "device"])
def kv(request: pytest.FixtureRequest) -> Iterator[KVStore]:
    store = gradwire.kv.create(request.param)
    yield store
    store.close()


def pulled(kv: KVStore, key: Any, shape: tuple[int, ...] = SHAPE) -> Any:
    out = np.full(shape, np.nan, np.float32)
    kv.pull(key, out=out)
    return out


# ------------------------------------------------------------------------------------- what it is


def test_stores_lists_what_create_takes() -> None:
    assert gradwire.kv.stores() == [
        *("local", "local_update_cpu", "local_allreduce_cpu", "device", "local_allreduce_device"),
        *("dist", "dist_sync", "dist_sync_device", "dist_device_sync"),
        *("dist_async", "dist_async_device", "dist_device_async", "p3", "byteps"),
        *("allreduce", "horovod", "dist_sync_mpi", "allreduce_mpi", "nccl"),
        "torch",  # by its entry point
    ]


def test_type_rank_and_number_of_workers(kv: KVStore) -> None:
    assert kv.type in ("local", "device")
    assert (kv.rank, kv.num_workers) == (0, 1)


def test_a_name_in_capitals_is_the_same_store() -> None:
    store = gradwire.kv.create("LOCAL")
    assert store.type == "local"
    store.close()


FORKED = """
import os, sys, gradwire, numpy as np
store = gradwire.kv.create("local")
value = np.ones(5, np.float32)
store.init("a", value)
child = os.fork()
if child == 0:
    print("child is", store.rank, "of", store.num_workers)
    for call in (lambda: store.push("a", value), store.barrier):
        try:
            call()
        except RuntimeError as error:
            print("child:", error)
    sys.exit(0)  # with all that Python does at its end
_, status = os.waitpid(child, 0)
store.pushpull("a", value)
print("child ended with", status, "and the parent goes on")
"""


def test_a_forked_process_is_refused_and_ends() -> None:
    done = subprocess.run([sys.executable, "-u", "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "child is 0 of 1\n" in done.stdout
    assert (
        len(re.findall(r"child: the store was opened by process \d+, from which this one", done.stdout)) == 2
    )
    assert "child ended with 0 and the parent goes on" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 0.5, None, "1"])
def test_a_priority_is_a_number_of_32_bits(priority: Any, kv: KVStore) -> None:
    kv.init("a", ones())
    for call in (kv.push, kv.pull, kv.pushpull):
        with pytest.raises(ValueError, match="expected a whole number that 32 bits hold"):
            call("a", ones(), priority=priority)


def test_a_key_that_is_no_text(kv: KVStore) -> None:
    with pytest.raises(ValueError, match="is not text that UTF-8 can write"):
        kv.init("\ud800", ones())


@pytest.fixture
def job_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("GRADWIRE_MASTER", f"tcp://127.0.0.1:{probe.getsockname()[1]}")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


@pytest.mark.usefixtures("job_of_one")
def test_a_process_joins_its_job_once() -> None:
    local = gradwire.kv.create("local")
    assert gradwire.kv.joined() is None
    store = gradwire.kv.create("allreduce")
    assert gradwire.kv.joined() is store
    with pytest.raises(ValueError, match="has joined its job already, by the store 'allreduce'; use that"):
        gradwire.kv.create("dist_sync")
    store.close()
    assert gradwire.kv.joined() is None
    local.close()


def test_nccl_without_a_gpu_says_why_and_what_else(monkeypatch: pytest.MonkeyPatch) -> None:
    if nccl.why_not() is None:
        monkeypatch.setattr(nccl, "why_not", lambda: "NCCL 2.32.3 is here, but no GPU is: none is listed")
    with pytest.raises(gradwire.TransportError, match=r"^kv.create\('nccl'\): .+; use the store 'allreduce'"):
        gradwire.kv.create("nccl")
    assert gradwire.kv.joined() is None


def test_nccl_in_a_job_with_servers_is_told_to_start_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "why_not", lambda: None)
    monkeypatch.setenv("GRADWIRE_SCHEDULER", "tcp://127.0.0.1:1")
    monkeypatch.setenv("GRADWIRE_NUM_WORKERS", "2")
    monkeypatch.setenv("GRADWIRE_NUM_SERVERS", "2")
    with pytest.raises(ValueError, match=r"gradwire run -n 2 -s 0 python script\.py"):
        gradwire.kv.create("nccl")


@pytest.mark.parametrize("name", [None, 3, b"local"])
def test_a_name_that_is_no_text(name: Any) -> None:
    with pytest.raises(TypeError, match="expected a string"):
        gradwire.kv.create(name)


def test_capabilities(kv: KVStore) -> None:
    assert kv.is_capable("optimizer")
    assert kv.is_capable("gradient_compression")
    assert kv.is_capable("gradient_compression:2bit")
    assert not kv.is_capable("gradient_compression:zip")
    with pytest.raises(ValueError, match="unknown capability"):
        kv.is_capable("optimiser")


# ------------------------------------------------------------------------------------- verbs


def test_init_then_pull(kv: KVStore) -> None:
    kv.init(3, ones(value=2))
    assert_array_equal(pulled(kv, 3), ones(value=2))


def test_pull_gives_the_last_push_and_not_what_was_before(kv: KVStore) -> None:
    kv.init("w", ones(value=9))
    for value in (1.0, 2.5, -4.0):
        kv.push("w", ones(value=value))
        assert_array_equal(pulled(kv, "w"), ones(value=value))
    assert_array_equal(pulled(kv, "w"), ones(value=-4.0))  # a second pull gives the same


def test_a_pushed_array_may_be_reused_at_once(kv: KVStore) -> None:
    kv.init("w", ones())
    grad = ones(value=7)
    kv.push("w", grad)
    grad[:] = 0
    assert_array_equal(pulled(kv, "w"), ones(value=7))


def test_several_pushes_before_a_pull(kv: KVStore) -> None:
    kv.init("w", ones())
    for value in range(20):
        kv.push("w", ones(value=value), priority=value)
    assert_array_equal(pulled(kv, "w"), ones(value=19))


def test_lists_of_keys_and_values(kv: KVStore) -> None:
    keys = [5, 7, 11]
    kv.init(keys, [ones(value=key) for key in keys])
    kv.push(keys, [ones(value=10 * key) for key in keys])
    outs = [ones(value=0) for _ in keys]
    kv.pull(keys, out=outs)
    for key, out in zip(keys, outs, strict=True):
        assert_array_equal(out, ones(value=10 * key))
    assert_array_equal(pulled(kv, 7), ones(value=70))


def test_a_tuple_of_keys(kv: KVStore) -> None:
    kv.init(("a", "b"), (ones(), ones(2)))
    assert_array_equal(pulled(kv, "b", (2,)), ones(2))


def test_pushpull_in_place(kv: KVStore) -> None:
    kv.init("w", ones())
    grad = ones(value=3)
    kv.pushpull("w", grad)
    assert_array_equal(grad, ones(value=3))


def test_pushpull_leaves_its_input_alone(kv: KVStore) -> None:
    kv.init("w", ones())
    kv.set_optimizer("test", rescale_grad=2)
    grad, out = ones(value=3), ones(value=0)
    kv.pushpull("w", grad, out=out)
    assert_array_equal(grad, ones(value=3))
    assert_array_equal(out, ones(value=7))


def test_pushpull_of_many_keys_at_once(kv: KVStore) -> None:
    keys = [f"layer{i}" for i in range(40)]
    kv.init(keys, [ones(i + 1) for i in range(40)])
    grads = [ones(i + 1, value=i) for i in range(40)]
    outs = [ones(i + 1, value=np.nan) for i in range(40)]
    kv.pushpull(keys, grads, out=outs, priority=-1)
    for grad, out in zip(grads, outs, strict=True):
        assert_array_equal(out, grad)


def test_broadcast(kv: KVStore) -> None:
    outs = [ones(value=0), ones(value=0)]
    kv.broadcast("w", ones(value=5), out=outs)
    for out in outs:
        assert_array_equal(out, ones(value=5))
    with pytest.raises(ValueError, match="declared before"):
        kv.broadcast("w", ones(value=6), out=outs)


def test_barrier_under_both_names(kv: KVStore) -> None:
    kv.barrier()
    kv._barrier()


def test_close_may_be_repeated(kv: KVStore) -> None:
    kv.close()
    kv.close()


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
    assert_array_equal(total.numpy(), DeviceSum("none").add("w", list(values)))


NO_GPU = pytest.mark.skipif(_core.build_info()["cuda_devices"] > 0, reason="this machine has a CUDA device")


@NO_GPU
def test_a_device_that_cannot_be_used_is_refused_with_the_reason(kv: KVStore) -> None:
    kv.init("w", ones())
    key, there = kv._ids["w"], DlpackArray(ones(), CUDA)
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
    torch = pytest.importorskip("torch")
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
    torch = pytest.importorskip("torch")
    grad = torch.full(SHAPE, 2.0)
    address = grad.data_ptr()
    kv.init("w", grad)
    kv.pushpull("w", grad)
    assert grad.data_ptr() == address
    assert_array_equal(grad.numpy(), ones(value=2))


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
    torch = pytest.importorskip("torch")
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


def test_compression_keeps_its_residual(kv: KVStore) -> None:
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    assert kv.compression.spec.startswith("2bit:threshold=0.5")
    assert kv.compression.reply == "exact"
    kv.init("w", ones(value=1))
    assert_array_equal(pulled(kv, "w"), ones(value=1))  # first values are not compressed
    for value, expected in ((0.0, 0), (0.4, 0), (0.1, 0.5), (0.2, 0), (0.3, 0.5), (0.5, 0.5)):
        out = ones(value=np.nan)
        kv.pushpull("w", ones(value=value), out=out)
        assert_array_equal(out, ones(value=expected))


def test_a_setting_overrides_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_COMPRESSION", "fp16")
    store = gradwire.kv.create("local")
    store.set_gradient_compression({"type": "2bit"})
    assert store.compression.spec.startswith("fp16")
    store.close()


def test_sgd_on_the_store(kv: KVStore) -> None:
    kv.init("w", ones(value=2))
    kv.set_optimizer("sgd", learning_rate=0.5)
    kv.push("w", ones(value=1))
    assert_array_equal(pulled(kv, "w"), ones(value=1.5))


TORCH_OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {}, {}),
    "sgd momentum": (torch.optim.SGD, {"momentum": 0.9}, {"momentum": 0.9}),
    "sgd nesterov": (
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"momentum": 0.9, "nesterov": 1, "wd": 0.01},
    ),
    "adam": (torch.optim.Adam, {"weight_decay": 0.01}, {"wd": 0.01}),
    "adam betas": (
        torch.optim.Adam,
        {"betas": (0.8, 0.95), "eps": 1e-3},
        {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3},
    ),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}, {"wd": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"weight_decay": 0.01}, {"wd": 0.01}),
}


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_optimizers_are_those_of_torch(kv: KVStore, name: str) -> None:
    """60 steps from equal weights, gradients from tiny to huge: each within 8 ulp of the weight or its largest change
    so far, the larger one (momentum that has cancelled carries the errors of what it was)."""
    make, theirs, ours = TORCH_OPTIMIZERS[name]
    random = np.random.default_rng(8)
    weight = random.normal(size=1000).astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    optimizer = make([parameter], lr=0.05, **theirs)
    kv.init("w", weight)
    kv.set_optimizer(name.split()[0], learning_rate=0.05, **ours)
    sizes = np.exp(random.normal(size=1000) * 4)
    largest = np.zeros(1000, np.float32)
    for _ in range(60):
        before = weight.copy()
        parameter.data.copy_(torch.from_numpy(before))
        gradient = (random.normal(size=1000) * sizes).astype(np.float32)
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        kv.push("w", gradient)
        kv.pull("w", out=weight)
        largest = np.maximum(largest, np.abs(weight - before))
        size = np.maximum.reduce([np.abs(before), np.abs(weight), largest])
        assert (np.abs(weight - parameter.detach().numpy()) <= 8 * np.spacing(size)).all()


def test_a_learning_rate_changes_and_the_state_stays(kv: KVStore) -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    kv.init("w", np.zeros(4, np.float32))
    kv.set_optimizer("adam", learning_rate=0.1)
    for step in range(6):
        if step == 3:
            kv.set_learning_rate(0.01)
            optimizer.param_groups[0]["lr"] = 0.01
        parameter.grad = torch.tensor([1.0, -2.0, 0.5, float(step)])
        optimizer.step()
        kv.push("w", parameter.grad.numpy())
    np.testing.assert_allclose(pulled(kv, "w", (4,)), parameter.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_have_masters_of_32(kv: KVStore, dtype: torch.dtype) -> None:
    """MXNet's multi_precision: steps that are lost in 16 bits add up, and what is pulled is the master, rounded."""
    kv.init("half", torch.ones(4, dtype=dtype))
    kv.init("full", torch.ones(4))
    kv.set_optimizer("sgd", learning_rate=1e-4)
    half, full = torch.empty(4, dtype=dtype), torch.empty(4)
    for _ in range(300):
        kv.push(["half", "full"], [torch.ones(4, dtype=dtype), torch.ones(4)])
    kv.pull(["half", "full"], out=[half, full])
    assert torch.equal(half, full.to(dtype))
    assert torch.all(half < 0.98)
    assert torch.equal(
        torch.ones(4, dtype=dtype) - 1e-4, torch.ones(4, dtype=dtype)
    )  # a step is lost in 16 bits


def test_another_optimizer_begins_anew(kv: KVStore) -> None:
    kv.init("w", np.zeros(2, np.float32))
    kv.set_optimizer("sgd", learning_rate=1, momentum=0.5)
    kv.push("w", ones(2))
    kv.set_optimizer("adagrad", learning_rate=1)
    kv.push("w", ones(2))
    assert_array_equal(pulled(kv, "w", (2,)), ones(2, value=-2))  # the momentum of -1 is forgotten


def test_a_learning_rate_needs_an_optimizer(kv: KVStore) -> None:
    with pytest.raises(RuntimeError, match=r"call set_optimizer\(\) first"):
        kv.set_learning_rate(0.1)


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


@pytest.mark.parametrize("bad", ["key", "out", "size"])
def test_a_mistake_in_a_list_sends_nothing_of_it(kv: KVStore, bad: str) -> None:
    """Else this worker would be a round ahead in the keys before the mistake, and the job would hang."""
    kv.init(["a", "b"], [ones(value=1), ones(value=2)])
    keys, outs, values = ["a", "b"], [ones(), ones()], [ones(value=8), ones(value=9)]
    if bad == "key":
        keys[1] = "c"
    elif bad == "out":
        outs[1].flags.writeable = False
    else:
        values[1] = ones(5)
    reason = {"key": "not been initialised", "out": "read-only", "size": "5 given"}[bad]
    with pytest.raises(ValueError, match=reason):
        kv.pushpull(keys, values, out=outs)
    assert_array_equal(pulled(kv, "a"), ones(value=1))
    if bad != "out":
        with pytest.raises(ValueError, match=reason):
            kv.push(keys, values)
        assert_array_equal(pulled(kv, "a"), ones(value=1))


@pytest.mark.parametrize("key", [1.5, None, b"w", ["w", 1.5]])
def test_a_key_that_is_neither_text_nor_number(kv: KVStore, key: Any) -> None:
    with pytest.raises(TypeError, match="key"):
        kv.init(key, [ones(), ones()])


def test_a_whole_number_of_numpy_is_a_key(kv: KVStore) -> None:
    kv.init(np.arange(2), [ones(), ones(value=2)])
    assert_array_equal(pulled(kv, 1), ones(value=2))
    assert_array_equal(pulled(kv, np.int64(1)), ones(value=2))


def test_a_list_without_any_array(kv: KVStore) -> None:
    kv.init("w", ones())
    with pytest.raises(ValueError, match="no array at all"):
        kv.push("w", [])


@pytest.mark.parametrize(("given", "first"), [("a", 3), (3, "a")])
def test_int_and_str_keys_do_not_mix(kv: KVStore, given: Any, first: Any) -> None:
    kv.init(first, ones())
    with pytest.raises(ValueError, match="mixed key types"):
        kv.init(given, ones())


def test_a_key_twice(kv: KVStore) -> None:
    kv.init("w", ones())
    with pytest.raises(ValueError, match="declared before"):
        kv.init("w", ones())
    with pytest.raises(ValueError, match="'x'"):
        kv.init(["x", "x"], [ones(), ones()])


def test_values_of_different_shapes_for_one_key(kv: KVStore) -> None:
    kv.init("w", ones())
    with pytest.raises(ValueError, match="shapes"):
        kv.push("w", [ones(), ones(2)])


def test_a_closed_store_says_so(kv: KVStore) -> None:
    kv.init("w", ones())
    kv.close()
    with pytest.raises(Exception, match="closed"):
        kv.push("w", ones())


def test_stats_measure_what_has_not_been_sent() -> None:
    store = gradwire.kv.create("local")
    assert store.stats()["residual_norm"] == 0
    store.use_compression(gradwire.compress.Compression.parse("2bit:threshold=0.5"))
    store.init("w", np.zeros(16, np.float32))
    store.push("w", np.full(16, 0.375, np.float32))
    store.pull("w", np.empty(16, np.float32))
    assert store.stats()["residual_norm"] == 1.5
    store.push("w", np.full(16, 0.375, np.float32))
    store.pull("w", np.empty(16, np.float32))
    assert store.stats()["residual_norm"] == 1.0
    store.close()
    assert store.stats()["residual_norm"] is None
