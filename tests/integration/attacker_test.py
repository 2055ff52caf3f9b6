"""An outsider attacks an encrypted job while it trains: it learns nothing, and the weights are those of a job that was
left alone. The attacker is a program of its own (attacker.py) that knows nothing of gradwire and has no key."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from integration.processes import HERE, ByHand, Run, listening, member_of, python, run_to_the_end

STEPS, LONG_STEPS = 600, 3000
LONG_PAUSE = 0.5  # seconds a step: 25 minutes, in which a million frames are read
ATTACK_SECONDS = 120.0  # for one to come to its end
ENCRYPTED = {"GRADWIRE_ENCRYPT": "on", "GRADWIRE_IPC": "off"}
# What a listener says before it knows who it talks to: version 3.1 or 3.0, and CURVE.
PUBLIC = [
    b"\xff" + bytes(7) + b"\x01\x7f" + bytes([3, minor]) + b"CURVE".ljust(20, b"\0") + bytes(32)
    for minor in (0, 1)
]
# Of every roster, header, hello and goodbye.
OURS = [b"GRW1", b"role=", b"rank=", b"epoch=", b"server=", b"stream=", b"workers=", b"worker"]
# Connections; frames that the listeners have read; connections at once.
SHORT = {"no_key": 60, "wrong_key": 60, "random_frames": 2_000, "idle": 300}
LONG = {"no_key": 10_000, "wrong_key": 10_000, "random_frames": 1_000_000, "idle": 10_000}
# Who listens besides the scheduler. Sums of 2bit may be all zeros by chance, which weights are not.
PLACEMENTS = {
    "servers": ["optimizer=test", "codecs=2bit:threshold=0.5"],
    "peers": ["store=allreduce", "codecs=none"],
}


def training(steps: int = STEPS, pause: float = 0.05, placement: str = "servers") -> list[str]:
    """The command of a worker. By default it trains for half a minute, several times as long as an attack takes; what
    comes of it does not depend on the pause."""
    return python("sums_worker.py", *PLACEMENTS[placement], f"steps={steps}", f"pause={pause}")


def start(attack: str, ports: list[tuple[str, int]], *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "attacker.py"), attack, *(f"{h}:{p}" for h, p in ports), *options],
        stdout=subprocess.PIPE,
        text=True,
    )


def report(started: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    out, _ = started.communicate(timeout=seconds)
    assert started.returncode == 0
    record: dict[str, Any] = json.loads(out)
    return record


def learned(record: dict[str, Any]) -> list[bytes]:
    """What an attacker heard beyond what a listener tells everybody."""
    heard = [bytes.fromhex(text) for text in record["heard"]]
    return [answer for answer in heard if not any(full.startswith(answer) for full in PUBLIC)]


def weights_under_attack(
    folder: Path, command: list[str], counts: dict[str, int], seconds: float, servers: int = 2
) -> tuple[list[Any], dict[str, float]]:
    """Trains under all attacks at once; returns the records of all ranks, and how many frames, or connections, each
    attack had read a second."""
    folder.mkdir()
    with Run(folder, ENCRYPTED, servers=servers) as job:
        job.launch(command)
        job.wait_until_training(2)
        ports = [place for pid in job.all_pids() for place in listening(pid)]
        assert len(ports) == 3, ports
        assert {host for host, _ in ports} == {"127.0.0.1"}, "a job on loopback listens there alone"
        attacks = [
            start(name, ports, "--count", str(count), *(["--seconds", "6"] if name == "idle" else []))
            for name, count in counts.items()
        ]
        records = [report(started, seconds) for started in attacks]
        assert job.launcher.process.poll() is None, f"the job was over too soon: {records}"
        ended = job.end(seconds)
    assert ended.code == 0, str(ended)
    for record in records:
        done = {"random_frames": "frames", "idle": "held"}.get(record["attack"], "connections")
        assert record[done] >= counts[record["attack"]], record
        assert record["not_accepted"] == 0, record
        assert learned(record) == [], record["attack"]
    rates = {
        record["attack"]: record["frames_per_second"] or record["connections_per_second"]
        for record in records
    }
    return sorted(ended.records(), key=lambda row: str(row["rank"])), rates


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_an_outsider_learns_nothing_and_changes_nothing(placement: str, tmp_path: Path) -> None:
    servers = 2 if placement == "servers" else 0
    calm = training(pause=0, placement=placement)
    undisturbed = run_to_the_end(tmp_path / "undisturbed", calm, servers=servers, seconds=180)
    assert undisturbed.code == 0, str(undisturbed)
    command = training(placement=placement)
    attacked, _ = weights_under_attack(tmp_path / "attacked", command, SHORT, ATTACK_SECONDS, servers)
    assert attacked == sorted(undisturbed.records(), key=lambda row: str(row["rank"]))
    assert len(attacked) == 2


@pytest.mark.soak
def test_an_outsider_with_patience_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    undisturbed = run_to_the_end(tmp_path / "undisturbed", training(LONG_STEPS, pause=0), seconds=1200)
    command = training(LONG_STEPS, LONG_PAUSE)
    attacked, rates = weights_under_attack(tmp_path / "attacked", command, LONG, 3000)
    with capsys.disabled():
        print(f"\n{LONG} at a rate, a second, of {json.dumps(rates)}")
    assert attacked == sorted(undisturbed.records(), key=lambda row: str(row["rank"]))


class Tap:
    """Stands between a member and a listener, hands on what both say, and keeps it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.said, self.answered = bytearray(), bytearray()
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            member, _ = self._listener.accept()
            listener = socket.create_connection(self._target)
            back = threading.Thread(target=self._hand_on, args=(listener, member, self.answered), daemon=True)
            back.start()
            self._hand_on(member, listener, self.said)
            back.join(300)

    @staticmethod
    def _hand_on(source: socket.socket, to: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                kept += data
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)


