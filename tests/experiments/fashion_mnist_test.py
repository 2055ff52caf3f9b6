"""experiments/fashion_mnist: its data, its record, and small real jobs."""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gradwire.launch.supervisor import run_job
from python.experiment_files import load

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "fashion_mnist"
TRAIN = FOLDER / "train.py"


dataset = load(FOLDER / "dataset.py")
networks = load(FOLDER / "networks.py")
order = load(FOLDER.parent / "training" / "order.py")


def train(*flags: str, **environment: str) -> dict[str, Any]:
    """Trains the mlp alone for a moment; returns the record that --json printed."""
    command = [sys.executable, str(TRAIN), "--network", "mlp", "--limit", "1280", "--json", "-", *flags]
    done = subprocess.run(
        ["env", *(f"{k}={v}" for k, v in environment.items()), *command],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)  # nothing else is printed there
    return record


def train_job(folder: Path, *flags: str, workers: int = 2, servers: int = 2) -> dict[str, Any]:
    """Trains lenet for 30 steps as a job; returns rank 0's record."""
    path, lines = folder / "record.json", []
    result = run_job(
        [
            *(
                sys.executable,
                str(TRAIN),
                "--network",
                "lenet",
                "--kv-store",
                "dist_sync",
                "--batch-size",
                "16",
            ),
            *("--limit", str(480 * workers), "--num-epochs", "1", "--json", str(path), *flags),
        ],
        workers=workers,
        servers=servers,
        output=lambda line: lines.append(f"{line.role} {line.rank}: {line.text}"),
        report=lines.append,
        timeout=300,
    )
    assert result.exit_code == 0, "\n".join(lines)
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def test_a_store_of_another_maker_is_refused() -> None:
    """--kv-store torch had ended in an AttributeError."""
    done = subprocess.run(
        [sys.executable, str(TRAIN), "--kv-store", "torch"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "train: --kv-store torch is a store of another maker" in done.stderr
    assert "AttributeError" not in done.stderr


def test_images_are_standardised() -> None:
    data = dataset.load()
    assert data.train_images.shape[1:] == (1, 28, 28)
    assert data.train_images.mean().abs() < 1e-3
    assert (data.train_images.std() - 1).abs() < 1e-3
    assert data.test_images.shape[0] == data.test_labels.shape[0]
    assert sorted(data.train_labels.unique().tolist()) == list(range(10))
    part = dataset.load(limit=100)
    assert torch.equal(part.train_images, data.train_images[:100])
    assert torch.equal(part.train_labels, data.train_labels[:100])
    assert torch.equal(part.test_images, data.test_images)


def test_digits_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eights = np.zeros((1797, 8, 8))
    eights[:, 2, 5] = 16.0  # scikit-learn's digits in shape and range, whether or not it is installed
    digits = SimpleNamespace(images=eights, target=np.arange(1797) % 10)
    monkeypatch.setitem(sys.modules, "sklearn", ModuleType("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", SimpleNamespace(load_digits=lambda: digits))
    monkeypatch.setattr(dataset.importlib.util, "find_spec", lambda name: name)
    data = dataset.load(folder=tmp_path / "missing")
    assert data.name == "digits"
    assert data.train_images.shape == (1500, 1, 28, 28)
    assert data.test_images.shape == (297, 1, 28, 28)
    bright = data.train_images[0, 0] > 0
    assert bright.sum() == 9  # one pixel of 8x8 is 3x3 here, two pixels in
    assert bool(bright[8:11, 17:20].all())


def test_without_any_data_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="apt install dataset-fashion-mnist"):
        dataset.load(folder=tmp_path / "missing")


def test_a_file_that_is_not_idx_is_named(tmp_path: Path) -> None:
    bad = gzip.compress(struct.pack(">4I", 0x00000901, 1, 28, 28))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(bad)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz begins with 00000901"):
        dataset.load(folder=tmp_path)


@pytest.mark.parametrize(("images", "workers", "size"), [(1000, 3, 16), (96, 2, 16), (31, 1, 32)])
def test_ranks_share_an_epoch(images: int, workers: int, size: int) -> None:
    shares = [order.batches(images, 4, 7, rank, workers, size) for rank in range(workers)]
    assert [len(share) for share in shares] == [images // (workers * size)] * workers
    seen = torch.cat([pick for share in shares for pick in share]) if shares[0] else torch.empty(0)
    assert len(seen) == len(seen.unique()) == images // (workers * size) * workers * size
    if shares[0]:
        assert torch.equal(shares[0][0], order.batches(images, 4, 7, 0, workers, size)[0])
        assert not torch.equal(shares[0][0], order.batches(images, 5, 7, 0, workers, size)[0])
        assert not torch.equal(shares[0][0], order.batches(images, 4, 8, 0, workers, size)[0])


@pytest.mark.parametrize(("name", "parameters"), [("lenet", 431_080), ("mlp", 109_386), ("resnet8", 77_562)])
def test_networks_have_their_size(name: str, parameters: int) -> None:
    network = networks.NETWORKS[name]()
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize(("name", "parameters"), [("vgg16", 138_357_544), ("resnet50", 25_557_032)])
def test_networks_of_the_tables_have_their_size(name: str, parameters: int) -> None:
    with torch.device("meta"):
        network = load(FOLDER / "imagenet_networks.py").IMAGENET_NETWORKS[name]()
        assert sum(p.numel() for p in network.parameters()) == parameters
        assert network.eval()(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)


def test_a_benchmark_trains_on_random_images() -> None:
    flags = ("--network", "resnet50", "--benchmark", "1", "--image-shape", "3,32,32", "--batch-size", "4")
    record = train(*flags, "--limit", "12", "--num-epochs", "1")
    assert record["steps"] == 3
    assert record["dataset"] == "random"
    assert record["images_per_second"] > 0
    assert record["loss"] > 0


def test_networks_without_data_and_gpus_that_are_not_here_are_refused() -> None:
    for flags, text in (
        (["--network", "vgg16"], "vgg16 has no data here; give --benchmark 1"),
        (["--gpus", "97"], "--gpus names device 97"),
        (["--gpus", "one"], "--gpus numbers as in 0,2"),
    ):
        done = subprocess.run(
            [sys.executable, str(TRAIN), *flags], capture_output=True, text=True, timeout=60
        )
        assert done.returncode != 0
        assert text in done.stderr


def test_the_record_is_complete_and_repeatable(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    first = train("--num-epochs", "2", GRADWIRE_RESULT=str(result), GRADWIRE_SEED="3")
    again = train("--num-epochs", "2", "--seed", "3")
    other = train("--num-epochs", "2", "--seed", "4")
    assert json.loads(result.read_text()) == first
    assert first["weights_sha256"] == again["weights_sha256"] != other["weights_sha256"]
    assert first["steps"] == 40
    assert first["accuracy"] == first["accuracy_per_epoch"][-1] > 0.4
    assert first["training_loss_per_epoch"][1] < first["training_loss_per_epoch"][0]
    assert 0 < first["seconds_per_epoch"][0] < first["seconds_per_epoch"][1]
    assert first["images_per_second"] == pytest.approx(2560 / first["seconds_per_epoch"][1])
    assert first["arguments"]["seed"] == 3
    assert first["arguments"]["network"] == "mlp"


def test_flags_that_make_no_sense_are_refused() -> None:
    for flags in (["--num-epochs", "0"], ["--gc-threshold", "much"], ["--limit", "10"]):
        done = subprocess.run(
            [sys.executable, str(TRAIN), *flags], capture_output=True, text=True, timeout=60
        )
        assert done.returncode != 0
        assert flags[0] in done.stderr


def test_bytes_per_step(tmp_path: Path) -> None:
    """At the socket, at most 1/11 of uncompressed for exact sums and 1/14 for 2bit both ways."""
    dense = train_job(tmp_path)
    exact = train_job(tmp_path, "--gc-type", "2bit")
    both = train_job(tmp_path, "--gc-type", "2bit", "--gc-reply", "2bit")
    assert dense["bytes_per_step"] == pytest.approx(2 * 4 * 431_080, rel=0.01)
    assert exact["bytes_per_step"] <= dense["bytes_per_step"] / 11
    assert both["bytes_per_step"] <= dense["bytes_per_step"] / 14
    assert (
        exact["bytes_total"] > 30 * exact["bytes_per_step"]
    )  # broadcast and the dense first round are in it


def test_a_job_is_repeatable_to_the_bit(tmp_path: Path) -> None:
    flags = ("--gc-type", "2bit", "--gc-reply", "2bit")
    hashes = {train_job(tmp_path, *flags, servers=servers)["weights_sha256"] for servers in (2, 2, 1, 3)}
    assert len(hashes) == 1
