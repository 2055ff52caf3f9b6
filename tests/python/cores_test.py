"""The number of threads follows the cores that a process may use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from gradwire.settings.cores import default_codec_threads


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 2), (8, 4), (64, 4)])
def test_half_of_the_cores_encode_and_decode_up_to_four(cores: int, threads: int) -> None:
    assert default_codec_threads(cores) == threads


def test_cores_that_a_process_may_not_use_do_not_count() -> None:
    program = (
        "import os; from gradwire.settings.cores import usable_cores; "
        f"os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}]); print(usable_cores())"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "1"
