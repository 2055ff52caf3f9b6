"""Where workers meet: variables that a launcher gives, and ports that it finds for what cannot choose one itself."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from gradwire.launch import rendezvous
from gradwire.launch.child import Host, LocalHost
from gradwire.launch.remote.ssh import SshHost

LOCAL = LocalHost()
FAR = SshHost("far", "10.0.0.2", ("ssh",), "/")
HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_port_is_none_that_the_system_gives_to_connections() -> None:
    first, last = map(int, HANDED_OUT.read_text().split())
    if first < 32_000:
        pytest.skip(f"this system hands out ports from {first} on")
    for _ in range(20):
        assert not first <= rendezvous.free_port("127.0.0.1") <= last


def test_ports_in_use_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        while True:  # three ports in a row of which two are in use
            begin = rendezvous.free_port("127.0.0.1")
            try:
                for port in (begin, begin + 1):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
                with socket.create_server(("127.0.0.1", begin + 2)):
                    pass
                break
            except OSError:
                stack.close()
        monkeypatch.setattr(rendezvous, "_PORTS", (begin, begin + 3))
        monkeypatch.setattr(rendezvous, "_TRIES", 3)
        assert rendezvous.free_port("127.0.0.1") == begin + 2
        monkeypatch.setattr(rendezvous, "_PORTS", (begin, begin + 2))
        monkeypatch.setattr(rendezvous, "_TRIES", 2)
        with pytest.raises(OSError, match=f"2 ports from {begin} to {begin + 1} at 127.0.0.1 are all in use"):
            rendezvous.free_port("127.0.0.1")


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="annot assign"):
        rendezvous.free_port("192.0.2.1")


def is_drawn(port: str) -> bool:
    return int(port) in range(20_000, 32_000)


def test_torchs_ranks_meet_on_the_host_of_rank_0() -> None:
    for rank_0, address in ((LOCAL, "127.0.0.1"), (FAR, "10.0.0.2")):
        found = rendezvous.for_torch({}, rank_0, LOCAL)
        assert found.keys() == set(rendezvous.OF_TORCH)
        assert found["MASTER_ADDR"] == address
        assert is_drawn(found["MASTER_PORT"])


def test_a_place_for_torchs_ranks_that_was_given_counts_if_it_is_whole() -> None:
    whole = {"MASTER_ADDR": "node0", "MASTER_PORT": "7"}
    assert rendezvous.for_torch({**whole, "A": "b"}, FAR, LOCAL) == whole
    assert rendezvous.for_torch({**whole, "MASTER_PORT": ""}, FAR, LOCAL)["MASTER_ADDR"] == "10.0.0.2"


@pytest.mark.parametrize(
    ("workers", "servers", "where"),
    [
        ((LOCAL, LOCAL), (LOCAL,), "beside"),
        ((FAR, LOCAL), (LOCAL,), "beside"),
        ((FAR, FAR), (LOCAL,), "apart"),
        ((FAR, FAR), (), "beside"),
    ],
)
def test_workers_that_choose_a_placement_learn_whether_servers_have_hosts_of_their_own(
    workers: tuple[Host, ...], servers: tuple[Host, ...], where: str
) -> None:
    found = rendezvous.for_choosing_workers(workers, servers, LOCAL)
    assert found["GRADWIRE_SERVER_HOSTS"] == where
    scheme, address, port = found["GRADWIRE_MASTER"].split(":")
    assert (scheme, address) == ("tcp", f"//{workers[0].address}")
    assert is_drawn(port)
