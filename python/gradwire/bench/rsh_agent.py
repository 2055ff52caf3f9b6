"""What mpirun calls in place of ssh: runs a shell command on a host of a netlab, in place of this process.

    python rsh_agent.py LAB ADDRESS WORD...

Each host has its own hostname, or OpenMPI would take them all for one and let ranks meet in shared memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from ipaddress import IPv4Network


def enter(lab: str, address: str, words: Sequence[str]) -> None:
    """Raises: ValueError: no such lab, or it has no host with this address."""
    from gradwire.netlab import NetHost, remains

    record = remains.read(lab)
    addresses = (
        [] if record is None else [str(host) for host in IPv4Network(record.subnet).hosts()][: record.hosts]
    )
    if address not in addresses:
        raise ValueError(
            f"rsh_agent: lab {lab} has no host {address}: expected one of {', '.join(addresses)}"
        )
    host = NetHost(lab, addresses.index(address), address)
    command = host.command(["sh", "-c", " ".join(words)])
    os.execvpe(command[0], command, host.environment())


if __name__ == "__main__":
    enter(sys.argv[1], sys.argv[2], sys.argv[3:])
