"""The example of README.md as a script that runs, and the command that README.md starts it by."""

from __future__ import annotations

import re
import shlex
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


def script_of_readme() -> tuple[list[str], str]:
    """Returns the words of the command, which runs train.py, and train.py."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = readme.partition("```python\n")[2].partition("```")[0]
    named = re.match(r"# train\.py +(gradwire run .*)\n", example)
    assert named, example
    imports, loop, rest = example.partition("model = ")
    return shlex.split(named[1]), imports + BATCHES + loop + rest + LAST_WORDS


def digests(output: str) -> dict[str, str]:
    """What each rank has ended with: weights and gradients."""
    return dict(re.findall(r"\[worker (\d)\] ended (\w+)", output))
