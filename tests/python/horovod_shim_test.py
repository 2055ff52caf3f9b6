"""The shim, in processes of their own: what `import horovod` finds, and when it is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


INSTALL = "import gradwire.horovod.shim as shim; shim.install(); shim.install(); "


def test_errors_are_the_same_class_under_either_name(tmp_path: Path) -> None:
    script = (
        "from horovod.common.exceptions import HorovodInternalError as theirs\n"
        "from gradwire.horovod.errors import HorovodInternalError as ours\n"
        "assert theirs is ours; import horovod.common; print(horovod.__name__, horovod.common.__name__)"
    )
    done = run("-c", INSTALL + script, folder=tmp_path)
    assert done.stdout.split() == ["horovod", "horovod.common"], done.stderr


def test_what_is_not_there_is_said_as_python_says_it(tmp_path: Path) -> None:
    done = run("-c", INSTALL + "import horovod.keras", folder=tmp_path)
    assert "No module named 'horovod.keras'" in done.stderr


def test_where_horovod_is_installed_it_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").touch()
    done = run("-c", INSTALL, folder=tmp_path)
    assert done.returncode == 1
    assert "ImportError: gradwire.horovod.shim: Horovod itself is installed here" in done.stderr


def test_the_command_runs_a_script_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    (tmp_path / "script.py").write_text(
        "import sys, beside, horovod.common.exceptions\nprint(__name__, sys.argv, beside.WORD)\nsys.exit(3)\n"
    )
    given = ("-m", "gradwire.horovod.run")
    done = run(*given, "script.py", "--epochs", "2", folder=tmp_path)
    assert (done.returncode, done.stdout) == (3, "__main__ ['script.py', '--epochs', '2'] beside\n"), (
        done.stderr
    )
    done = run(*given, "-m", "script", "x", folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stdout.endswith("script.py', 'x'] beside\n")


@pytest.mark.parametrize(("arguments", "code"), [((), 2), (("-m",), 2), (("--help",), 0)])
def test_without_a_script_it_says_what_it_takes(
    arguments: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    done = run("-m", "gradwire.horovod.run", *arguments, folder=tmp_path)
    assert done.returncode == code
    assert "usage: python -m gradwire.horovod.run" in (done.stderr if code else done.stdout)
