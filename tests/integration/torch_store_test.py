"""torch.distributed as a store, by its entry point: compressed sums with the bits of our own stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.processes import Ended, Job, agreed, python, run_to_the_end
from integration.torch_jobs import torchrun

WORKERS = 2  # dense sums of two do not depend on their order


def by_torchrun(folder: Path, codec: str) -> Ended:
    """Integers are summed as they are; compressed, they had come back as 0 and 1."""
    folder.mkdir()
    with Job(folder, {}) as job:
        words = ("store=torch", f"codec={codec}", "integers=yes")
        command = torchrun("torch_store_worker.py", *words, workers=WORKERS)
        return job.start(("run", 0), command).ended(90)


@pytest.mark.parametrize(
    "codec", ["none", "2bit:threshold=auto", "2bit:threshold=0.5,reply=2bit", "int8", "topk"]
)
def test_a_backend_of_another_maker_gives_what_servers_give(codec: str, tmp_path: Path) -> None:
    ours = run_to_the_end(
        tmp_path / "ours",
        python("torch_store_worker.py", "store=dist_sync", f"codec={codec}"),
        workers=WORKERS,
        servers=2,
    )
    assert agreed(by_torchrun(tmp_path / "torch", codec), WORKERS) == agreed(ours, WORKERS)
