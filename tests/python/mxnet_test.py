"""gradwire.mxnet where MXNet is not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from integration.mxnet_environment import require_mxnet

without_mxnet = pytest.mark.skipif(find_spec("mxnet") is not None, reason="MXNet is installed here")


@without_mxnet
def test_without_mxnet_it_says_what_to_install() -> None:
    with pytest.raises(ImportError, match=r"not installed here; pip install mxnet==1\.9\.1 numpy==1\.23\.5"):
        __import__("gradwire.mxnet")


@without_mxnet
def test_gradwire_itself_does_not_need_it() -> None:
    code = "import gradwire, gradwire.kv, sys; assert 'mxnet' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("__version__ = '2.0.0'", "MXNet is 2.0.0 here, expected 1.9"),
        ("import numpy; numpy.bool_that_is_gone", "cannot be imported beside this NumPy"),
    ],
)
def test_another_mxnet_or_numpy_is_named(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "mxnet.py").write_text(source)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import gradwire.mxnet"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert "pip install mxnet==1.9.1 numpy==1.23.5" in done.stderr


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_tests_without_mxnet_fail_in_ci(
    ci: str, outcome: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere they are skipped: not every machine has a Python that MXNet runs on."""
    for name in (
        "HOME",
        "PATH",
    ):  # no environment for MXNet has been made, and there is no Python to make it with
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match=r"MXNet 1\.9\.1 cannot be had here: mxnet: no python3\.11"):
        require_mxnet()


def test_a_server_needs_an_address_and_no_mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GRADWIRE_SCHEDULER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DMLC_ROLE", "server")
    sys.modules.pop("gradwire.mxnet", None)
    with pytest.raises(ValueError, match="a server needs GRADWIRE_SCHEDULER"):
        __import__("gradwire.mxnet")
