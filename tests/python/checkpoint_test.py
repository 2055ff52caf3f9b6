"""kv.save_checkpoint and load_checkpoint: what Python adds to the engine's, and what its users see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradwire
import gradwire.torch
import numpy as np
import pytest
import torch
from gradwire.kv import KVStore
from numpy.testing import assert_array_equal
from python.inproc_ranks import run_ranks

SIZE = 70_000


pytestmark = pytest.mark.usefixtures("no_job")


def local(stores: list[KVStore]) -> KVStore:
    stores.append(gradwire.kv.create("local"))
    return stores[-1]


def gradient(seed: int) -> Any:
    return np.random.default_rng(seed).normal(0, 0.5, SIZE).astype(np.float32)


def pushed(store: KVStore, steps: range) -> list[Any]:
    """The sums of two devices' values."""
    sums = []
    for step in steps:
        out = np.empty(SIZE, np.float32)
        store.pushpull("w", [gradient(2 * step), gradient(2 * step + 1)], out=out)
        sums.append(out)
    return sums


@pytest.mark.parametrize(
    "codec", ["2bit:threshold=0.5", "2bit:threshold=auto", "topk", "randomk", "qsgd", "terngrad", "natural"]
)
def test_residuals_of_devices_go_on(codec: str, stores: list[KVStore], tmp_path: Path) -> None:
    def opened() -> KVStore:
        store = local(stores)
        store.set_gradient_compression(codec)
        store.init("w", np.zeros(SIZE, np.float32))
        return store

    first = opened()
    pushed(first, range(3))
    first.save_checkpoint(tmp_path / "ck", b"mine")
    second = opened()
    assert second.load_checkpoint(tmp_path / "ck") == gradwire.kv.Restored(1, 0, b"mine")
    assert_array_equal(pushed(second, range(3, 6)), pushed(first, range(3, 6)))


@pytest.mark.parametrize("codec", ["2bit:threshold=0.5", "2bit:threshold=auto", "topk"])
def test_a_codec_that_is_set_after_the_checkpoint_goes_on(
    codec: str, stores: list[KVStore], tmp_path: Path
) -> None:
    first = local(stores)
    first.set_gradient_compression(codec)
    first.init("w", np.zeros(SIZE, np.float32))
    pushed(first, range(3))
    first.save_checkpoint(tmp_path / "ck")
    second = local(stores)
    second.init("w", np.zeros(SIZE, np.float32))
    second.load_checkpoint(tmp_path / "ck")
    second.set_gradient_compression(codec)
    undisturbed = pushed(first, range(3, 6))
    assert_array_equal(pushed(second, range(3, 5)), undisturbed[:2])
    second.set_gradient_compression(codec)  # once more changes nothing
    assert_array_equal(pushed(second, range(5, 6)), undisturbed[2:])


def test_weights_and_the_optimizer_go_on(stores: list[KVStore], tmp_path: Path) -> None:
    def push(store: KVStore, seed: int) -> Any:
        out = np.empty(SIZE, np.float32)
        store.pushpull("w", gradient(seed), out=out)
        return out

    first = local(stores)
    first.init("w", gradient(9))
    first.set_optimizer("adam", learning_rate=0.25, wd=0.125)
    push(first, 0)
    first.set_learning_rate(0.5)
    first.save_checkpoint(tmp_path)
    second = local(stores)
    second.init("w", np.zeros(SIZE, np.float32))
    second.load_checkpoint(tmp_path)
    assert_array_equal(push(second, 1), push(first, 1))
    for store in (first, second):
        store.set_learning_rate(0.01)  # knows the other parameters
    assert_array_equal(push(second, 2), push(first, 2))


def test_damage_is_a_decode_error(stores: list[KVStore], tmp_path: Path) -> None:
    first = local(stores)
    first.init("w", gradient(0))
    first.save_checkpoint(tmp_path)
    (file,) = tmp_path.glob("*.state")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    second = local(stores)
    second.init("w", np.zeros(SIZE, np.float32))
    with pytest.raises(gradwire.DecodeError, match=f"worker 0: checkpoint: {file} is damaged between bytes"):
        second.load_checkpoint(tmp_path)
    out = np.ones(SIZE, np.float32)
    second.pull("w", out=out)
    assert not out.any()  # nothing has changed


