"""netlab: real namespaces, traffic and kills. Where hosts cannot be made, each test asserts the reason."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gradwire import netlab
from gradwire.netlab import NetHost, NetLab, NetLabUnavailable, lab, remains
from integration.hosts import needs_hosts
from typer.testing import CliRunner

COMMAND = [sys.executable, "-m", "gradwire.netlab"]
RECEIVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
peer, _ = server.accept()
total, began = len(peer.recv(1 << 16)), time.monotonic()
while data := peer.recv(1 << 16):
    total += len(data)
print(total, time.monotonic() - began)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as peer:
    peer.sendall(bytes(int(sys.argv[2])))
"""
COUNT_DATAGRAMS = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
s.bind((sys.argv[1], 5000))
s.settimeout(1)
print("ready", flush=True)
count = 0
try:
    while s.recv(100):
        count += 1
except TimeoutError:
    print(count)
"""
SEND_DATAGRAMS = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(int(sys.argv[2])):
    s.sendto(b"x", (sys.argv[1], 5000))
    if i % 50 == 0: time.sleep(0.002)
"""
OWNER = """
import time
from gradwire.netlab import NetLab
lab = NetLab(hosts=2)
sleeper = lab.host(1).popen(["sleep", "300"])
print(lab.name, sleeper.pid, lab._watchdog.pid, flush=True)
time.sleep(1000)
"""


def start(host: NetHost, script: str, *arguments: object) -> subprocess.Popen[str]:
    """Starts a script that prints `ready` once it listens, and waits for that."""
    process = host.popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def run(host: NetHost, *command: object) -> str:
    process = host.popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return output


def measured_mbit(sender: NetHost, receiver: NetHost, payload_bytes: int) -> float:
    """Sends bytes from one host to another; returns the payload rate that the receiver saw."""
    process = start(receiver, RECEIVE, receiver.address)
    run(sender, sys.executable, "-c", SEND, receiver.address, payload_bytes)
    total, seconds = process.communicate(timeout=300)[0].split()
    assert int(total) == payload_bytes
    return payload_bytes * 8e-6 / float(seconds)


def remains_of(name: str) -> list[str]:
    names = [
        path.name for folder in (remains.NETNS, Path("/sys/class/net")) for path in folder.glob(f"*{name}*")
    ]
    return names + [path.name for path in remains.RECORDS.glob(f"*{name}*")]


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.02)


def start_owner() -> tuple[subprocess.Popen[str], str, int, int]:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    name, sleeper, watchdog = owner.stdout.readline().split()
    return owner, name, int(sleeper), int(watchdog)


@needs_hosts
@pytest.mark.alone
def test_links_carry_their_rate_both_ways_and_count_it() -> None:
    payload_bytes = 6_000_000
    with NetLab(hosts=2, bandwidth="100mbit") as shaped:
        first, second = shaped.hosts
        forth = measured_mbit(first, second, payload_bytes)
        assert first.counters().sent_bytes == pytest.approx(payload_bytes, rel=0.08)
        assert second.counters().received_bytes == pytest.approx(payload_bytes, rel=0.08)
        assert second.counters().sent_bytes < payload_bytes / 5
        back = measured_mbit(second, first, payload_bytes)
    assert [forth, back] == pytest.approx([95.5, 95.5], rel=0.1)  # 95.5 %: the rest are headers at MTU 1500


@needs_hosts
@pytest.mark.alone
def test_without_a_bandwidth_links_are_not_shaped() -> None:
    with NetLab(hosts=2) as unshaped:
        assert measured_mbit(*unshaped.hosts, payload_bytes=50_000_000) > 500


@needs_hosts
def test_gloo_and_nccl_take_a_hosts_own_interface_unless_another_is_given() -> None:
    """By its name they would find loopback, and no other host."""
    with NetLab(hosts=1) as lab:
        host = lab.host(0)
        own = host.environment({})
        assert (own["GLOO_SOCKET_IFNAME"], own["NCCL_SOCKET_IFNAME"]) == ("eth0", "eth0")
        given = host.environment({"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": ""})
        assert (given["GLOO_SOCKET_IFNAME"], given["NCCL_SOCKET_IFNAME"]) == ("lo", "eth0")
        assert run(host, "sh", "-c", "echo $GLOO_SOCKET_IFNAME").strip() == "eth0"


