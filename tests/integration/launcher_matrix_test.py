"""Every launcher, and what may happen to a job: a role dies, or Ctrl-C. The code is right, and no process is left.

Kubernetes and YARN are stand-ins (kubectl_here.py, yarn_here.py): what is shown of them is our side alone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from integration import launched, sge_cluster, slurm_cluster, ssh_hosts
from integration.launched import Bed
from integration.processes import Member, assert_gone, member_of, names, wait_until
from integration.stand_ins import stand_in

VICTIMS: list[Member] = [("worker", 1), ("server", 0), ("scheduler", 0)]


@contextmanager
def here(_: Path) -> Iterator[Bed]:
    yield Bed("local")


@contextmanager
def over_ssh(folder: Path) -> Iterator[Bed]:
    with ssh_hosts.ssh_lab(2, folder) as lab:
        yield Bed("ssh", ["--ssh", lab.client, "-H", ",".join(lab.hosts)])


@contextmanager
def by_mpi(_: Path) -> Iterator[Bed]:
    yield Bed("mpi")


@contextmanager
def on_slurm(_: Path) -> Iterator[Bed]:
    with slurm_cluster.slurm_cluster() as cluster:
        yield Bed("slurm", variables=cluster.environment)


@contextmanager
def on_sge(_: Path) -> Iterator[Bed]:
    with sge_cluster.sge_cluster() as cluster:
        yield Bed("sge", variables=cluster.environment)


@contextmanager
def on_yarn(folder: Path) -> Iterator[Bed]:
    yield Bed("yarn", variables=stand_in("yarn", folder))


@contextmanager
def on_kubernetes(folder: Path) -> Iterator[Bed]:
    yield Bed("kubernetes", ["--image", "registry/image:1"], stand_in("kubectl", folder))


MakeBed = Callable[[Path], AbstractContextManager[Bed]]
BEDS: dict[str, tuple[MakeBed, str | None]] = {  # with the reason why it cannot be made here
    "local": (here, None),
    "ssh": (over_ssh, ssh_hosts.why_not()),
    "mpi": (by_mpi, None),
    "slurm": (on_slurm, slurm_cluster.why_not()),
    "sge": (on_sge, sge_cluster.why_not()),
    "yarn": (on_yarn, None),
    "kubernetes": (on_kubernetes, None),
}


@pytest.fixture(scope="module", params=BEDS)
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    make, why_not = BEDS[request.param]
    if why_not is not None:
        pytest.skip(why_not)
    with make(tmp_path_factory.mktemp(request.param)) as made:
        yield made


def pid_of(victim: Member, started: list[int], folder: Path) -> int:
    if victim[0] == "worker":
        return int((folder / f"worker{victim[1]}.pid").read_text())
    (pid,) = [pid for pid in started if member_of(pid) == victim]
    return pid


@pytest.mark.parametrize("victim", VICTIMS, ids=[role for role, _ in VICTIMS])
def test_a_role_that_is_killed(bed: Bed, victim: Member, tmp_path: Path) -> None:
    job = bed.job(tmp_path, GRADWIRE_LIVENESS_TIMEOUT="1s")
    with launched.running(job, bed, launched.ENDLESS) as started:
        os.kill(pid_of(victim, started, tmp_path), signal.SIGKILL)
        ended = launched.end(job, launched.NOTICE_SECONDS)
        assert_gone(started, launched.NOTICE_SECONDS)
    assert ended.code == 128 + signal.SIGKILL, str(ended)
    assert names(ended.out + ended.err, victim), str(ended)


def test_ctrl_c(bed: Bed, tmp_path: Path) -> None:
    job = bed.job(tmp_path, GRADWIRE_LIVENESS_TIMEOUT="1s")
    with launched.running(job, bed, launched.ENDLESS) as started:
        ended = launched.signal_the_launcher(job, signal.SIGINT, started)
    assert ended.code == launched.shell_code(signal.SIGINT), str(ended)
    state = Path(next((bed.variables[name] for name in bed.variables if name.endswith("_HERE")), "/none"))
    wait_until(lambda: not [*state.glob("*-*.json"), *state.glob("*.service")], 30, "nothing to be left")
