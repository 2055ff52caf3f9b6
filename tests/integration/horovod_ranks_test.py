"""gradwire.horovod.torch on two and on three ranks, and scripts that import Horovod. One job runs all cases of a
program."""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path

import pytest
from gradwire.launch.supervisor import JobResult, run_job
from integration.torch_jobs import CaseJob, case_names

PROGRAMS = [Path(__file__).with_name(name) for name in ("horovod_cases.py", "horovod_training_cases.py")]
RANKS = (2, 3)
CASES = {program: case_names(program) for program in PROGRAMS}
CASES[PROGRAMS[1]] += case_names(Path(__file__).with_name("horovod_sparse_cases.py"))


@functools.cache
def job_of(program: Path, ranks: int) -> CaseJob:
    with tempfile.TemporaryDirectory() as folder:
        return CaseJob(program, folder, workers=ranks)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("program", "name"),
    [pytest.param(program, name, id=name) for program, names in CASES.items() for name in names],
)
def test_case(program: Path, name: str, ranks: int) -> None:
    job = job_of(program, ranks)
    assert job.passed[name] == ranks, job.text


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_the_job_ends_by_itself(program: Path, ranks: int) -> None:
    job = job_of(program, ranks)
    assert job.exit_code == 0, job.text


def run_script(
    tmp_path: Path, script: str, *, module: tuple[str, ...] = (), servers: int = 0
) -> tuple[JobResult, str]:
    path = tmp_path / "script.py"
    path.write_text(script, encoding="utf-8")
    lines: list[str] = []
    result = run_job(
        [sys.executable, *module, str(path)],
        workers=2,
        servers=servers,
        output=lambda line: lines.append(f"{line.rank}: {line.text}"),
        report=lines.append,
        timeout=300,
    )
    return result, "\n".join(lines)


HOROVODS_SCRIPT = """
import torch
import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.mpi_ops import allreduce, rank

hvd.init()
model = torch.nn.Linear(2, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
model(torch.full((1, 2), 1.0 + hvd.rank())).sum().backward()
optimizer.step()
assert issubclass(HorovodInternalError, RuntimeError) and hvd.HorovodInternalError is HorovodInternalError
assert allreduce(model.weight.grad, op=hvd.Sum).tolist() == [[3.0, 3.0]]
print("rank", rank(), "passed")
"""


@pytest.mark.parametrize("servers", [0, 1])
def test_a_script_of_horovods_runs_unchanged(tmp_path: Path, servers: int) -> None:
    result, text = run_script(
        tmp_path, HOROVODS_SCRIPT, module=("-m", "gradwire.horovod.run"), servers=servers
    )
    assert result.exit_code == 0, text
    assert text.count("passed") == 2


def test_without_the_shim_horovod_is_not_there(tmp_path: Path) -> None:
    result, text = run_script(tmp_path, HOROVODS_SCRIPT)
    assert result.exit_code != 0
    assert "No module named 'horovod'" in text


LEAVES = """
import sys, torch
import gradwire.horovod.torch as hvd

hvd.init()
if hvd.rank() == 0:
    hvd.allreduce_async(torch.ones(2), name="never ready")
    sys.exit(0)
try:
    hvd.allreduce(torch.ones(2), name="other")
except hvd.HorovodInternalError as error:
    print("heard:", error)
"""


def test_who_waits_for_a_rank_that_has_ended_hears_of_it(tmp_path: Path) -> None:
    result, text = run_script(tmp_path, LEAVES)
    assert result.exit_code == 0, text
    assert "heard: allreduce 'other'" in text
    assert "worker 0 has left" in text
