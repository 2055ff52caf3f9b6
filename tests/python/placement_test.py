"""The chooser's model: what each placement costs, and which is taken."""

from __future__ import annotations

import pytest
from gradwire.stores.placement import Link, Option, choose, seconds

GBIT = Link(0.955e9 / 8, 100e-6)
PEERS = Option("allreduce", "peers")
MPI = Option("allreduce_mpi", "native", library="mpi")
NCCL = Option("nccl", "native", library="nccl")


def servers(count: int, apart: bool = False) -> Option:
    return Option("dist_sync", "servers", count, apart)


@pytest.mark.parametrize(
    ("option", "workers", "payloads"),
    [
        (PEERS, 2, 1.0),
        (PEERS, 4, 1.5),
        (PEERS, 8, 1.75),
        (servers(2), 2, 1.0),  # beside workers, as many: as peers
        (servers(8), 8, 1.75),
        (servers(1), 8, 7.0),  # one beside a worker takes what seven send
        (servers(8, apart=True), 8, 1.0),
        (servers(2, apart=True), 8, 4.0),
        (servers(16, apart=True), 8, 1.0),
        (NCCL, 4, 1.5),
        (MPI, 2, 1.08),
        (MPI, 4, 1.5 * 1.55),
    ],
)
def test_a_large_payload_costs_what_the_busiest_link_carries(
    option: Option, workers: int, payloads: float
) -> None:
    size = 1e9
    assert seconds(option, size, workers, GBIT) == pytest.approx(
        payloads * size / GBIT.bytes_per_second, rel=1e-3
    )


def test_a_small_payload_costs_messages() -> None:
    assert seconds(PEERS, 0, 8, GBIT) == pytest.approx(2 * GBIT.latency)
    assert seconds(MPI, 0, 8, GBIT) == pytest.approx(3 * GBIT.latency)
    assert seconds(MPI, 0, 2, GBIT) == pytest.approx(GBIT.latency)


def test_one_worker_waits_for_nobody() -> None:
    assert [seconds(option, 1e9, 1, GBIT) for option in (PEERS, MPI, servers(1))] == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "payload_bytes", "workers", "store"),
    [
        ([PEERS, servers(4)], 100e6, 4, "allreduce"),  # equal: the first
        ([PEERS, servers(1)], 100e6, 4, "allreduce"),
        ([PEERS, servers(8, apart=True)], 100e6, 8, "dist_sync"),
        ([PEERS, servers(2, apart=True)], 100e6, 8, "allreduce"),
        ([PEERS, MPI], 100e6, 4, "allreduce"),
        ([PEERS, MPI], 100, 2, "allreduce_mpi"),  # one message instead of two
    ],
)
def test_the_soonest_is_taken(options: list[Option], payload_bytes: float, workers: int, store: str) -> None:
    assert choose(options, payload_bytes, workers, GBIT).option.store == store


def test_the_reason_names_what_it_went_by_and_what_it_expects_of_each() -> None:
    reason = choose([PEERS, servers(8, apart=True)], 100e6, 8, GBIT).reason
    assert reason == (
        "placement auto: servers (dist_sync), for 100 MB a round, 8 workers and a link of 119 MB/s and 100 us: "
        "expected peers (allreduce) 1.47 s; servers (dist_sync) 838 ms"
    )


def test_nothing_to_choose_from_is_an_error() -> None:
    with pytest.raises(ValueError, match="no store to choose from"):
        choose([], 1, 2, GBIT)
