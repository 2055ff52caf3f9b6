"""The in-process store: every method of MXNet's interface, and its keys."""

from __future__ import annotations

import enum
import functools
import gc
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gradwire
import numpy as np
import pytest
from gradwire import _core
from gradwire.kv import KVStore
from gradwire.stores import nccl
from numpy.testing import assert_array_equal
from python.small_arrays import ones, pulled

pytestmark = pytest.mark.usefixtures("no_job")


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
    done = subprocess.run([sys.executable, "-u", "-c", FORKED], capture_output=True, text=True, timeout=300)
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "dist_sync",
            r"the 4 workers of this job have no servers; use the store 'allreduce', .* -n 4 -s 4 python",
        ),
        (
            "dist_async",
            r"the 4 workers of this job have no servers; start the script with `gradwire run -n 4 -s 4",
        ),
    ],
)
def test_a_job_without_servers_is_told_what_has_none(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun's workers had been sent to 'local', where each would train alone."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match=text) as raised:
        gradwire.kv.create(name)
    assert "'local'" not in str(raised.value)


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


@pytest.mark.usefixtures("job_of_one")
def test_a_store_that_nobody_keeps_stays_the_one_of_its_process() -> None:
    gradwire.kv.create("allreduce").init("a", ones())
    gc.collect()  # a store is in cycles
    store = gradwire.kv.joined()
    assert store is not None
    store.push("a", ones())
    with pytest.raises(ValueError, match="has joined its job already, by the store 'allreduce'"):
        gradwire.kv.create("allreduce")
    store.close()


FAILS_AT_EXIT = """
import gradwire
def fail():
    raise gradwire.TransportError("worker 0 has left")
store = gradwire.kv.create("local")
store.unfinished.add(fail)
"""


def test_a_step_that_fails_when_the_script_has_ended_fails_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", FAILS_AT_EXIT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "TransportError: worker 0 has left" in done.stderr


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


@pytest.mark.parametrize("root", [1, -1, 2**40])
def test_a_broadcast_from_nobody_declares_nothing(kv: KVStore, root: int) -> None:
    with pytest.raises(ValueError, match=f"broadcast: root_rank={root} is no worker's; expected 0 to 0"):
        kv.broadcast("w", ones(), root_rank=root)
    kv.broadcast("w", ones(value=5))
    assert_array_equal(pulled(kv, "w"), ones(value=5))


def test_barrier_under_both_names(kv: KVStore) -> None:
    kv.barrier()
    kv._barrier()


def on_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Makes each call on a thread of its own, and returns what they return."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [call.result(300) for call in [pool.submit(call) for call in calls]]


def test_close_may_be_repeated(kv: KVStore) -> None:
    kv.close()
    kv.close()


def test_threads_may_close_at_once() -> None:
    for _ in range(20):
        network = _core.InprocNetwork(2)
        engines = on_threads([functools.partial(network.connect, rank) for rank in range(2)])
        on_threads([engine.close for engine in engines for _ in range(3)])


# ------------------------------------------------------------------------------------- mistakes


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
    if bad != "key":  # which pushpull() declares
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


class _Name(str, enum.Enum):
    BIAS = "b"


def test_other_kinds_of_text_are_keys(kv: KVStore) -> None:
    """They name what plain text does, and are no other kind of key."""
    kv.init("a", ones())
    kv.init(_Name.BIAS, ones(value=2))
    kv.init(np.array(["c", "d"]), [ones(value=3), ones(value=4)])
    for name, value in zip("abcd", range(1, 5), strict=True):
        assert_array_equal(pulled(kv, name), ones(value=value))
    assert_array_equal(pulled(kv, _Name.BIAS), ones(value=2))


@pytest.mark.parametrize("value", [np.float32(1), gradwire.RowSparse([], [], shape=(2, 2))])
def test_one_value_for_a_list_of_keys(kv: KVStore, value: Any) -> None:
    with pytest.raises(TypeError, match=r"push: 2 keys but a .*, expected a list of one value per key"):
        kv.push(["a", "b"], value)


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


def test_a_closed_store_says_so(kv: KVStore) -> None:
    kv.init("w", ones())
    kv.close()
    with pytest.raises(Exception, match="closed"):
        kv.push("w", ones())


def test_stats_measure_what_has_not_been_sent() -> None:
    store = gradwire.kv.create("local")
    assert store.stats()["residual_norm"] == 0
    assert store.stats()["share_sent"] is None
    store.use_compression(gradwire.compress.Compression.parse("2bit:threshold=0.5"))
    store.init("w", np.zeros(16, np.float32))
    store.push("w", np.full(16, 0.375, np.float32))
    store.pull("w", np.empty(16, np.float32))
    assert store.stats()["residual_norm"] == 1.5
    assert store.stats()["share_sent"] == 0
    store.push("w", np.full(16, 0.375, np.float32))
    store.pull("w", np.empty(16, np.float32))
    assert store.stats()["residual_norm"] == 1.0
    assert store.stats()["share_sent"] == 1 - 0.25**2 / 0.75**2
    store.close()
    assert store.stats()["residual_norm"] is None
    assert store.stats()["share_sent"] is None
