"""Ports that launchers find for what cannot choose one itself."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from gradwire.launch import job

HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_port_is_none_that_the_system_gives_to_connections() -> None:
    first, last = map(int, HANDED_OUT.read_text().split())
    if first < 32_000:
        pytest.skip(f"this system hands out ports from {first} on")
    for _ in range(20):
        assert not first <= job.free_port("127.0.0.1") <= last


def test_ports_in_use_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        while True:  # three ports in a row of which two are in use
            begin = job.free_port("127.0.0.1")
            try:
                for port in (begin, begin + 1):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
                with socket.create_server(("127.0.0.1", begin + 2)):
                    pass
                break
            except OSError:
                stack.close()
        monkeypatch.setattr(job, "_MEETING_PORTS", (begin, begin + 3))
        monkeypatch.setattr(job, "_TRIES", 3)
        assert job.free_port("127.0.0.1") == begin + 2
        monkeypatch.setattr(job, "_MEETING_PORTS", (begin, begin + 2))
        monkeypatch.setattr(job, "_TRIES", 2)
        with pytest.raises(OSError, match=f"2 ports from {begin} to {begin + 1} at 127.0.0.1 are all in use"):
            job.free_port("127.0.0.1")


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="annot assign"):
        job.free_port("192.0.2.1")
