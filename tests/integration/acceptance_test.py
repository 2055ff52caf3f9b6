"""MXNet's own acceptance of 2-bit compression, with its numbers, on 7 workers and 2 servers.

Source: MXNet 1.9.1, tests/nightly/dist_sync_kvstore.py, whose `test` optimizer adds rescale_grad times the sum: pushes
of 0, .4, .1, .2, .3, .5 with threshold .5 and rate 2 leave 0, 0, N, N, 2N, 3N.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.processes import python, run_to_the_end

WORKERS = 7


@pytest.mark.parametrize("form", ["push", "pushpull"])
def test_two_bit_acceptance(form: str, tmp_path: Path) -> None:
    ended = run_to_the_end(
        tmp_path, python("acceptance_worker.py", form), workers=WORKERS, servers=2, seconds=120
    )
    assert ended.code == 0, str(ended)
    records = ended.records()
    assert {record["rank"] for record in records} == set(range(WORKERS))
    for record in records:
        assert record["constants"] == [0, 0, WORKERS, WORKERS, 2 * WORKERS, 3 * WORKERS]
        assert record["inits"] == [0, 1]
        assert record["random_steps_equal"] == 7
