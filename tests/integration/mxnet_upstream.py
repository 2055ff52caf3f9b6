"""Runs MXNet 1.9.1's own tests of its stores against gradwire, and counts them.

    python tests/integration/mxnet_upstream.py MXNET

MXNET is a checkout of https://github.com/apache/mxnet at tag 1.9.1, whose tests are unchanged; nothing is fetched.

- tests/nightly/dist_sync_kvstore.py, every --type that needs no GPU, each with 7 workers and a server, under
  `gradwire run ... python -m gradwire.mxnet`. A type counts as passed if every worker has ended with 0.
- tests/python/unittest/test_kvstore_custom.py, which tries out MXNet's plugin `teststore`: that name is read as
  `gradwire`, so that it is gradwire's plugin that is tried out. The standard library stands in for nose.

`--type default_cpu` cannot pass anywhere as it stands, for which two lines are mended as it is read (_MENDED says why);
`--as-it-is` leaves them. Returns 0 if there were tests and none failed.
"""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WORKERS = 7
_TIMEOUT = 900.0  # seconds, of one job
_NIGHTLY = "tests/nightly/dist_sync_kvstore.py"
_CUSTOM = "tests/python/unittest/test_kvstore_custom.py"
_TYPES = (
    *("default_cpu", "compressed_cpu", "invalid_cpu"),
    *("gluon_type_cpu", "gluon_step_cpu", "gluon_sparse_step_cpu"),
)
_MENDED = {
    "mx.optimizer.create('test', ": "optimizer_of_any_storage(",  # MXNet's writes sparse weights to dense states
    "(num_rows/2, 2)": "(num_rows//2, 2)",  # a shape of floats, which MXNet refuses in Python 3
}


def _program(mxnet: Path) -> list[str]:
    """Returns the command of this file under MXNet's Python."""
    return [sys.executable, str(Path(__file__).with_name("mxnet_exec.py")), __file__, str(mxnet)]


def run_nightly(mxnet: Path, kind: str, as_it_is: bool) -> str:
    """Runs a type of the nightly test as a job. Returns what it said if it failed, or ""."""
    import mxnet_environment
    from gradwire.launch import supervisor as launch

    with tempfile.TemporaryDirectory() as folder:
        said: list[str] = []
        ended = launch.run_job(
            [*_program(mxnet), "--as-worker", kind, *(["--as-it-is"] if as_it_is else [])],
            workers=_WORKERS,
            servers=1,
            env=mxnet_environment.variables(Path(folder)),
            output=lambda line: said.append(f"{line.role} {line.rank}: {line.text}"),
            report=said.append,
            timeout=_TIMEOUT,
        )
    return "" if ended.exit_code == 0 else "\n".join(said[-40:]) or f"exit code {ended.exit_code}"


def run_nightly_as_worker(mxnet: Path, kind: str, as_it_is: bool) -> None:
    """Becomes the test, in MXNet's Python."""
    import gradwire.mxnet

    gradwire.mxnet.patch()
    path = mxnet / _NIGHTLY
    source = path.read_text(encoding="utf-8")
    for theirs, mended in () if as_it_is else _MENDED.items():
        if theirs not in source:
            raise SystemExit(f"{path} has no line {theirs!r}: expected MXNet 1.9.1's")
        source = source.replace(theirs, mended)
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path), f"--type={kind}", "--no-gpu"]
    module = {
        "__name__": "__main__",
        "__file__": str(path),
        "optimizer_of_any_storage": _optimizer_of_any_storage,
    }
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # it leaves files where it runs
        exec(compile(source, str(path), "exec"), module)


def _optimizer_of_any_storage(**options: Any) -> Any:
    """MXNet's optimizer `test`, whose states are as its weights are, and not dense."""
    import mxnet as mx

    class Test(mx.optimizer.Test):  # type: ignore[misc]
        def create_state(self, index: int, weight: Any) -> Any:
            return mx.nd.zeros(weight.shape, weight.context, stype=weight.stype)

    return Test(**options)


def run_custom(mxnet: Path) -> dict[str, str]:
    """Runs the tests of a plugin, in MXNet's Python. Returns what went wrong, or "", by test."""
    import gradwire.mxnet  # noqa: F401  # its plugin

    tools = types.ModuleType("nose.tools")
    tools.make_decorator = lambda test: lambda made: _named_as(made, test)  # type: ignore[attr-defined]
    tools.assert_raises = unittest.TestCase().assertRaises  # type: ignore[attr-defined]
    sys.modules |= {"nose": types.ModuleType("nose"), "nose.tools": tools}
    path = mxnet / _CUSTOM
    sys.path.insert(0, str(path.parent))
    with tempfile.NamedTemporaryFile("w", suffix=".py", encoding="utf-8") as read_as:
        read_as.write(path.read_text(encoding="utf-8").replace("'teststore'", "'gradwire'"))
        read_as.flush()
        module = runpy.run_path(read_as.name)
    return {name: _fault_of(test) for name, test in module.items() if name.startswith("test_")}


def run_custom_under_mxnet(mxnet: Path) -> bool:
    """Runs and shows the tests of a plugin; returns whether there were some and all have passed."""
    import mxnet_environment

    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **mxnet_environment.variables(Path(folder))}
        return subprocess.run([*_program(mxnet), "--custom"], env=environment, check=False).returncode == 0


def _named_as(made: Callable[..., Any], test: Callable[..., Any]) -> Callable[..., Any]:
    made.__name__ = test.__name__
    return made


def _fault_of(test: Callable[[], None]) -> str:
    try:
        test()
    except Exception:
        return traceback.format_exc()
    return ""


def show(name: str, fault: str) -> bool:
    """Prints how a test ended; returns whether it passed."""
    print(f"{'failed' if fault else 'passed'}  {name}", flush=True)
    if fault:
        print(f"        {fault.strip()}".replace("\n", "\n        "), flush=True)
    return not fault


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mxnet", type=Path, help="a checkout of MXNet 1.9.1")
    parser.add_argument("--type", action="append", choices=_TYPES, help="of the nightly test (default: all)")
    parser.add_argument("--as-it-is", action="store_true", help="mend nothing in default_cpu")
    parser.add_argument("--as-worker", metavar="TYPE", help=argparse.SUPPRESS)
    parser.add_argument("--custom", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    mxnet = given.mxnet.resolve(strict=True)
    if given.as_worker:
        run_nightly_as_worker(mxnet, given.as_worker, given.as_it_is)
        return 0
    if given.custom:
        passed = [show(f"test_kvstore_custom {name}", fault) for name, fault in run_custom(mxnet).items()]
        return int(not passed or not all(passed))
    passed = [
        show(f"dist_sync_kvstore --type {kind}, {_WORKERS} workers", run_nightly(mxnet, kind, given.as_it_is))
        for kind in given.type or _TYPES
    ]
    if not given.type:
        passed.append(run_custom_under_mxnet(mxnet))
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
