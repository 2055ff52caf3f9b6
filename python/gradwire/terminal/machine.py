"""What this machine is, which gradwire it has, and whether namespaces can be made on it."""

from __future__ import annotations

import fcntl
import importlib
import importlib.metadata
import os
import platform
import socket
import struct

from gradwire.settings.units import format_bytes

_SIOCGIFADDR = 0x8915


def gradwire_version() -> str:
    """Returns the installed version, or "source" where gradwire is used without being installed."""
    try:
        return importlib.metadata.version("gradwire")
    except importlib.metadata.PackageNotFoundError:
        return "source"


def netlab_reason() -> str | None:
    """Returns why hosts as network namespaces cannot be made here; None: they can."""
    try:
        netlab = importlib.import_module("gradwire.netlab")
    except ImportError as error:
        return f"cannot be imported ({error})"
    reason: str | None = netlab.available()
    return reason


def machine_description() -> dict[str, str | int]:
    """Names the processor, its cores, the memory and the system: what a measured figure depends on."""
    model = platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": names[0] if names else model,
        "cores": len(os.sched_getaffinity(0)),
        "memory": format_bytes(memory),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def interfaces() -> dict[str, list[str]]:
    """Lists network interfaces that have an address, with their addresses."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # no IPv4 address
            found.setdefault(name, []).append(socket.inet_ntoa(reply[20:24]))
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            for line in file:
                address, *_, name = line.split()
                text = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address))
                found.setdefault(name, []).append(text)
    except FileNotFoundError:
        pass  # a kernel without IPv6
    return found
