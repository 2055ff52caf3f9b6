"""What a store does with pushes: compresses them, and updates weights by an optimizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gradwire
import numpy as np
import pytest
import torch
from gradwire.kv import KVStore
from numpy.testing import assert_array_equal
from python.inproc_ranks import run_ranks
from python.small_arrays import ones, pulled

pytestmark = pytest.mark.usefixtures("no_job")


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


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_a_new_learning_rate_is_torchs_too(kv: KVStore, name: str) -> None:
    """Large, then small, then none: a momentum that had the rate in it would go on at the old one."""
    make, theirs, ours = TORCH_OPTIMIZERS[name]
    start = np.linspace(-1, 1, 24, dtype=np.float32)
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = make([weight], lr=0.5, **theirs)
    kv.init("w", start)
    kv.set_optimizer(name.split()[0], learning_rate=0.5, **ours)
    random, out = np.random.default_rng(3), np.empty_like(start)
    for rate in (0.5, 0.01, 0.0, 0.2):
        kv.set_learning_rate(rate)
        optimizer.param_groups[0]["lr"] = rate
        for _ in range(3):
            gradient = random.normal(size=24).astype(np.float32)
            kv.push("w", gradient)
            kv.pull("w", out)
            weight.grad = torch.from_numpy(gradient)
            optimizer.step()
            np.testing.assert_allclose(out, weight.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_moments_go_on_at_the_rate_of_another_job(tmp_path: Path) -> None:
    """As torch.optim.SGD, whose state was loaded into one of another rate."""
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)

    def step(store: KVStore) -> Any:
        weight.grad = torch.ones(4)
        optimizer.step()
        out = ones(4, value=0)
        store.pushpull("w", ones(4), out=out)
        np.testing.assert_allclose(out, weight.detach().numpy(), rtol=1e-6)
        return out

    first = gradwire.kv.create("local")
    first.init("w", ones(4, value=0))
    first.set_optimizer("sgd", learning_rate=1.0, momentum=0.9)
    for _ in range(3):
        held = step(first)
    first.save_optimizer_states(tmp_path / "states")
    first.close()
    second = gradwire.kv.create("local")
    second.init("w", held)
    second.set_optimizer("sgd", learning_rate=0.01, momentum=0.9)
    second.load_optimizer_states(tmp_path / "states")
    optimizer.param_groups[0]["lr"] = 0.01
    for _ in range(3):
        step(second)
    second.close()


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


def test_an_optimizer_set_after_sums_begins_with_the_last(kv: KVStore) -> None:
    """As MXNet's servers, which had been refused the next push here."""
    kv.init("w", ones(4, value=9))
    for value in (1, 2):
        kv.push("w", ones(4, value=value))
    assert_array_equal(pulled(kv, "w", (4,)), ones(4, value=2))
    kv.set_optimizer("sgd", learning_rate=0.5)
    assert_array_equal(pulled(kv, "w", (4,)), ones(4, value=2))
    kv.push("w", ones(4))
    assert_array_equal(pulled(kv, "w", (4,)), ones(4, value=1.5))


@pytest.mark.parametrize("codec", ["none", "fp16", "2bit:threshold=0.5"])
def test_an_optimizer_set_after_sums_begins_with_them_on_all_ranks(codec: str) -> None:
    """Keys and rows; 0.5 goes through all of these codecs whole."""

    def body(store: KVStore) -> None:
        store.set_gradient_compression(codec)
        store.init("w", ones(70_000, value=9))
        store.init("table", gradwire.RowSparse.from_dense(np.full((6, 2), 9, np.float32)))
        store.push("w", ones(70_000, value=0.5))
        store.push("table", gradwire.RowSparse([1, 4], np.full((2, 2), 0.5, np.float32)))
        store.set_optimizer("test", rescale_grad=2)
        out, rows = ones(70_000), np.empty((3, 2), np.float32)
        store.pull("w", out)
        assert_array_equal(out, ones(70_000, value=1))
        store.pushpull("w", ones(70_000, value=0.5), out=out)
        assert_array_equal(out, ones(70_000, value=3))
        store.push("table", gradwire.RowSparse([4, 5], np.full((2, 2), 0.5, np.float32)))
        store.row_sparse_pull("table", rows, row_ids=[1, 4, 5])
        assert_array_equal(rows[:, 0], np.array([1, 3, 2], np.float32))

    run_ranks(2, body)


