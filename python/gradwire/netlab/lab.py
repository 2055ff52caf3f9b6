"""NetLab: N hosts as network namespaces on one bridge, each with a link of the given rate in both directions.

Threading: make and close a lab in one thread; hosts may be used from any.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from gradwire.netlab import remains
from gradwire.settings.units import parse_rate

MAX_HOSTS = 250
QUEUE_SECONDS = 0.02
"""How long a packet may wait before a link, unless something else is asked for."""
_NEEDED = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
_INTERFACE = "eth0"  # every host's
_OF_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SUBNETS = ("10.77", "172.29", "192.168")
# Linux's default. BBR, which some machines have instead, shares a link unevenly among a job's flows.
_CONGESTION_CONTROL = "cubic"
_CONGESTION_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
# Everything a lab needs of the kernel, in a namespace that ends with the trial.
_TRIAL = """ip link add gwtry0 type veth peer name gwtry1 && ip link add gwtry2 type bridge &&
tc qdisc add dev gwtry0 root tbf rate 1mbit burst 16kb latency 20ms"""

# Ends with 0 where an address answers at all: nobody listens at that port.
_REACH = """import errno, socket, sys
with socket.socket() as probe:
    probe.settimeout(5)
    sys.exit(probe.connect_ex((sys.argv[1], 9)) not in (0, errno.ECONNREFUSED))"""


class NetLabUnavailable(RuntimeError):
    """Hosts as namespaces cannot be made here; the message says why."""


def available() -> str | None:
    """Returns why labs cannot be made here; None: they can."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces exist on Linux only, not on {sys.platform}"
    if not hasattr(os, "pidfd_open"):
        return "this Python was built without os.pidfd_open, which the watchdog needs"
    missing = sorted({package for name, package in _NEEDED.items() if remains.program(name) is None})
    if missing:
        return f"a system program is missing: install {' and '.join(missing)}"
    if os.geteuid() != 0:
        return f"network namespaces need root, and this runs as user {os.geteuid()}"
    trial = _run(
        [_program("unshare"), "--net", "--mount", "sh", "-c", f"PATH=$PATH:/usr/sbin:/sbin; {_TRIAL}"]
    )
    if trial.returncode != 0:
        return f"the kernel refuses: {' '.join(trial.stderr.split()) or f'exit status {trial.returncode}'}"
    return None


