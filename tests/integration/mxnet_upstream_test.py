"""mxnet_upstream.py on a checkout of our own: what passes and what fails is told apart, and what is mended is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from integration.mxnet_environment import require_mxnet
from integration.processes import HERE

NIGHTLY = """
import sys
import mxnet as mx

kv = mx.kv.create("dist_sync")
assert kv.num_workers == 7 and type(kv).__module__.startswith("gradwire"), type(kv)
num_rows = 2
shape = (num_rows/2, 2)
assert shape == (1, 2) and isinstance(shape[0], int), shape
if "--type=default_cpu" in sys.argv:
    kv.init("a", mx.nd.zeros((2, 2)))
    kv.set_optimizer(mx.optimizer.create('test', rescale_grad=2))
    kv.push("a", mx.nd.ones((2, 2)))
    out = mx.nd.zeros((2, 2))
    kv.pull("a", out=out)
    assert (out.asnumpy() == 14).all(), out
else:
    assert kv.rank != 3, "rank 3 has found a fault"
"""


def upstream(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    require_mxnet()
    path = folder / "tests" / "nightly" / "dist_sync_kvstore.py"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    command = [sys.executable, str(HERE / "mxnet_upstream.py"), str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize(("kind", "code"), [("default_cpu", 0), ("compressed_cpu", 1)])
def test_a_type_passes_if_all_workers_do(tmp_path: Path, kind: str, code: int) -> None:
    ended = upstream(tmp_path, NIGHTLY, "--type", kind)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert ended.stdout.startswith(f"{['passed', 'failed'][code]}  dist_sync_kvstore --type {kind}")
    assert ("rank 3 has found a fault" in ended.stdout) == (code == 1)


def test_a_file_that_lacks_what_is_mended_is_not_mxnets(tmp_path: Path) -> None:
    ended = upstream(tmp_path, NIGHTLY.replace("num_rows/2", "1"), "--type", "default_cpu")
    assert ended.returncode == 1
    assert "expected MXNet 1.9.1's" in ended.stdout
