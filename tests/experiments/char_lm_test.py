"""experiments/char_lm: its text, its network, and a small real job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gradwire.launch.supervisor import run_job
from python.experiment_files import imported

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "char_lm"
TRAIN = FOLDER / "train.py"


@pytest.fixture(scope="module")
def modules() -> Any:
    """The experiment's text and networks, which are no package and import each other by their file's name."""
    with imported(FOLDER, ("text", "networks")) as modules:
        yield modules


def train(folder: Path, *flags: str, workers: int = 1) -> dict[str, Any]:
    """Trains the tiny network for a moment; returns rank 0's record."""
    path, lines = folder / "record.json", []
    command = [sys.executable, str(TRAIN), "--network", "tiny", "--batch-size", "8", "--json", str(path)]
    job = run_job(
        [*command, *flags],
        workers=workers,
        servers=0,
        output=lambda line: lines.append(line.text),
        report=lines.append,
        timeout=300,
    )
    assert job.exit_code == 0, "\n".join(lines)
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def test_windows_follow_each_other(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    text = modules["text"]
    (tmp_path / "jokes").write_text("held out\n%\n" + "abc\tdé" * 40 + "\n%\nlast one")
    (tmp_path / "jokes.dat").write_bytes(b"\x00index")
    loaded = text.load(folder=tmp_path)
    decoded = ["".join(text.ALPHABET[i] for i in window) for window in loaded.train.tolist()]
    assert loaded.name == "fortunes"
    assert [len(window) for window in decoded] == [text.WINDOW + 1] * len(decoded)
    assert [a[-1] for a in decoded[:-1]] == [b[0] for b in decoded[1:]]
    assert "".join(window[:-1] for window in decoded) == ("abc d" * 40 + "\n\nlast one")[: len(decoded) * 64]
    assert torch.equal(text.load(limit=2, folder=tmp_path).train, loaded.train[:2])


def test_python_sources_stand_in(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    text = modules["text"].load(folder=tmp_path / "missing")
    assert text.name == "python-sources"
    assert len(text.train) > 10 * len(text.validation) > 1000


@pytest.mark.parametrize(("name", "parameters"), [("tiny", 116_576), ("small", 429_664)])
def test_networks_have_their_size_and_see_no_future(
    modules: dict[str, ModuleType], name: str, parameters: int
) -> None:
    network = modules["networks"].NETWORKS[name]()
    assert sum(p.numel() for p in network.parameters()) == parameters
    characters = torch.randint(0, 96, (2, 64), generator=torch.Generator().manual_seed(1))
    changed = characters.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 96
    before, after = network(characters), network(changed)
    assert before.shape == (2, 64, 96)
    assert torch.allclose(before[:, :40], after[:, :40], atol=1e-5)
    assert not torch.allclose(before[:, 40:], after[:, 40:], atol=1e-5)


def test_a_compressed_job_learns_and_is_repeatable(tmp_path: Path) -> None:
    flags = ("--kv-store", "allreduce", "--limit", "1600", "--gc-type", "topk:ratio=0.1")
    first = train(tmp_path, *flags, workers=2)
    again = train(tmp_path, *flags, workers=2)
    assert first["weights_sha256"] == again["weights_sha256"]
    assert first["compression"].startswith("topk:ratio=0.1")
    assert first["steps"] == 100
    assert first["loss"] == first["loss_per_epoch"][-1] < 4.0  # nats; 96 equal characters are 4.56


def test_refused_flags_are_named() -> None:
    done = subprocess.run(
        [sys.executable, str(TRAIN), "--limit", "3"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "3 windows do not fill one step of 1 x 16" in done.stderr
