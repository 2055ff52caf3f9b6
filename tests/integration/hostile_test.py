"""A stranger throws bytes at every port of a running job: the job does not notice, and its numbers stay the same."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.plain_worker import GREETING, READY, write_header
from integration.processes import NOTICE_SECONDS, ByHand, Run, listening, member_of, python, run_to_the_end

COMMAND = python("sums_worker.py", "steps=150", "codecs=2bit:threshold=0.5", "pause=0.04")
WORKER_0 = 3 << 24
HUGE = 1 << 62


def zmtp(*bodies: bytes) -> bytes:
    """A ZMTP message of these frames."""
    last = len(bodies) - 1
    frames = (bytes([2 | (i < last)]) + struct.pack(">Q", len(body)) + body for i, body in enumerate(bodies))
    return b"".join(frames)


def message(payload: bytes = b"", **fields: int) -> bytes:
    return zmtp(write_header(payload, **({"sender": WORKER_0, "epoch": 77} | fields)), payload)


def corrupt(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def any_message(dice: random.Random) -> bytes:
    """A frame whose header is valid, of any kind, from any sender, for any key; never of this job's epoch."""
    fields = {
        "kind": dice.choice([*range(1, 10), *range(31, 53), 255]),
        "sender": dice.choice([WORKER_0, WORKER_0 | 1, 2 << 24, 1 << 24, WORKER_0 | 0xFFFFFF, 9 << 24]),
        "epoch": dice.choice([0, 1, 77, HUGE]),
        "key": dice.choice([0, 1, 2, HUGE]),
        "offset": dice.choice([0, 65_536, HUGE]),
        "count": dice.choice([0, 1, 65_536, HUGE]),
        "step": dice.choice([0, 1, 5, HUGE]),
        "codec": dice.choice([0, 3, 200]),
        "reply": dice.choice([0, 1, 2, 200]),
    }
    return message(dice.randbytes(dice.choice([0, 1, 16, 5000])), **fields)


def hello(text: bytes) -> bytes:
    return message(text, kind=1, sender=WORKER_0 | 0xFFFFFF, epoch=0)


TEXTS = [
    b"role=worker\nrank=0\nworkers=2\nservers=2\nendpoint=\nversion=1\nhost=evil\npid=1\n",
    b"role=server\nrank=0\nworkers=2\nservers=2\nendpoint=tcp://127.0.0.1:1\nversion=1\nhost=evil\npid=1\n",
    b"role=scheduler\nrank=any\nworkers=-1\nservers=999999999999999999999\nversion=1\n",
    b"stream=0\nstreams=1\n",
    b"stream=4000000000\nstreams=-1\n",
    b"\0\xff\n=\n==\n" * 100,
    b"",
]
ATTACKS: dict[str, Callable[[random.Random], bytes]] = {
    "random bytes": lambda dice: dice.randbytes(dice.randrange(1, 4000)),
    "nothing": lambda dice: b"",
    "a web browser": lambda dice: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "half a greeting": lambda dice: GREETING[: dice.randrange(1, 64)],
    "a greeting and rubbish": lambda dice: GREETING + dice.randbytes(500),
    "another mechanism": lambda dice: GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32) + READY,
    "one frame": lambda dice: GREETING + READY + zmtp(dice.randbytes(dice.choice([0, 1, 112, 5000]))),
    "many frames": lambda dice: GREETING + READY + zmtp(*(dice.randbytes(112) for _ in range(50))),
    "a huge frame": lambda dice: GREETING + READY + b"\x02" + struct.pack(">Q", HUGE) + bytes(1000),
    "a header alone": lambda dice: GREETING + READY + zmtp(write_header(b"", kind=33)),
    "a truncated header": lambda dice: GREETING + READY + zmtp(write_header(b"")[: dice.randrange(112)], b""),
    "a wrong length": lambda dice: GREETING + READY + zmtp(write_header(b"12345678", kind=33), b"1234"),
    "a changed bit": lambda dice: GREETING + READY + corrupt(any_message(dice), dice),
    "another epoch": lambda dice: GREETING + READY + b"".join(any_message(dice) for _ in range(20)),
    "half a message": lambda dice: GREETING + READY + any_message(dice)[: dice.randrange(1, 120)],
    "a false hello": lambda dice: (
        GREETING + READY + b"".join(hello(text) + any_message(dice) for text in TEXTS)
    ),
    "a false failure": lambda dice: GREETING + READY + message(b"all is lost", kind=7),
    "a false goodbye": lambda dice: GREETING + READY + message(b"role=worker\nrank=1\n", kind=6),
}


def attack(port: int, data: bytes) -> None:
    """Throws data at a port and reads a little of what comes back, if anything does."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as stranger:
        stranger.settimeout(0.01)
        stranger.sendall(data)
        stranger.recv(1000)


def test_a_stranger_changes_nothing(tmp_path: Path) -> None:
    undisturbed = run_to_the_end(tmp_path / "undisturbed", COMMAND)
    assert undisturbed.code == 0, str(undisturbed)
    dice = random.Random(5)
    (tmp_path / "disturbed").mkdir()
    thrown = dict.fromkeys(ATTACKS, 0)
    with Run(tmp_path / "disturbed", {}) as job:
        job.launch(COMMAND)
        job.wait_until_training(2)
        servers = [pid for pid in job.all_pids() if member_of(pid) is not None]
        ports = [port for pid in servers for _, port in listening(pid)]
        assert len(ports) == len(servers) == 3, (servers, ports)
        for name, make in ATTACKS.items():
            for port in ports:
                attack(port, make(dice))
                thrown[name] += job.launcher.process.poll() is None
        while job.launcher.process.poll() is None:  # and on, until the job is done
            attack(dice.choice(ports), ATTACKS[dice.choice(list(ATTACKS))](dice))
        ended = job.end(60)
    assert all(count == len(ports) for count in thrown.values()), f"the job was over too soon: {thrown}"
    assert ended.code == 0, str(ended)
    by_rank = [sorted(run.records(), key=lambda r: str(r["rank"])) for run in (undisturbed, ended)]
    assert by_rank[0] == by_rank[1]
    assert len(by_rank[0]) == 2


@pytest.mark.parametrize("name", ["random bytes", "another epoch", "a false hello", "a huge frame"])
def test_a_stranger_during_the_rendezvous(name: str, tmp_path: Path) -> None:
    """Thrown at the scheduler before anybody is there; the false hellos claim no place that cannot be refused."""
    dice = random.Random(6)
    with ByHand(tmp_path, {}) as job:
        job.start_scheduler()
        port = int(job.endpoint.rpartition(":")[2])
        if name != "a false hello":
            for _ in range(10):
                attack(port, ATTACKS[name](dice))
        else:
            attack(port, GREETING + READY + b"".join(hello(text) for text in TEXTS[2:]))
        for rank in range(2):
            job.start_server(rank)
            job.start_worker(rank, python("sums_worker.py", "steps=3"))
        ended = job.end(NOTICE_SECONDS)
    for process in ended.values():
        assert process.code == 0, str(process)
