"""tests/other_torch.py: which files it runs, and the environment of a release, with the packages of .venv behind it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import other_torch


def test_files_about_fsdp2_need_a_release_that_has_its_collectives() -> None:
    old, new = other_torch.tests("2.8.1"), other_torch.tests("2.10.0")
    left_out = set(new) - set(old)
    assert {"tests/integration/torch_fsdp_test.py", "tests/python/fsdp_layout_test.py"} <= left_out
    assert set(old) < set(new)
    assert {"tests/python/torch_test.py", "tests/integration/horovod_ranks_test.py"} <= set(old)


def test_an_environment_has_its_own_torch_and_the_rest_of_this_one(tmp_path: Path) -> None:
    folder = tmp_path / "9.8.7"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "torch").mkdir()  # as pip would have it
    (packages / "torch" / "__init__.py").write_text("__version__ = '9.8.7'\n")
    python = other_torch.environment("9.8.7", folder)
    program = "import gradwire, numpy, torch; print(torch.__version__, gradwire.__version__)"
    said = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("9.8.7 ")
    version = subprocess.run(
        [folder / "bin" / "gradwire", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert said.split()[1] in version
    assert (folder / "bin" / "gradwire-server").exists()
