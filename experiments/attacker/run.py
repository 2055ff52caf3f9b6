"""What does an attacker cost a job that trains? Step time with and without one, in turns, and the weights of both.

    python experiments/attacker/run.py [--attack random_frames]... [--repeat 5] [--bandwidth 1gbit] [--limit 3200]

Needs root, for namespaces. The attacker (tests/integration/attacker.py) has one of its own, and every worker and server
another. An attack that has ended replaces its record in results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gradwire.child import Host, LocalHost
from gradwire.launch import run_job
from gradwire.netlab import NetHost, NetLab
from gradwire.paired import paired_ratio

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from integration.processes import listening, member_of  # noqa: E402

ATTACKER = ROOT / "tests" / "integration" / "attacker.py"
TRAIN = ROOT / "experiments" / "fashion_mnist" / "train.py"
WORKERS, SERVERS = 2, 2
UNLIMITED = str(1 << 40)
ATTACKS = {"no_key": UNLIMITED, "wrong_key": UNLIMITED, "random_frames": UNLIMITED, "idle": "10000"}
_SECONDS = 1800


class Assault:
    """Watches a folder of /proc for the job's listeners, and attacks them until it is told that the job is over."""

    def __init__(self, attack: str, host: NetHost) -> None:
        self._attack, self._host = attack, host
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.record: dict[str, Any] = {}

    def _listeners(self) -> list[tuple[str, int]]:
        own = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        servers = [pid for pid in own if member_of(pid) is not None and _is_ours(pid)]
        return [place for pid in servers for place in listening(pid)]

    def _run(self) -> None:
        ports: list[tuple[str, int]] = []
        while len(ports) < 1 + SERVERS and not self._over.wait(0.05):
            ports = self._listeners()
        words = [f"{host}:{port}" for host, port in ports]
        options = ["--count", ATTACKS[self._attack], "--seconds", str(_SECONDS)]
        with self._host.popen(
            [sys.executable, str(ATTACKER), self._attack, *words, *options], stdout=subprocess.PIPE
        ) as process:
            self._over.wait()
            process.send_signal(2)
            out, _ = process.communicate()
        self.record = json.loads(out)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()


def _is_ours(pid: int) -> bool:
    """Whether a process carries the mark of this run's job."""
    try:
        return f"ATTACKED_BY={os.getpid()}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def train(lab: NetLab, given: argparse.Namespace, encrypt: str) -> dict[str, Any]:
    """Runs the training once, each process on a host of its own; returns rank 0's record."""

    def place(role: str, rank: int) -> Host:
        if role == "scheduler":
            return LocalHost(lab.bridge_address)
        return lab.host(rank if role == "worker" else WORKERS + rank)

    with TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, str(TRAIN), "--network", "lenet", "--kv-store", "dist_sync"]
        command += ["--gc-type", "2bit", "--num-epochs", "1", "--limit", str(given.limit)]
        env = {"GRADWIRE_ENCRYPT": encrypt, "GRADWIRE_RESULT": str(file), "ATTACKED_BY": str(os.getpid())}
        last: list[str] = []
        result = run_job(
            command,
            WORKERS,
            SERVERS,
            env=env,
            placement=place,
            output=lambda line: last.append(f"[{line.role} {line.rank}] {line.text}"),
            timeout=_SECONDS,
        )
        if result.exit_code != 0:
            raise RuntimeError(f"attacker: the job failed: {result.cause}\n" + "\n".join(last[-20:]))
        record: dict[str, Any] = json.loads(file.read_text())
        return record


def measure(attack: str, given: argparse.Namespace) -> dict[str, Any]:
    """Trains undisturbed and under attack in turns; one attacker at a time."""
    quiet, loud, assaults = [], [], []
    with NetLab(hosts=WORKERS + SERVERS + 1, bandwidth=given.bandwidth) as lab:
        for turn in range(given.repeat):
            quiet.append(train(lab, given, "on"))
            assault = Assault(attack, lab.host(WORKERS + SERVERS))
            with assault.under_way():
                loud.append(train(lab, given, "on"))
            assaults.append(assault.record)
            print(f"{attack}: turn {turn + 1} of {given.repeat}", flush=True)
    seconds = [[1 / record["images_per_second"] for record in records] for records in (loud, quiet)]
    heard = [bytes.fromhex(text) for assault in assaults for text in assault["heard"]]
    return {
        "attack": attack,
        "bandwidth": given.bandwidth,
        "limit": given.limit,
        "step_time_ratio": asdict(paired_ratio(*seconds)),
        "weights_equal": len({record["weights_sha256"] for record in [*quiet, *loud]}) == 1,
        "longest_heard_bytes": max(map(len, heard), default=0),
        "connections_per_second": statistics.median(a["connections_per_second"] for a in assaults),
        "frames_per_second": statistics.median(a["frames"] / a["seconds"] for a in assaults),
        "bytes_per_second": statistics.median(a["bytes_sent"] / a["seconds"] for a in assaults),
        "idle_connections_held": max(a["held"] for a in assaults),
        "load": round(os.getloadavg()[0], 1),
        "when": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--attack", action="append", choices=list(ATTACKS), help="repeatable; unset: all")
    parser.add_argument("--repeat", type=int, default=5, help="pairs of trainings")
    parser.add_argument("--bandwidth", default="1gbit", help="of every host's link, the attacker's too")
    parser.add_argument("--limit", type=int, default=3200, help="images, over all workers")
    parser.add_argument("--folder", type=Path, default=HERE, help="where results.json is")
    given = parser.parse_args()
    file = given.folder / "results.json"
    results = {row["attack"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    for attack in given.attack or ATTACKS:
        results[attack] = measure(attack, given)
        file.write_text(json.dumps(list(results.values()), indent=1) + "\n")
        print(json.dumps(results[attack]), flush=True)


if __name__ == "__main__":
    main()
