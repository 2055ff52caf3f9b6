"""gradwire.horovod.mxnet and gradwire.byteps.mxnet under MXNet 1.9.1. One job runs all cases of a program."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from gradwire.launch.supervisor import JobResult, run_job
from integration.mxnet_environment import environment, require_mxnet
from integration.torch_jobs import CaseJob, case_names

HERE = Path(__file__).parent
EXEC = HERE / "mxnet_exec.py"
HOROVOD, BYTEPS, DOORS = (HERE / f"mxnet_{name}_cases.py" for name in ("horovod", "byteps", "doors"))

# Program, its arguments, workers and servers.
JOBS = [
    (HOROVOD, (), 2, 0),
    (HOROVOD, (), 3, 1),
    (BYTEPS, (), 2, 1),
    (DOORS, ("none",), 2, 2),
    (DOORS, ("int8",), 2, 2),
]


@pytest.fixture(scope="module", autouse=True)
def mxnet() -> None:
    """Looks for MXNet once, and not in each of the tests."""
    require_mxnet()


@functools.cache
def job_of(program: Path, arguments: tuple[str, ...], workers: int, servers: int) -> CaseJob:
    with tempfile.TemporaryDirectory() as folder, environment(Path(folder)):
        return CaseJob(EXEC, str(program), *arguments, workers=workers, servers=servers)


def job_name(job: tuple[Path, tuple[str, ...], int, int]) -> str:
    program, arguments, workers, servers = job
    return "-".join([program.stem.removesuffix("_cases"), *arguments, f"{workers}x{servers}"])


@pytest.mark.parametrize(
    ("job", "name"),
    [pytest.param(job, name, id=f"{job_name(job)}-{name}") for job in JOBS for name in case_names(job[0])],
)
def test_case(job: tuple[Path, tuple[str, ...], int, int], name: str) -> None:
    ended = job_of(*job)
    assert ended.passed[name] == ended.workers, ended.text


@pytest.mark.parametrize("job", JOBS, ids=job_name)
def test_the_job_ends_by_itself(job: tuple[Path, tuple[str, ...], int, int]) -> None:
    ended = job_of(*job)
    assert ended.exit_code == 0, ended.text


def run_script(
    folder: Path, script: str, *module: str, engine: str = "ThreadedEnginePerDevice"
) -> tuple[JobResult, str]:
    path = folder / "script.py"
    path.write_text(script, encoding="utf-8")
    lines: list[str] = []
    with environment(folder):
        result = run_job(
            [sys.executable, str(EXEC), *module, str(path)],
            workers=2,
            servers=0,
            env={"MXNET_ENGINE_TYPE": engine},
            output=lambda line: lines.append(f"{line.rank}: {line.text}"),
            report=lines.append,
            timeout=300,
        )
    return result, "\n".join(lines)


HOROVODS_SCRIPT = """
import horovod.mxnet as hvd
import mxnet as mx
from horovod.mxnet.mpi_ops import allreduce, rank

hvd.init()
net = mx.gluon.nn.Dense(1, in_units=2, use_bias=False)
net.initialize(mx.init.One())
hvd.broadcast_parameters(net.collect_params(), root_rank=0)
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
with mx.autograd.record():
    loss = net(mx.nd.full((1, 2), 1.0 + hvd.rank())).sum()
loss.backward()
trainer.step(1)
assert abs(net.weight.data().asnumpy() - 0.85).max() < 1e-6
assert allreduce(mx.nd.ones(2), op=hvd.Sum).asnumpy().tolist() == [2, 2]
print("rank", rank(), "passed")
"""


def test_a_script_of_horovods_runs_unchanged(tmp_path: Path) -> None:
    result, text = run_script(tmp_path, HOROVODS_SCRIPT, "-m", "gradwire.horovod.run")
    assert result.exit_code == 0, text
    assert text.count("passed") == 2


QUICK_START = "mpirun -np 2 -H localhost:2 -bind-to none -map-by slot"


def test_horovods_quick_start_under_mpirun(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(HOROVODS_SCRIPT, encoding="utf-8")
    program = [sys.executable, str(EXEC), "-m", "gradwire.horovod.run", str(path)]
    with environment(tmp_path):
        command = [*QUICK_START.split(), "--allow-run-as-root", *program]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("passed") == 2


ENDS_UNREAD = """
import gradwire.horovod.mxnet as hvd
import mxnet as mx

hvd.init()
total = hvd.allreduce(mx.nd.ones(2 + {more} * hvd.rank()), op=hvd.Sum, name="last")
if hvd.rank() == 0:
    print("read", total.asnumpy().tolist())
"""


def test_what_a_rank_has_started_is_done_before_its_script_ends(tmp_path: Path) -> None:
    result, text = run_script(tmp_path, ENDS_UNREAD.format(more=0))
    assert result.exit_code == 0, text
    assert "0: read [2.0, 2.0]" in text


def test_a_failure_that_no_script_has_heard_of_fails_the_process(tmp_path: Path) -> None:
    result, text = run_script(tmp_path, ENDS_UNREAD.format(more=1))
    assert result.exit_code == 1, text
    assert "0: gradwire.horovod.mxnet.errors.ReadError: HorovodInternalError: allreduce 'last'" in text
    assert "1: gradwire.horovod.mxnet: an operation failed that the script has not heard of" in text


IN_ORDER = """
import gradwire.horovod.mxnet as hvd
import mxnet as mx

hvd.init()
tensor = mx.nd.ones(3)
hvd.allreduce_(tensor, op=hvd.Sum)
assert tensor.asnumpy().tolist() == [2, 2, 2]
try:
    hvd.allreduce(mx.nd.ones(1 + hvd.rank()), name="differs")
except hvd.HorovodInternalError as error:
    print("heard:", error)
"""


def test_with_naive_engine_each_call_waits_and_raises(tmp_path: Path) -> None:
    result, text = run_script(tmp_path, IN_ORDER, engine="NaiveEngine")
    assert result.exit_code == 0, text
    assert text.count("heard: allreduce 'differs': rank 0 has float32 of shape (1,)") == 2