def test_misuse_is_named(stores: list[KVStore], tmp_path: Path) -> None:
    store = local(stores)
    store.init("w", np.zeros(3, np.float32))
    with pytest.raises(RuntimeError, match=r"checkpoint\.manifest cannot be opened \(No such file"):
        store.load_checkpoint(tmp_path)
    with pytest.raises(TypeError, match="extra is a str, expected bytes"):
        store.save_checkpoint(tmp_path, "text")  # type: ignore[arg-type]
    store.save_checkpoint(tmp_path)
    store.push("w", np.ones(3, np.float32))
    with pytest.raises(ValueError, match="this worker has pushed already"):
        store.load_checkpoint(tmp_path)
    model = torch.nn.Linear(2, 2)
    plain = torch.optim.SGD(model.parameters(), lr=1)
    with pytest.raises(TypeError, match="expected what DistributedOptimizer"):
        gradwire.torch.save_checkpoint(tmp_path, model, plain)


FILE_OF_TORCH = (
    r"load_checkpoint: '.*snapshot\.pt' is a file, expected a folder that save_checkpoint\(\) wrote; a file of "
    r"torch\.save\(\) is loaded by torch\.load\(\)$"
)


def test_a_file_of_torch_is_told_from_a_checkpoint(stores: list[KVStore], tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pt"
    torch.save({"weight": torch.ones(2)}, file)
    with pytest.raises(ValueError, match=FILE_OF_TORCH):
        local(stores).load_checkpoint(file)


def test_a_file_of_torch_is_told_from_a_checkpoint_on_all_ranks(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pt"
    torch.save({"weight": torch.ones(2)}, file)
    refused: list[int] = []

    def body(store: KVStore) -> None:
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapped = gradwire.torch.DistributedOptimizer(optimizer, model.named_parameters(), "fp16", store)
        for load in (
            lambda: gradwire.torch.load_checkpoint(str(file), model, wrapped),
            lambda: store.load_checkpoint(file),
        ):
            with pytest.raises(ValueError, match=FILE_OF_TORCH):
                load()
            refused.append(store.rank)

    run_ranks(2, body)
    assert sorted(refused) == [0, 0, 1, 1]


def test_every_rank_gets_its_own_extra_and_new_ranks_anothers(tmp_path: Path) -> None:
    def save(store: KVStore) -> None:
        store.init("w", np.zeros(3, np.float32))
        store.save_checkpoint(tmp_path, f"of {store.rank}".encode())

    def load(store: KVStore) -> None:
        store.init("w", np.zeros(3, np.float32))
        restored = store.load_checkpoint(tmp_path)
        expected = store.rank % 2
        assert restored == gradwire.kv.Restored(2, expected, f"of {expected}".encode())

    run_ranks(2, save)
    run_ranks(2, load)
    run_ranks(3, load)
    run_ranks(1, load)


def test_a_broadcast_leaves_nothing_in_a_checkpoint(tmp_path: Path) -> None:
    """A job that goes on from it, with what was loaded, has nothing to broadcast."""

    def save(store: KVStore) -> None:
        model = torch.nn.Linear(3, 2)
        for root in (1, 0):
            gradwire.torch.broadcast_parameters(model.state_dict(), root, store)
        gradwire.torch.broadcast_optimizer_state(torch.optim.SGD(model.parameters()), 0, store)
        store.init("w", np.zeros(3, np.float32))
        store.save_checkpoint(tmp_path, b"mine")

    def load(store: KVStore) -> None:
        store.init("w", np.zeros(3, np.float32))
        assert store.load_checkpoint(tmp_path).extra == b"mine"

    run_ranks(2, save)
    run_ranks(2, load)


def test_a_broadcast_arrives_also_where_a_library_sums() -> None:
    def body(store: KVStore) -> None:
        weights = {"w": torch.full((5,), 1.0 + store.rank)}
        for root in (1, 0):
            gradwire.torch.broadcast_parameters(weights, root, store)
            assert bool((weights["w"] == 2.0).all())

    run_ranks(2, body, "nccl")  # by name alone
