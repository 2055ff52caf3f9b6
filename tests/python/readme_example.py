"""The example of README.md as a script that runs, and the commands that README.md starts it by."""

from __future__ import annotations

import re
import shlex

from python.docs_blocks import ROOT, blocks

# What the script ends with here: a name for what training left. In one write: print() makes one of each argument and of
# the end of the line where output has no buffer, as under torchrun, and those of two ranks may come in turns.
LAST_WORDS = """
import hashlib, sys
tensors = [t.detach() for p in model.parameters() for t in (p, p.grad)]
digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()
sys.stdout.write(f"rank {dist.get_rank()} ended {digest}\\n")
"""


def script_of_page(page: str) -> str:
    """Returns the first block of Python of a page, by its path in the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return next(block.code for block in blocks(text) if block.language == "python")


def script_of_readme() -> tuple[list[list[str]], str]:
    """Returns the words of each command, which run train.py, and train.py."""
    script = script_of_page("README.md")
    assert script.startswith("# train.py\n"), script
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shells = "".join(block.code for block in blocks(text) if block.language == "sh" and block.is_run)
    commands = [shlex.split(line) for line in shells.splitlines() if line.endswith(" train.py")]
    return commands, script + LAST_WORDS


def digests(output: str) -> dict[str, str]:
    """What each rank has ended with: weights and gradients."""
    return dict(re.findall(r"rank (\d) ended (\w+)", output))