@dataclass(frozen=True)
class Counters:
    """What a host's link carried since it was made, as the kernel counts it on a veth: one header per segment
    handed to the link. TCP makes them up to 64 KiB long; a slow link's bucket cuts them to packets again."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int


@dataclass(frozen=True)
class NetHost:
    """One host of a lab: a namespace with an eth0 and a lo of its own."""

    lab: str
    index: int
    address: str

    @property
    def namespace(self) -> str:
        return remains.namespace_of(self.lab, self.index)

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that runs `command` here, with this host's name as hostname. It executes in
        place: the process started is the process that runs."""
        set_name = 'echo "$0" > /proc/sys/kernel/hostname; exec "$@"'
        enter = [_program("nsenter"), f"--net={remains.NETNS / self.namespace}", _program("unshare"), "--uts"]
        return [*enter, "sh", "-c", set_name, self.namespace, *command]

    def environment(self, environment: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the environment (this process's if none is given) with this host's identity in it, and its interface
        for Gloo and NCCL, unless it names one: by this host's name they would find loopback.
        """
        given = os.environ if environment is None else environment
        interfaces = {variable: given.get(variable) or _INTERFACE for variable in _OF_INTERFACES}
        return {**given, **interfaces, "GRADWIRE_HOST_ID": self.namespace}

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a command on this host. Options are those of subprocess.Popen, but for shell.

        Raises: FileNotFoundError: there is no such program.
        """
        environment = self.environment(options.pop("env", None))
        if shutil.which(command[0], path=environment.get("PATH")) is None:
            raise FileNotFoundError(f"netlab: {command[0]!r} is not a program that host {self.index} can run")
        return subprocess.Popen(self.command(command), env=environment, **options)

    def counters(self) -> Counters:
        """Reads the link's counters, at the bridge's end: what arrives there was sent by the host."""
        folder = Path("/sys/class/net") / remains.link_of(self.lab, self.index) / "statistics"
        names = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets")
        return Counters(*(int((folder / name).read_text()) for name in names))


class NetLab:
    """A lab that lives as long as its `with` block, or as long as its process, however that ends.

        with NetLab(hosts=4, bandwidth="1gbit") as lab:
            lab.host(0).popen([...])

    Args:
        hosts: how many, 1 to 250.
        bandwidth: of each host's link, each way, as "100mbit"; None: unshaped.
        loss: share of packets that each host drops on arrival, in [0, 1); one number, or one per host.
        queue_seconds: how long a packet may wait before a shaped link, above 0; what would wait longer is dropped.
        keep: True: it has no owner and stays until `netlab down`.

    Raises: NetLabUnavailable: namespaces cannot be made here. ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        hosts: int,
        bandwidth: str | None = None,
        *,
        loss: float | Sequence[float] = 0.0,
        queue_seconds: float = QUEUE_SECONDS,
        keep: bool = False,
    ) -> None:
        if not 1 <= hosts <= MAX_HOSTS:
            raise ValueError(f"netlab: hosts={hosts} is outside 1 to {MAX_HOSTS}")
        losses = [loss] * hosts if isinstance(loss, (int, float)) else list(loss)
        if len(losses) != hosts or not all(0 <= share < 1 for share in losses):
            raise ValueError(
                f"netlab: loss={loss} is not a number in [0, 1), nor {hosts} of them, one per host"
            )
        if not 0 < queue_seconds <= 10:
            raise ValueError(f"netlab: queue_seconds={queue_seconds} is not above 0, and at most 10")
        try:
            self._bits_per_second = None if bandwidth is None else parse_rate(bandwidth)
        except ValueError as error:
            raise ValueError(f"netlab: bandwidth={error}") from None
        if reason := available():
            raise NetLabUnavailable(f"netlab: no hosts can be made here: {reason}")
        self._losses = losses
        self._queue_seconds = queue_seconds
        self._keep = keep
        self._owner = os.getpid()
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._no_rule = ""  # why the firewall has no rule for this lab, where it should have one
        self.bandwidth = bandwidth
        self.name = secrets.token_hex(3)
        self.hosts: list[NetHost] = []
        self.bridge_address = ""
        try:
            self._make(hosts)
        except BaseException:
            self.close()
            raise

    def host(self, index: int) -> NetHost:
        return self.hosts[index]

    def close(self) -> None:
        """Kills what runs on the hosts and removes them. Repeatable. A forked child's call does nothing."""
        if os.getpid() != self._owner:
            return
        is_gone = remains.remove(self.name)  # if not, the watchdog tries again when this process has ended
        if is_gone and self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None

    def __enter__(self) -> NetLab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _make(self, hosts: int) -> None:
        for lab in remains.ended():
            remains.remove(lab, patience=1.0)
        if not self._keep:
            self._watchdog = _start_watchdog(self._owner, self.name)
        with _subnet_lock():
            subnet = _free_subnet()
            self._record(hosts, subnet).write()
            self._make_bridge(subnet)
        addresses = list(subnet.hosts())
        for index in range(hosts):
            self.hosts.append(NetHost(self.name, index, str(addresses[index])))
            self._make_host(self.hosts[index], subnet)
        self._require_that_hosts_talk()

    def _record(self, hosts: int, subnet: ipaddress.IPv4Network) -> remains.Record:
        owner = None if self._keep else self._owner
        return remains.Record(
            lab=self.name,
            owner=owner,
            owner_started=None if owner is None else remains.started(owner),
            hosts=hosts,
            subnet=str(subnet),
            bandwidth=self.bandwidth,
            pid_namespace=remains.pid_namespace(),
        )

    def _make_bridge(self, subnet: ipaddress.IPv4Network) -> None:
        bridge = remains.bridge_of(self.name)
        self.bridge_address = str(subnet.broadcast_address - 1)
        _ip(
            f"link add {bridge} type bridge",
            f"addr add {self.bridge_address}/{subnet.prefixlen} dev {bridge}",
            f"link set {bridge} up",
        )
        iptables = remains.program("iptables")
        if iptables and _BRIDGE_FILTER.exists() and _BRIDGE_FILTER.read_text().strip() == "1":
            asked = _run([iptables, "-w", "-I", *remains.accept_rule(self.name)])
            self._no_rule = (
                "" if asked.returncode == 0 else " ".join(asked.stderr.split()) or "it gives no reason"
            )

    def _require_that_hosts_talk(self) -> None:
        """Where iptables cannot run, a firewall may still let bridged frames pass: the hosts themselves show it."""
        if not self._no_rule or len(self.hosts) < 2:
            return
        first, second = self.hosts[:2]
        if _run(first.command([sys.executable, "-I", "-S", "-c", _REACH, second.address])).returncode != 0:
            raise NetLabUnavailable(
                "netlab: the hosts cannot reach each other: a firewall drops what passes a bridge, and iptables cannot "
                f"be used to allow it ({self._no_rule})"
            )

    def _make_host(self, host: NetHost, subnet: ipaddress.IPv4Network) -> None:
        link, bridge = remains.link_of(self.name, host.index), remains.bridge_of(self.name)
        _ip(
            f"netns add {host.namespace}",
            f"link add {link} type veth peer name {_INTERFACE} netns {host.namespace}",
            f"link set {link} master {bridge} up",
        )
        _ip(
            f"addr add {host.address}/{subnet.prefixlen} dev {_INTERFACE}",
            "link set lo up",
            f"link set {_INTERFACE} up",
            f"route change {subnet} dev {_INTERFACE} proto kernel scope link src {host.address} {congestion_control()}",
            namespace=host.namespace,
        )
        if self._bits_per_second is not None:
            shape = shaping(self._bits_per_second, self._queue_seconds)
            _demand([_program("tc"), "-n", host.namespace, "qdisc", "add", "dev", _INTERFACE, "root", *shape])
            _demand([_program("tc"), "qdisc", "add", "dev", link, "root", *shape])
        if share := self._losses[host.index]:
            iptables = remains.program("iptables")
            if iptables is None:
                raise NetLabUnavailable(
                    "netlab: loss needs a system program that is missing: install iptables"
                )
            drop = ["-m", "statistic", "--mode", "random", "--probability", f"{share:.9f}", "-j", "DROP"]
            inside = [_program("nsenter"), f"--net={remains.NETNS / host.namespace}"]
            _demand([*inside, iptables, "-w", "-A", "INPUT", "-i", _INTERFACE, *drop])


def congestion_control() -> str:
    """Returns ip-route's words for TCP on a lab's links: cubic, or the machine's own where it has none."""
    known = _CONGESTION_CONTROLS.read_text().split() if _CONGESTION_CONTROLS.exists() else []
    return f"congctl {_CONGESTION_CONTROL}" if _CONGESTION_CONTROL in known else ""


def shaping(bits_per_second: int, queue_seconds: float = QUEUE_SECONDS) -> list[str]:
    """Returns tc's words for a link: a token bucket of 1 ms of the link, at least 16 KB. A larger one is free
    bandwidth at low rates; a smaller one than a few packets cannot keep the rate up."""
    burst_bytes = max(16_000, bits_per_second // 8 // 1000)
    queue = f"{max(1, round(queue_seconds * 1e6))}us"
    return ["tbf", "rate", f"{bits_per_second}bit", "burst", f"{burst_bytes}b", "latency", queue]


def _program(name: str) -> str:
    return remains.program(name) or name


def _run(command: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def _demand(command: Sequence[str], text: str | None = None) -> str:
    done = _run(command, text)
    if done.returncode != 0:
        asked = " ".join(command) if text is None else text.strip().replace("\n", "; ")
        raise NetLabUnavailable(f"netlab: {' '.join(done.stderr.split())} (asked: {asked})")
    return done.stdout


def _ip(*commands: str, namespace: str | None = None) -> None:
    inside = [] if namespace is None else ["-n", namespace]
    _demand([_program("ip"), *inside, "-batch", "-"], "".join(f"{command}\n" for command in commands))


def _free_subnet() -> ipaddress.IPv4Network:
    """Returns a private /24 that overlaps no route of this machine."""
    listing = _demand([_program("ip"), "-4", "-oneline", "route", "show", "table", "all"])
    words = [word for line in listing.splitlines() for word in line.split()[:2]]
    used = [network for word in words if (network := _network(word)) is not None and network.prefixlen > 0]
    for base in _SUBNETS:
        for third in range(256):
            subnet = ipaddress.IPv4Network(f"{base}.{third}.0/24")
            if not any(subnet.overlaps(network) for network in used):
                return subnet
    raise NetLabUnavailable(f"netlab: every /24 of {', '.join(_SUBNETS)} is routed elsewhere on this machine")


def _network(word: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(word, strict=False)
    except ValueError:
        return None


@contextmanager
def _subnet_lock() -> Iterator[None]:
    """Held while a lab takes a subnet, so that two labs made at once take two."""
    remains.RECORDS.mkdir(parents=True, exist_ok=True)
    with open(remains.RECORDS / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start_watchdog(owner: int, lab: str) -> subprocess.Popen[bytes]:
    """Starts the process that removes the lab when this one ends, and waits until it watches."""
    watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(remains.__file__)), str(owner), lab],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # what kills our group must not kill it
    )
    assert watchdog.stdout is not None
    if watchdog.stdout.readline() != b"ready\n":
        watchdog.kill()
        watchdog.communicate()
        raise NetLabUnavailable(
            "netlab: the watchdog, which removes the hosts when this process ends, does not start"
        )
    return watchdog
