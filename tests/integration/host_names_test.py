"""Machines that know a host's name by different addresses: Debian's and Ubuntu's installers write "127.0.1.1 NAME" into
a host's own /etc/hosts, and a name may be the address of a machine in front of it. Machines are network namespaces,
each with an /etc/hosts of its own. Plain DDP works there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pytest
from gradwire.netlab import NetHost, NetLab
from integration.hosts import needs_hosts
from integration.processes import SERVER, Ended, Job, Started, listening, wait_until

SECONDS = 120
KEY = "0123456789abcdef" * 8
PROGRAM = """
import sys, numpy, gradwire
kv = gradwire.kv.create(sys.argv[1])
kv.init("w", numpy.zeros(200_000, numpy.float32))
total = numpy.zeros(200_000, numpy.float32)
kv.pushpull("w", numpy.full(200_000, kv.rank + 1, numpy.float32), out=total)
print("rank", kv.rank, "of", kv.num_workers, "has", set(total.tolist()), flush=True)
"""


def worker(store: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, store]


@dataclass
class TwoMachines:
    """Two machines: the first is `nodea`, which it knows as `own`, and the second by its address."""

    folder: Path
    own: str = "127.0.1.1"
    is_lost: bool = False  # the second knows `nodea` by an address that is nobody's
    job: Job = field(init=False)
    hosts: list[NetHost] = field(init=False)
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> TwoMachines:
        with ExitStack() as stack:
            lab = stack.enter_context(NetLab(hosts=2))
            self.hosts = list(lab.hosts)
            self.job = stack.enter_context(Job(self.folder, {"GRADWIRE_ENCRYPT": "off"}))
            first = self.hosts[0].address
            if self.is_lost:
                first = first.rpartition(".")[0] + ".250"
            own_file, other_file = self._files()
            own_file.write_text(f"127.0.0.1 localhost\n{self.own} nodea\n{self.hosts[1].address} nodeb\n")
            other_file.write_text(f"127.0.0.1 localhost\n127.0.1.1 nodeb\n{first} nodea\n")
            self._open = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._open.close()

    def _files(self) -> list[Path]:
        return [self.folder / "hosts.a", self.folder / "hosts.b"]

    def start(
        self, member: tuple[str, int], machine: int, command: Sequence[str], variables: dict[str, str]
    ) -> Started:
        mount = 'mount --bind "$0" /etc/hosts && exec "$@"'
        own_hosts = ["unshare", "--mount", "sh", "-c", mount, str(self._files()[machine])]
        host = self.hosts[machine]
        return self.job.start(
            member, host.command([*own_hosts, *command]), host.environment({}) | {"PATH": _PATH} | variables
        )

    def ended(self) -> list[Ended]:
        return [started.ended(SECONDS) for started in self.job.members.values()]


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def by_hand(rank: int, workers: int, **more: str) -> dict[str, str]:
    at = {"MASTER_ADDR": "nodea", "MASTER_PORT": "29500"}
    return {"RANK": str(rank), "WORLD_SIZE": str(workers), **at, **more}


def by_srun(rank: int, workers: int) -> dict[str, str]:
    job = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "nodea,nodeb"}
    return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(workers), **job}


def by_address(rank: int, workers: int) -> dict[str, str]:
    """Encrypted, too."""
    key = {"GRADWIRE_JOB_KEY": KEY, "GRADWIRE_ENCRYPT": "on"}
    return by_hand(rank, workers, GRADWIRE_MASTER="tcp://nodea:7000", **key)


def expect_sums(ended: Sequence[Ended], workers: int) -> None:
    for process in ended:
        assert process.code == 0, "\n".join(map(str, ended))
    said = sorted(line for process in ended for line in process.out.splitlines() if line.startswith("rank"))
    total = float(sum(range(1, workers + 1)))
    assert said == [f"rank {rank} of {workers} has {{{total}}}" for rank in range(workers)], said


@needs_hosts
@pytest.mark.parametrize("way", [by_hand, by_srun, by_address])
def test_workers_find_rank_0_by_a_name_that_is_loopback_on_its_host(way, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Rank 1 is beside rank 0: its server, too, is to be reached from the other machine."""
    with TwoMachines(tmp_path) as machines:
        for rank, machine in enumerate([0, 0, 1]):
            machines.start(("worker", rank), machine, worker("allreduce"), way(rank, 3))
        expect_sums(machines.ended(), 3)


