"""MXNet's optimizers that come to differ between workers: an error that names the number, the ranks and the step."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.mxnet_environment import environment, require_mxnet
from integration.torch_jobs import CaseJob

HERE = Path(__file__).parent
EXEC, PROGRAM = HERE / "mxnet_exec.py", HERE / "mxnet_agreement_cases.py"


@pytest.mark.parametrize(
    ("name", "case", "servers"),
    [
        ("allreduce", "batches_that_differ", 0),
        ("dist_sync", "a_rate_that_one_worker_changes", 1),
        ("horovod", "batches_that_differ_where_the_trainer_updates", 0),
        ("gradwire", "batches_that_differ_where_the_trainer_updates", 0),
        ("p3", "the_last_step_differs", 1),
    ],
)
def test_optimizers_that_differ_are_named(name: str, case: str, servers: int, tmp_path: Path) -> None:
    require_mxnet()
    with environment(tmp_path):  # a process joins one job: one store
        ended = CaseJob(EXEC, str(PROGRAM), name, case, workers=2, servers=servers)
    assert (ended.passed[case], ended.exit_code) == (2, 0), ended.text