@needs_hosts
def test_a_host_is_itself_and_the_root_reaches_it() -> None:
    with NetLab(hosts=3) as three:
        host = three.host(2)
        words = run(
            host, "sh", "-c", "echo $GRADWIRE_HOST_ID; cat /proc/sys/kernel/hostname; ls /sys/class/net"
        ).split()
        assert words[:2] == [host.namespace, host.namespace]
        assert run(host, "ip", "-o", "-4", "addr").count("127.0.0.1/8") == 1
        assert len({h.namespace for h in three.hosts} | {h.address for h in three.hosts}) == 6
        process = start(host, RECEIVE, host.address)
        with socket.create_connection((host.address, 5000), timeout=300) as peer:
            assert peer.getsockname()[0] == three.bridge_address
            peer.sendall(b"hello")
        assert process.communicate(timeout=300)[0].split()[0] == "5"
        assert socket.gethostname() != host.namespace


@needs_hosts
def test_tcp_is_cubic_at_both_ends() -> None:
    listen = (
        "import socket, sys; server = socket.create_server((sys.argv[1], 5000)); print('ready', flush=True); "
        "peer, _ = server.accept(); print(peer.getsockopt(socket.IPPROTO_TCP, 13, 16)); peer.recv(1)"
    )
    ask = (
        "import socket, sys; peer = socket.create_connection((sys.argv[1], 5000)); "
        "print(peer.getsockopt(socket.IPPROTO_TCP, 13, 16))"  # TCP_CONGESTION
    )
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    assert "cubic" in known, "this kernel has no cubic; a lab then takes what the machine has"
    with NetLab(hosts=2) as two:
        process = start(two.host(1), listen, two.host(1).address)
        asked = run(two.host(0), sys.executable, "-c", ask, two.host(1).address)
        answered = process.communicate(timeout=300)[0]
    assert "cubic" in asked
    assert "cubic" in answered


@needs_hosts
def test_loss_is_the_share_asked_for_on_the_host_asked_for() -> None:
    sent = 2000
    with NetLab(hosts=3, loss=[0.0, 0.3, 0.0]) as lossy:
        arrived = []
        for receiver in lossy.hosts[1:]:
            process = start(receiver, COUNT_DATAGRAMS, receiver.address)
            run(lossy.host(0), sys.executable, "-c", SEND_DATAGRAMS, receiver.address, sent)
            arrived.append(int(process.communicate(timeout=300)[0]))
    assert arrived[1] == sent
    assert arrived[0] == pytest.approx(0.7 * sent, abs=120)  # six standard deviations


