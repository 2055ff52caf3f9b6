"""Launchers are known by their variables, and ranks and meeting points are read from the same ones."""

from __future__ import annotations

import pytest
from gradwire.settings import definitions as settings
from gradwire.settings import launch_environment
from gradwire.settings.launch_environment import first_node, launcher, tell

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "PMIX_NAMESPACE": "123.1",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-04,9]",
}
OF_MPI_LAUNCHER = {"GRADWIRE_NUM_WORKERS": "4", "DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "4"}
RUN = {"GRADWIRE_RANK": "0", "GRADWIRE_NUM_WORKERS": "2"}


@pytest.mark.parametrize(
    ("environ", "name", "rank", "workers"),
    [
        (TORCHRUN, "torchrun", 1, 4),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "hand", 1, 2),
        (MPIRUN, "mpirun", 2, 4),
        (SRUN, "srun", 3, 4),
        (SRUN | MPIRUN, "mpirun", 2, 4),  # mpirun inside a Slurm job
        (MPIRUN | {"RANK": "0"}, "mpirun", 2, 4),  # a shell's leftover
        (SRUN | TORCHRUN, "torchrun", 1, 4),
        (SRUN | TORCHRUN | RUN, "gradwire run", 0, 2),
        (MPIRUN | OF_MPI_LAUNCHER, "gradwire run --launcher mpi", 2, 4),
    ],
)
def test_a_launcher_is_recognised(environ: dict[str, str], name: str, rank: int, workers: int) -> None:
    found = launcher(environ)
    assert found is not None
    assert found[0] == name
    values = settings.read(environ)
    assert (values.rank, values.num_workers) == (rank, workers)


@pytest.mark.parametrize(
    ("environ", "told"), [(RUN, False), (MPIRUN | OF_MPI_LAUNCHER, False), (MPIRUN, True)]
)
def test_our_own_launcher_is_not_told_again(
    environ: dict[str, str],
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in {**TORCHRUN, **SRUN}:
        monkeypatch.delenv(name, raising=False)
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    tell("allreduce", 4)
    assert ("started by" in capsys.readouterr().err) is told


@pytest.mark.parametrize(
    "half",
    [
        {"RANK": "2"},
        {"WORLD_SIZE": "4"},
        {"OMPI_COMM_WORLD_RANK": "2"},
        {"OMPI_COMM_WORLD_SIZE": "4"},
        {key: text for key, text in SRUN.items() if key != "SLURM_STEP_ID"},  # a batch script, not a task
        {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"},
        {},
    ],
)
def test_half_a_launcher_is_none(half: dict[str, str]) -> None:
    assert launcher(half) is None
    values = settings.read(half)
    assert (values.rank, values.num_workers, values.local_rank) == (None, 1, None)


def test_launchers_give_local_ranks() -> None:
    assert [settings.read(environ).local_rank for environ in (TORCHRUN, MPIRUN, SRUN)] == [1, 2, 1]


def test_where_workers_meet() -> None:
    at = settings.read(TORCHRUN).master
    assert at is not None
    assert at.startswith("tcp://node0:")
    port = int(at.rpartition(":")[2])
    assert port not in (29500, 29501)  # torch's, and that of the next job
    assert settings.read(TORCHRUN | {"MASTER_PORT": "29501"}).master != at
    here = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "1"}
    assert settings.read(TORCHRUN | here).master == f"tcp://127.0.0.1:{port}"
    assert settings.read(TORCHRUN | {"LOCAL_WORLD_SIZE": "2"}).master == at
    at = settings.read(MPIRUN).master
    assert at is not None
    assert at.startswith("tcp://127.0.0.1:")
    assert settings.read(MPIRUN | {"PMIX_NAMESPACE": "124.1"}).master != at
    assert settings.read(MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}).master is None  # several hosts
    at = settings.read(SRUN).master
    assert at is not None
    assert at.startswith("tcp://gpu03:")
    assert settings.read(SRUN | {"SLURM_PROCID": "0"}).master == at
    assert settings.read(SRUN | {"SLURM_STEP_ID": "1"}).master != at
    at = settings.read(SRUN | {"SLURM_STEP_NODELIST": "gpu03"}).master
    assert at is not None
    assert at.startswith("tcp://127.0.0.1:")


def test_no_port_of_ranks_is_torchs_own_or_the_next_jobs() -> None:
    for port in [29523, *range(1024, 65536, 61)]:
        at = launch_environment.meeting_beside_torch("node0", str(port))
        assert int(at.rpartition(":")[2]) not in (port, *range(port + 1, port + 9)), (port, at)


def test_a_port_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"MASTER_ADDR and MASTER_PORT.*tcp://host:port"):
        settings.read(TORCHRUN | {"MASTER_PORT": "x"})


def test_torchruns_store_is_joined_where_torchrun_serves_one() -> None:
    serves = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert launch_environment.store_of_torchrun(serves) == ("node0", 29500)
    assert launch_environment.store_of_torchrun(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}) is None
    assert launch_environment.store_of_torchrun(TORCHRUN) is None
    assert launch_environment.store_of_torchrun(serves | {"MASTER_PORT": ""}) is None
    inside = {"GRADWIRE_RANK": "0", "GRADWIRE_NUM_WORKERS": "2"}  # another job's, of a rank
    assert launch_environment.store_of_torchrun(serves | inside) is None


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, None),
        ({"WORLD_SIZE": "1"}, None),
        ({"WORLD_SIZE": "4"}, "4 workers (WORLD_SIZE)"),
        ({"HOROVOD_SIZE": "2"}, "2 workers (HOROVOD_SIZE)"),
        ({"PMI_SIZE": "8"}, "8 workers (PMI_SIZE)"),
        ({"WORLD_SIZE": "many"}, None),
        ({"SLURM_NTASKS": "4"}, None),  # of a batch script, which runs once
    ],
)
def test_other_launchers_say_how_many_there_are(variables: dict[str, str], told: str | None) -> None:
    assert launch_environment.several(1, variables) == told
    assert launch_environment.several(3, variables) == "3 workers"


def test_the_tasks_of_an_mpirun_inside_a_slurm_step_do_not_meet_where_the_step_began() -> None:
    on_several_hosts = MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    assert settings.read(SRUN | on_several_hosts).master is None


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("localhost", "localhost"),
        ("node7,node9", "node7"),
        ("node[01-03,7]", "node01"),
        ("node[5,7],gpu2", "node5"),
        ("rack1-n[2-3]-ib,x", "rack1-n2-ib"),
    ],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first