def test_a_checkpoint_of_sums_has_no_weights_for_an_optimizer(tmp_path: Path) -> None:
    def declare(store: KVStore) -> None:
        store.init("w", ones(4, value=9))
        store.init("table", gradwire.RowSparse.from_dense(np.full((6, 2), 9, np.float32)))

    def step(store: KVStore) -> None:
        store.push("w", ones(4))
        store.push("table", gradwire.RowSparse([1], np.ones((1, 2), np.float32)))

    def save(store: KVStore) -> None:
        declare(store)
        step(store)
        store.save_checkpoint(tmp_path / "ck")

    def resume(store: KVStore) -> None:
        declare(store)
        store.load_checkpoint(tmp_path / "ck")
        with pytest.raises(ValueError, match=r"set_optimizer: key 'w' has no value.*push it once before"):
            store.set_optimizer("test")
        store.push("w", ones(4))
        with pytest.raises(ValueError, match="set_optimizer: table 'table' has no value"):
            store.set_optimizer("test")
        store.push("table", gradwire.RowSparse([1], np.ones((1, 2), np.float32)))
        store.set_optimizer("test")
        step(store)
        out = ones(4)
        store.pull("w", out)
        assert_array_equal(out, ones(4, value=4))

    run_ranks(2, save)
    run_ranks(2, resume)


@pytest.mark.parametrize(
    ("momentum", "nesterov"),
    [(np.float64(0.5), True), (np.float32(0.5), np.bool_(True)), (np.array(0.5), np.int64(1))],
)
def test_numbers_may_be_numpys(momentum: Any, nesterov: Any) -> None:
    found = []
    for given in ({"momentum": momentum, "nesterov": nesterov}, {"momentum": 0.5, "nesterov": 1}):
        store = gradwire.kv.create("local")
        store.init("w", ones(4))
        store.set_optimizer("sgd", learning_rate=np.float64(0.25), **given)
        store.set_learning_rate(np.float32(0.125))
        for _ in range(2):
            store.push("w", ones(4))
        found.append(pulled(store, "w", (4,)))
        store.close()
    assert_array_equal(*found)


def test_what_is_no_number_and_nesterov_without_momentum_are_refused(kv: KVStore) -> None:
    for given, said in (
        ({"learning_rate": "0.1"}, "learning_rate='0.1' of sgd is a str, expected a number"),
        ({"learning_rate": None}, "learning_rate=None of sgd is a NoneType, expected a number"),
        ({"nesterov": 1}, r"nesterov=1 of sgd needs a momentum.*as momentum=0\.9"),
        ({"nesterov": True, "momentum": 0}, "nesterov=1 of sgd needs a momentum"),
    ):
        with pytest.raises(ValueError, match=said):
            kv.set_optimizer("sgd", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["sgd learning_rate=0.5", "", {"sgd": 0.5}])
def test_a_name_is_one_word(kv: KVStore, name: Any) -> None:
    """Servers are told in one text, which nobody else need know."""
    with pytest.raises(ValueError, match=r"expected one word; give parameters beside it"):
        kv.set_optimizer(name)


@pytest.mark.skipif(shutil.which("localedef") is None, reason="localedef is missing")
def test_numbers_are_read_alike_in_every_locale(tmp_path: Path) -> None:
    made = subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "UTF-8", tmp_path / "de_DE.UTF-8"], capture_output=True, text=True
    )
    if not (tmp_path / "de_DE.UTF-8").exists():
        pytest.skip(f"localedef: {made.stderr}")
    script = (
        "import locale, numpy as np, gradwire\n"
        "assert locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8')\n"
        "kv = gradwire.kv.create('local')\n"
        "kv.init('w', np.zeros(1, np.float32))\n"
        "kv.set_optimizer('sgd', learning_rate=0.25)\n"
        "w = np.ones(1, np.float32)\n"
        "kv.pushpull('w', w)\n"
        "print(w[0])\n"
    )
    environment = {**os.environ, "LOCPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("-0.25\n", 0), done.stderr


def test_a_learning_rate_needs_an_optimizer(kv: KVStore) -> None:
    with pytest.raises(RuntimeError, match=r"call set_optimizer\(\) first"):
        kv.set_learning_rate(0.1)