def overheard(folder: Path, variables: dict[str, str]) -> tuple[Tap, list[dict[str, Any]]]:
    """Runs a job whose worker 0 reaches the scheduler through a tap. If it has a key, what that heard is replayed to
    all listeners while it trains."""
    folder.mkdir()
    records = []
    has_key = "GRADWIRE_JOB_KEY" in variables
    with ByHand(folder, variables) as job:
        job.start_scheduler()
        host, _, port = job.endpoint.removeprefix("tcp://").rpartition(":")
        tap = Tap((host, int(port)))
        command = training() if has_key else training(pause=0)
        for rank in range(2):
            job.start_server(rank)
            job.start_worker(rank, command, {"GRADWIRE_SCHEDULER": tap.endpoint} if rank == 0 else {})
        if has_key:
            records.append(replayed(job, tap))
        ended = job.end(180)
    for process in ended.values():
        assert process.code == 0, str(process)
        assert variables.get("GRADWIRE_JOB_KEY", "-no key-")[:16] not in process.out + process.err
    return tap, records


def replayed(job: ByHand, tap: Tap) -> dict[str, Any]:
    job.wait_until_training(2)
    members = [started.process.pid for member, started in job.members.items() if member[0] != "worker"]
    ports = [place for pid in members for place in listening(pid)]
    assert len(ports) == 3, ports
    recording = job.folder / "recording"
    recording.write_bytes(bytes(tap.said))
    record = report(start("replay", ports, "--recording", str(recording), "--count", "40"), ATTACK_SECONDS)
    assert record["not_accepted"] == 0, "the job was over too soon"
    return record


def test_a_recorded_connection_tells_nothing_and_cannot_be_played_again(tmp_path: Path) -> None:
    variables = {"GRADWIRE_JOB_KEY": secrets.token_hex(64), "GRADWIRE_IPC": "off"}
    tap, (record,) = overheard(tmp_path / "encrypted", variables)
    assert len(tap.said) > 1000, "nothing was recorded"
    assert len(tap.answered) > 1000, "nothing was recorded"
    for text in OURS:
        assert text not in tap.said, text
        assert text not in tap.answered, text
    for text in map(bytes.fromhex, record["heard"]):
        greeting, welcome = text[:64], text[64:]
        assert any(full.startswith(greeting) for full in PUBLIC)
        assert welcome == b"" or (welcome.startswith(b"\x04\xa8\x07WELCOME") and len(welcome) == 170), (
            "a HELLO is answered, and what follows is not"
        )
    plain, _ = overheard(tmp_path / "plain", {"GRADWIRE_IPC": "off"})
    assert all(text in plain.said + plain.answered for text in [b"GRW1", b"role=", b"rank=", b"server="])


def packets_of(ports: list[tuple[str, int]], enough: int) -> bytes:
    """What TCP segments from and to these ports carry over loopback, until it is enough, in bytes. Needs root."""
    wanted = {port for _, port in ports}
    heard = bytearray()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as sniffer:
        sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        sniffer.bind(("lo", 0))
        sniffer.settimeout(0.1)
        end = time.monotonic() + ATTACK_SECONDS
        while len(heard) < enough:
            assert time.monotonic() < end, f"heard {len(heard)} bytes of {enough}"
            with contextlib.suppress(TimeoutError):
                packet = sniffer.recv(1 << 17)[14:]  # behind Ethernet's header
                segment = packet[(packet[0] & 15) * 4 :]
                if packet[9] == socket.IPPROTO_TCP and not wanted.isdisjoint(
                    struct.unpack("!HH", segment[:4])
                ):
                    heard += segment[(segment[12] >> 4) * 4 :]
    return bytes(heard)


@pytest.mark.skipif(os.geteuid() != 0, reason="reading the packets of others needs root")
def test_packets_on_the_wire_show_no_frame(tmp_path: Path) -> None:
    header = b"GRW1\x01"  # magic and version: of every gradient's header, and of every reply's
    heard = {}
    for name, variables in {"encrypted": ENCRYPTED, "plain": {"GRADWIRE_IPC": "off"}}.items():
        (tmp_path / name).mkdir()
        with Run(tmp_path / name, variables) as job:
            job.launch(training())
            job.wait_until_training(2)
            servers = [pid for pid in job.all_pids() if member_of(pid) is not None]
            heard[name] = packets_of([place for pid in servers for place in listening(pid)], 200_000)
            job.launcher.process.send_signal(signal.SIGINT)
            assert job.end(ATTACK_SECONDS).code == 128 + signal.SIGINT
    assert header in heard["plain"], "or the search would prove nothing"
    assert header not in heard["encrypted"]
