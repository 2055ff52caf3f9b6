"""Links that lose packets: TCP sends them again, so a job has the weights of one without loss, and comes to its end."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from gradwire.bench.peer_openmpi import mpirun
from gradwire.launch.child import Line, LocalHost
from gradwire.launch.supervisor import JobResult, run_job
from gradwire.netlab import NetHost, NetLab, remains
from integration.hosts import needs_hosts
from integration.processes import agreed, clean_environment, python, run_to_the_end

WORKERS = 2
BANDWIDTH = "100mbit"  # slow enough that packets on it are those of a wire, not segments of 64 KiB
SHORT, LONG = 40, 1000  # steps
Start = Callable[[NetLab, list[str], dict[str, str], Callable[[Line], None], float], JobResult]


def command(store: str, steps: int) -> list[str]:
    codec = "codec=2bit:threshold=auto,reply=exact"
    return python("linear_model.py", f"store={store}", codec, "rate=1e-6", f"steps={steps}")


def by_run(servers: int) -> Start:
    """Servers on hosts of their own; the scheduler beside the first worker."""

    def start(
        lab: NetLab, words: list[str], env: dict[str, str], output: Callable[[Line], None], seconds: float
    ) -> JobResult:
        def place(role: str, rank: int) -> NetHost:
            return lab.host(WORKERS + rank if role == "server" else rank)

        return run_job(words, WORKERS, servers, env=env, placement=place, output=output, timeout=seconds)

    return start


def by_mpirun(
    lab: NetLab, words: list[str], env: dict[str, str], output: Callable[[Line], None], seconds: float
) -> JobResult:
    hosts = [host.address for host in lab.hosts[:WORKERS]]
    root = LocalHost(lab.bridge_address)
    words = mpirun(words, hosts, lab.name, root.address)
    return run_job(words, 1, 0, env=env, placement=lambda role, rank: root, output=output, timeout=seconds)


# Name of a placement: its store, how many servers of their own, and what starts it.
PLACES: dict[str, tuple[str, int, Start]] = {
    "one server": ("dist_sync", 1, by_run(1)),
    "two servers": ("dist_sync", 2, by_run(2)),
    "peers": ("allreduce", 0, by_run(0)),
    "peers over mpi": ("dist_sync_mpi", 0, by_mpirun),
    "mpi sums": ("allreduce_mpi", 0, by_mpirun),
}


def lost_packets(host: NetHost) -> int:
    """How many the host has dropped on arrival."""
    words = [str(remains.program("iptables")), "-nvxL", "INPUT"]
    listing, _ = host.popen(words, stdout=subprocess.PIPE, text=True).communicate(timeout=300)
    rows = [line.split() for line in listing.splitlines()]
    return sum(int(row[0]) for row in rows if len(row) > 2 and row[2] == "DROP")


def weights(lines: Sequence[str]) -> object:
    records = [json.loads(line[line.index("{") :]) for line in lines if "{" in line]
    assert sorted(record["rank"] for record in records) == list(range(WORKERS)), lines
    assert all(record["moved"] for record in records), "no weight moved: nothing would be proven"
    assert len({record["weights"] for record in records}) == 1, records
    return records[0]["weights"]


def expect_the_weights_of(
    reference: object, place: str, loss: float, steps: int, seconds: float, folder: Path
) -> None:
    store, servers, start = PLACES[place]
    lines: list[str] = []
    with NetLab(hosts=WORKERS + servers, bandwidth=BANDWIDTH, loss=loss) as lab:
        result = start(
            lab,
            command(store, steps),
            clean_environment(folder, {}),
            lambda line: lines.append(line.text),
            seconds,
        )
        lost = [lost_packets(host) for host in lab.hosts]
    assert result.exit_code == 0, "\n".join([f"{result.cause}", *lines])
    assert weights(lines) == reference
    assert min(lost) > 0, f"hosts lost {lost} packets: nothing would be proven"


def without_loss(folder: Path, steps: int) -> object:
    ended = run_to_the_end(folder / "job", command("dist_sync", steps), workers=WORKERS, servers=1)
    return agreed(ended, WORKERS, "weights")


@needs_hosts
@pytest.mark.parametrize("place", ["one server", "peers"])
def test_a_job_over_links_that_lose_packets_has_the_same_weights(place: str, tmp_path: Path) -> None:
    expect_the_weights_of(without_loss(tmp_path, SHORT), place, 0.01, SHORT, 90, tmp_path)


@pytest.mark.soak
@needs_hosts
@pytest.mark.parametrize("loss", [0.001, 0.01])
@pytest.mark.parametrize("place", PLACES)
def test_a_long_job_over_links_that_lose_packets_has_the_same_weights(
    place: str, loss: float, tmp_path: Path
) -> None:
    expect_the_weights_of(without_loss(tmp_path, LONG), place, loss, LONG, 1800, tmp_path)