@needs_hosts
def test_leaving_the_block_kills_what_runs_and_removes_everything() -> None:
    with NetLab(hosts=2) as left:
        program = "trap '' TERM; echo there; setsid sleep 300 & sleep 300"
        process = left.host(0).popen(["sh", "-c", program], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"  # nsenter begins outside
        assert remains_of(left.name)
    assert process.wait(timeout=300) == -signal.SIGKILL
    assert not remains_of(left.name)
    left.close()


@needs_hosts
def test_kill_9_of_the_owner_leaves_nothing() -> None:
    owner, name, sleeper, _ = start_owner()
    assert remains_of(name)
    owner.kill()
    owner.wait()
    wait_until(lambda: not remains_of(name) and remains.started(sleeper) is None)


@needs_hosts
def test_what_is_busy_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, said = remains.program("ip"), tmp_path / "said"
    shim = tmp_path / "ip"  # fails to delete anything at first
    shim.write_text(
        f'#!/bin/sh\ncase "$*" in *delete*) echo "$*" >> {said}; '
        f'[ "$(grep -c -x "$*" {said})" -gt 1 ] || exit 1;; esac\nexec {real} "$@"\n'
    )
    shim.chmod(0o755)
    lab = NetLab(hosts=2)
    with monkeypatch.context() as patched:
        patched.setattr(remains, "program", lambda name: str(shim) if name == "ip" else None)
        assert not remains.remove(lab.name, patience=0)
        assert {f"gwlab-{lab.name}-0", f"{lab.name}.json"} <= set(remains_of(lab.name))
        said.unlink()
        assert remains.remove(lab.name)
    assert not remains_of(lab.name)
    lab.close()


@needs_hosts
def test_what_even_the_watchdog_left_is_removed_by_name() -> None:
    owner, name, sleeper, watchdog = start_owner()
    os.kill(watchdog, signal.SIGKILL)
    owner.kill()
    owner.wait()
    with NetLab(hosts=1, keep=True) as kept:  # made after: it clears leftovers itself
        assert not remains_of(name)
        assert remains.started(sleeper) is None
        assert kept.name not in remains.leftovers()
        (remains.RECORDS / f"{kept.name}.json").unlink()  # no record: only the names are left
        subprocess.run([*COMMAND, "down", "--leftovers"], check=True, capture_output=True)
        assert not remains_of(kept.name)


@needs_hosts
def test_two_labs_live_at_once() -> None:
    with NetLab(hosts=2) as one, NetLab(hosts=2) as other:
        assert not {host.address for host in one.hosts} & {host.address for host in other.hosts}
        assert measured_mbit(*one.hosts, payload_bytes=1_000_000) > 0
        subprocess.run(
            [*COMMAND, "down", "--leftovers"], check=True, capture_output=True
        )  # their owner lives
        assert measured_mbit(*other.hosts, payload_bytes=1_000_000) > 0


@needs_hosts
def test_the_command_makes_shows_enters_and_removes() -> None:
    def call(*words: str) -> str:
        return subprocess.run([*COMMAND, *words], check=True, capture_output=True, text=True).stdout

    made = json.loads(call("up", "--hosts", "2", "--bandwidth", "1gbit", "--json", "-"))
    try:
        assert (made["state"], made["bandwidth"], len(made["hosts"])) == ("kept", "1gbit", 2)
        assert made in json.loads(call("list", "--json", "-"))
        assert made["hosts"][1]["address"] in call("exec", made["lab"], "1", "ip", "-4", "addr")
        wrong = subprocess.run([*COMMAND, "exec", made["lab"], "7", "true"], capture_output=True, text=True)
        assert wrong.returncode == 1
        assert f"lab {made['lab']!r} has no host 7: its hosts are 0 to 1" in wrong.stderr
    finally:
        call("down", made["lab"])
    assert not remains_of(made["lab"])


def test_a_record_that_cannot_be_written_is_refused_before_a_lab_is_made(tmp_path: Path) -> None:
    """Else the lab would stay, and nobody be told its name."""
    words = [*COMMAND, "up", "--json", str(tmp_path / "none" / "lab.json")]
    refused = subprocess.run(words, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "there is no folder" in refused.stderr


@needs_hosts
def test_an_unknown_program_is_named() -> None:
    with NetLab(hosts=1) as one, pytest.raises(FileNotFoundError, match="no-such-program"):
        one.host(0).popen(["no-such-program"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hosts": 0}, "hosts=0 is outside 1 to 250"),
        ({"hosts": 251}, "hosts=251"),
        ({"hosts": 2, "bandwidth": "fast"}, "'fast' is not a rate: expected"),
        ({"hosts": 2, "loss": 1.0}, "loss=1.0"),
        ({"hosts": 2, "loss": [0.1]}, "one per host"),
    ],
)
def test_arguments_out_of_range_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="netlab") as caught:
        NetLab(**arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_unavailable_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(remains, "program", lambda name: None)
        assert "install iproute2 and util-linux" in str(netlab.available())
    with monkeypatch.context() as patch:
        patch.setattr(remains, "program", lambda name: "/bin/" + name)
        patch.setattr(os, "geteuid", lambda: 1000)
        assert "need root, and this runs as user 1000" in str(netlab.available())
        with pytest.raises(NetLabUnavailable, match="need root"):
            NetLab(hosts=1)


def test_down_spares_labs_whose_owner_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.getpid()
    owners = {
        "kept00": (None, None),
        "living": (me, remains.started(me)),
        "reused": (me, 1),
        "ended0": (2**30, 1),
    }
    records = {name: remains.Record(name, *owner, 1, "10.77.0.0/24", None) for name, owner in owners.items()}
    removed: list[str] = []

    def remove(lab: str) -> bool:
        removed.append(lab)
        return lab != "living"

    monkeypatch.setattr(remains, "labs", lambda: [*records, "norec0"])
    monkeypatch.setattr(remains, "read", records.get)
    monkeypatch.setattr(remains, "remove", remove)

    def down(*arguments: str) -> list[str]:
        removed.clear()
        assert CliRunner().invoke(netlab.app, ["down", *arguments]).exit_code == 0
        return sorted(removed)

    assert down("--leftovers") == ["ended0", "norec0", "reused"]
    assert down("--all") == ["ended0", "kept00", "norec0", "reused"]
    busy = CliRunner().invoke(netlab.app, ["down", "living"])
    assert removed == ["ended0", "kept00", "norec0", "reused", "living"]
    assert busy.exit_code == 1
    assert "something of living is busy and was not removed; try again" in busy.output
    assert CliRunner().invoke(netlab.app, ["down"]).exit_code == 1
    assert CliRunner().invoke(netlab.app, ["down", "other0"]).exit_code == 1


def test_a_new_lab_spares_those_of_other_containers_on_the_same_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their owners' numbers are of other processes, and their records lie where this one does not look."""
    ended = remains.Record("ended0", 2**30, 1, 1, "10.77.0.0/24", None, remains.pid_namespace())
    elsewhere = remains.Record("other0", 2**30, 1, 1, "10.77.1.0/24", None, remains.pid_namespace() + 1)
    monkeypatch.setattr(remains, "labs", lambda: ["ended0", "other0", "norec0"])
    monkeypatch.setattr(remains, "read", {"ended0": ended, "other0": elsewhere}.get)
    assert remains.ended() == ["ended0"]
    assert sorted(remains.leftovers()) == ["ended0", "norec0"]


def test_the_bucket_is_a_millisecond_of_the_link() -> None:
    assert lab.shaping(100_000_000)[3:5] == ["burst", "16000b"]
    assert lab.shaping(10_000_000_000)[1:5] == ["rate", "10000000000bit", "burst", "1250000b"]


def test_a_queue_is_as_long_as_it_is_asked_for() -> None:
    assert lab.shaping(100_000_000)[5:] == ["latency", "20000us"]
    assert lab.shaping(100_000_000, 0.1)[5:] == ["latency", "100000us"]


@pytest.mark.parametrize("queue_seconds", [0.0, -0.1, 11.0, float("nan")])
def test_a_queue_of_no_length_is_refused(queue_seconds: float) -> None:
    with pytest.raises(ValueError, match="queue_seconds"):
        lab.NetLab(1, "100mbit", queue_seconds=queue_seconds)


def broken_iptables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridged frames pass a firewall, and iptables cannot run."""
    program = folder / "iptables"
    program.write_text("#!/bin/sh\necho 'cannot find its plug-ins' >&2\nexit 2\n")
    program.chmod(0o755)
    found = remains.program
    monkeypatch.setattr(remains, "program", lambda name: str(program) if name == "iptables" else found(name))
    (folder / "filter").write_text("1\n")
    monkeypatch.setattr(lab, "_BRIDGE_FILTER", folder / "filter")


@needs_hosts
def test_a_lab_does_without_an_iptables_that_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_iptables(tmp_path, monkeypatch)
    with NetLab(hosts=2) as two:
        assert measured_mbit(*two.hosts, payload_bytes=1000) > 0
    with pytest.raises(NetLabUnavailable, match="cannot find its plug-ins"):
        NetLab(hosts=2, loss=0.1)


@needs_hosts
def test_hosts_that_no_rule_lets_talk_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_iptables(tmp_path, monkeypatch)
    monkeypatch.setattr(lab, "_REACH", "raise SystemExit(1)")
    with pytest.raises(NetLabUnavailable, match=r"cannot reach each other.*\(cannot find its plug-ins\)"):
        NetLab(hosts=2)
    with NetLab(hosts=1) as alone:
        assert remains_of(alone.name)
