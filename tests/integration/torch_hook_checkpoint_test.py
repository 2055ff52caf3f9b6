"""gradwire.torch.save_checkpoint() of DDP's hook, of FSDP2's reduce-scatters and of HSDP's all-reduces: two ranks, or
hosts of two ranks, go on bit for bit, and three lose nothing of what two have not sent.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from integration.processes import clean_environment
from integration.torch_jobs import needs_sharding, torchrun

PROGRAM = "torch_hook_checkpoint_worker.py"


def run(tmp_path: Path, workers: int, *arguments: str) -> str:
    ended = subprocess.run(
        torchrun(PROGRAM, *arguments, workers=workers),
        capture_output=True,
        text=True,
        timeout=300,
        env=clean_environment(tmp_path, {}),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@needs_sharding
@pytest.mark.parametrize(("kind", "shards"), [("ddp", 1), ("fsdp", 1), ("hsdp", 2), ("local", 2)])
def test_jobs_are_gone_on_from(kind: str, shards: int, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    said = run(tmp_path, 2 * shards, kind, "save", str(folder))
    assert said.count("every codec goes on bit for bit") == 2 * shards, said
    assert said.count("others are refused") == (2 if shards == 1 else 0), said
    said = run(tmp_path, 3 * shards, kind, "load", str(folder))
    assert said.count("every codec goes on with others") == 3 * shards, said
