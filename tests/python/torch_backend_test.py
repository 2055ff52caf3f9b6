"""The backend "gradwire" of torch.distributed as torch meets it: by an entry point that imports next to nothing and
never fails, and in groups of one rank."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import gradwire.torch
import pytest
import torch
import torch.distributed as dist
from gradwire import torch_backend
from structure.repository import ROOT
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BROKEN = """
import sys

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "gradwire._core":
            raise ImportError("undefined symbol: of another Python")

sys.meta_path.insert(0, Broken())
"""


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment | variables,
    )


def test_the_entry_point_is_declared() -> None:
    declared = importlib.metadata.entry_points(group="torch.backends")
    assert [each.value for each in declared if each.name == "gradwire"] == ["gradwire.torch_backend:register"]
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points."torch.backends"]\ngradwire = "gradwire.torch_backend:register"\n' in text


def test_import_torch_registers_it_and_imports_nothing_else() -> None:
    program = (
        "import sys, torch\n"
        "assert 'gradwire' in torch.distributed.Backend.backend_list\n"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] == 'gradwire'))\n"
    )
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["gradwire", "gradwire.torch_backend"]


def test_gradwire_torch_registers_it_where_entry_points_are_off() -> None:
    program = (
        "import torch\n"
        "listed = torch.distributed.Backend.backend_list\n"
        "assert 'gradwire' not in listed\n"
        "import gradwire.torch\n"
        "assert 'gradwire' in listed\n"
    )
    done = run(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr


def test_a_broken_extension_breaks_the_backend_and_not_torch() -> None:
    program = (
        BROKEN + "import torch\n"
        "store = torch.distributed.HashStore()\n"
        "torch.distributed.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "torch.distributed.destroy_process_group()\n"
        "print('torch works', flush=True)\n"
        "torch.distributed.init_process_group('gradwire', store=store, rank=0, world_size=1)\n"
    )
    done = run(program)
    said = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo] ")]  # PyTorch 2.9's
    assert said == ["torch works"], done.stderr
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert 'RuntimeError: gradwire: the backend "gradwire" of torch.distributed cannot be used' in last
    assert "undefined symbol: of another Python" in last
    assert "reinstall gradwire" in last


def test_registering_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise TypeError("register_backend() of another torch")

    monkeypatch.setattr(dist.Backend, "register_backend", refuse)
    monkeypatch.setattr(dist.Backend, "backend_list", ["gloo"])
    with pytest.warns(
        RuntimeWarning, match="has no backend .gradwire. in this process: TypeError: register_"
    ):
        torch_backend.register()
    monkeypatch.setattr(torch_backend.warnings, "warn", refuse)
    torch_backend.register()


def test_it_takes_no_device_from_another_backend() -> None:
    assert "gradwire" in dist.Backend.backend_list
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"
    assert dist.Backend.default_device_backend_map["cuda"] == "nccl"


@pytest.mark.parametrize(
    ("backends", "on_cpu"),
    [
        ("gradwire", "gradwire"),
        ("cpu:gradwire", "gradwire"),
        ("cpu:gradwire,cuda:gradwire", "gradwire"),
        ("cpu:gradwire,cuda:gloo", "gradwire"),
        ("cpu:gloo,cuda:gradwire", "gloo"),
        ("cpu:gloo", "gloo"),
        ("cpu:gloo,cuda:gloo", "gloo"),
    ],
)
def test_devices_have_the_backends_that_they_are_given(backends: str, on_cpu: str, tmp_path: Path) -> None:
    """On the CPU, gradient sums are compressed only where gradwire has it."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group(backends, store=store, rank=0, world_size=1)
    try:
        ones = torch.ones(3)
        dist.all_reduce(ones)
        dist.barrier()
        everyone: list[object] = [None]
        dist.all_gather_object(everyone, "text")
        assert (ones.tolist(), everyone) == ([1, 1, 1], ["text"])
        model = DistributedDataParallel(nn.Linear(4, 4))
        if "gradwire" not in backends:
            with pytest.raises(ValueError, match="expected 'gradwire' among them"):
                gradwire.torch.compress_group(codec="int8")
            assert gradwire.torch.group_compression() is None
            return
        policy = gradwire.torch.compress_group(codec="int8")
        assert gradwire.torch.group_compression() is policy
        if on_cpu == "gradwire":
            model(torch.ones(1, 4)).sum().backward()
            assert isinstance(policy.state_of(model), gradwire.torch.HookState)
        else:
            with pytest.warns(UserWarning, match="gradients on 'cpu' are summed uncompressed"):
                model(torch.ones(1, 4)).sum().backward()
            with pytest.raises(KeyError, match="no sum of this DistributedDataParallel"):
                policy.state_of(model)
    finally:
        dist.destroy_process_group()
        if (joined := gradwire.kv.joined()) is not None:
            joined.close()  # other tests of this process have other jobs


def test_a_bad_codec_in_the_environment_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRADWIRE_COMPRESSION", "3bit")
    store = dist.FileStore(str(tmp_path / "store"), 1)
    with pytest.raises(ValueError, match="GRADWIRE_COMPRESSION=3bit"):
        dist.init_process_group("gradwire", store=store, rank=0, world_size=1)
    assert not dist.is_initialized()


def test_without_a_process_group_the_error_says_what_to_call() -> None:
    for call in (
        lambda: gradwire.torch.compress_group(codec="int8"),
        lambda: gradwire.torch.group_compression(),
    ):
        with pytest.raises(ValueError, match=r"init_process_group\(\"gradwire\"\) first"):
            call()
