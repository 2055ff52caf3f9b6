"""Scripts whose process group is on Gloo, on hosts of a lab, as `gradwire ab` and `tune` with `--bandwidth` start
them."""

from __future__ import annotations

import sys
from pathlib import Path

from integration.hosts import needs_hosts
from integration.processes import PROGRAMS, Job

SCRIPT = """
import torch, torch.distributed as dist
from gradwire import result
torch.set_num_threads(1)
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2, total
result.write(accuracy=0.5)
dist.barrier()
"""


@needs_hosts
def test_gloo_finds_the_other_hosts(tmp_path: Path) -> None:
    """It had connected to 127.0.0.1, within each host."""
    arms = ["-n", "2", "-s", "0", "--arm", "none", "--seeds", "1", "--bandwidth", "1gbit"]
    words = [str(PROGRAMS / "gradwire"), "ab", *arms, "--report", str(tmp_path / "report"), "--"]
    with Job(tmp_path, {}) as job:
        ended = job.start(("run", 0), [*words, sys.executable, "-c", SCRIPT]).ended(240)
    assert ended.code == 0, str(ended)