@needs_hosts
def test_workers_find_rank_0_by_a_name_that_is_no_address_of_its_host(tmp_path: Path) -> None:
    with TwoMachines(tmp_path, own="192.0.2.1") as machines:
        for rank in range(2):
            machines.start(("worker", rank), rank, worker("allreduce"), by_hand(rank, 2))
        expect_sums(machines.ended(), 2)


@needs_hosts
def test_servers_and_workers_find_a_scheduler_by_such_a_name(tmp_path: Path) -> None:
    counts = ["--workers", "2", "--servers", "2", "--scheduler", "tcp://nodea:7001"]
    at = {"DMLC_PS_ROOT_URI": "nodea", "DMLC_PS_ROOT_PORT": "7001"}
    job = at | {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "2"}
    with TwoMachines(tmp_path) as machines:
        machines.start(("scheduler", 0), 0, [SERVER, "--role", "scheduler", *counts], {})
        for rank in range(2):
            server = [SERVER, "--role", "server", "--rank", str(rank), *counts]
            machines.start(("server", rank), rank, server, {})
            machines.start(("worker", rank), rank, worker("dist_sync"), job | {"DMLC_WORKER_ID": str(rank)})
        expect_sums(machines.ended(), 2)


@needs_hosts
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, {"0.0.0.0"}),
        ({"GRADWIRE_INTERFACE": "eth0"}, {"the first machine's", "127.0.1.1"}),
        ({"LOCAL_WORLD_SIZE": "2"}, {"127.0.0.1"}),
    ],
    ids=["all interfaces", "the one that is asked for", "loopback, where all ranks are on one machine"],
)
def test_where_rank_0_listens(variables: dict[str, str], expected: set[str], tmp_path: Path) -> None:
    with TwoMachines(tmp_path) as machines:
        given = by_hand(0, 2, **variables)
        rank0 = machines.start(("worker", 0), 0, worker("allreduce"), given)

        def addresses() -> set[str]:
            own = machines.hosts[0].address
            found = {address for address, _ in listening(rank0.process.pid)}
            return {{own: "the first machine's", "::": "0.0.0.0"}.get(each, each) for each in found}

        wait_until(lambda: expected <= addresses(), SECONDS, "rank 0 to listen")
        assert addresses() == expected
        rank0.process.kill()


@needs_hosts
def test_a_name_that_leads_nowhere_ends_all_ranks_with_the_cure(tmp_path: Path) -> None:
    with TwoMachines(tmp_path, is_lost=True) as machines:
        for rank in range(2):
            given = by_hand(rank, 2, GRADWIRE_RENDEZVOUS_TIMEOUT="3s")
            machines.start(("worker", rank), rank, worker("allreduce"), given)
        first, second = machines.ended()
    for process in (first, second):
        assert process.code == 1, str(process)
        assert (
            "set GRADWIRE_BIND_HOST to the address by which the other machines reach this one" in process.err
        )
    assert re.search(
        r"still waiting for worker 1 .* can reach tcp://nodea:\d+ \(nodea is 127\.0\.1\.1 here, loopback",
        first.err,
    ), str(first)
    assert re.search(r"no answer from worker 0.* at tcp://nodea:\d+ \([\d.]+\.250 here\)", second.err), str(
        second
    )


HOOK = """
import torch, torch.distributed as dist, gradwire.torch
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
model.register_comm_hook(gradwire.torch.HookState("none"), gradwire.torch.ddp_hook)
model(torch.full((1, 1), dist.get_rank() + 1.0)).sum().backward()
print("gradient", model.module.weight.grad.item(), flush=True)
dist.barrier()
"""
OPTIMIZER = """
import torch, gradwire.torch
torch.set_num_threads(1)
w = torch.nn.Parameter(torch.zeros(1))
optimizer = gradwire.torch.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("w", w)], "none")
(w * (gradwire.torch.default_store().rank + 1)).sum().backward()
print("gradient", w.grad.item(), flush=True)
"""


@needs_hosts
@pytest.mark.parametrize("program", [HOOK, OPTIMIZER], ids=["a process group", "torchrun's store"])
def test_under_torchrun_on_two_machines(program: str, tmp_path: Path) -> None:
    with TwoMachines(tmp_path) as machines:
        for node in range(2):
            nodes = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"]
            words = [*nodes, "--master-addr", "nodea", "--master-port", "29500", "--no-python"]
            command = [sys.executable, "-m", "torch.distributed.run", *words, sys.executable, "-c", program]
            machines.start(("node", node), node, command, {"GRADWIRE_ENCRYPT": "off"})
        ended = machines.ended()
    for process in ended:
        assert process.code == 0, "\n".join(map(str, ended))
        assert "gradient 1.5" in process.out, str(process)
