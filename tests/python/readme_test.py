"""The example of README.md runs as it is written, started by the command that it names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What the example leaves to its reader, and what it ends with.
BATCHES = """\
def my_batches(rank, num_workers):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        yield torch.randn(8, 1, 28, 28, generator=generator), torch.randint(10, (8,), generator=generator)

"""
LAST_WORDS = """
import hashlib
tensors = [t.detach() for p in model.parameters() for t in (p, p.grad)]
print("ended", hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest())
"""


def test_the_first_example_trains_two_workers_to_the_same_weights(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = readme.partition("```python\n")[2].partition("```")[0]
    named = re.match(r"# train\.py +(gradwire run .*)\n", example)
    assert named, example
    imports, loop, rest = example.partition("model = ")
    (tmp_path / "train.py").write_text(imports + BATCHES + loop + rest + LAST_WORDS, encoding="utf-8")
    # gradwire and python are the ones under test, wherever they are installed.
    places = {
        "gradwire": [sys.executable, "-m", "gradwire.cli"],
        "python": [sys.executable],
    }
    command = [part for word in shlex.split(named[1]) for part in places.get(word, [word])]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    digests = re.findall(r"\[worker (\d)\] ended (\w+)", done.stdout)
    assert sorted(rank for rank, _ in digests) == ["0", "1"], done.stdout
    assert len({digest for _, digest in digests}) == 1, done.stdout
