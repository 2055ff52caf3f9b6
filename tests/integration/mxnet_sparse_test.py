"""MXNet's sparse gradients in stores of all names: weights of one process, by Trainer and by Module."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.mxnet_environment import environment, require_mxnet
from integration.torch_jobs import CaseJob, case_names

HERE = Path(__file__).parent
EXEC, PROGRAM = HERE / "mxnet_exec.py", HERE / "mxnet_sparse_cases.py"
SERVERS = {"dist_sync": 1, "p3": 1, "byteps": 1, "allreduce": 0, "horovod": 0}


@pytest.mark.parametrize("case", case_names(PROGRAM))
@pytest.mark.parametrize("name", SERVERS)
def test_rows_of_all_ranks_are_summed(name: str, case: str, tmp_path: Path) -> None:
    require_mxnet()
    with environment(tmp_path):  # a process joins one job: one store
        ended = CaseJob(EXEC, str(PROGRAM), name, case, workers=2, servers=SERVERS[name])
    assert (ended.passed[case], ended.exit_code) == (2, 0), ended.text
