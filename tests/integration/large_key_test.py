"""A key of more than 2^31 elements through a server, in fp16.

What it takes, for each element: in the worker the gradient (4 bytes, also the sum's), the residual (4) and the
payload (up to 2, until it is answered); in the server its own residual (4), the last answer (2), which is kept until
the next round, and what has arrived and is not summed yet (up to 2). That is 14 to 18 bytes, 29 to 37 GiB for 2.2
billion elements: more than a machine of 24 GiB has, however the processes are cut. All of it is gone through from
one end to the other, so that swap will do: with 24 GiB of each, the worker had 10.6 bytes an element at most (23.3 GB)
and the server 6.2 (13.6 GB), and two rounds took 7 minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.processes import Run, python

BYTES_PER_ELEMENT = 18
BEYOND = 2_200_000_000


def available_bytes() -> int:
    """Of memory and swap."""
    sizes = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(sizes[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree"))


def sums_are_right(folder: Path, elements: int, seconds: float) -> None:
    with Run(folder, {}, workers=1, servers=1) as job:
        job.launch(python("large_key_worker.py", f"elements={elements}", "steps=2"))
        ended = job.end(seconds)
    assert ended.code == 0, str(ended)
    assert f'"elements": {elements}' in ended.out, str(ended)


def test_a_key_of_many_partitions_is_summed(tmp_path: Path) -> None:
    sums_are_right(tmp_path, 3_000_001, 60)


@pytest.mark.soak
def test_a_key_beyond_two_to_the_31_elements_is_summed(tmp_path: Path) -> None:
    needed, there = BEYOND * BYTES_PER_ELEMENT, available_bytes()
    if there < needed:
        pytest.skip(
            f"a key of {BEYOND} elements in fp16 takes {needed >> 30} GiB, {there >> 30} GiB are available"
        )
    sums_are_right(tmp_path, BEYOND, 3600)
