"""What does an attacker cost a job that trains? Step time with and without one, in turns, and the weights of both.

    python experiments/attacker/run.py [--attack random_frames]... [--rate 100]... [--repeat 5] [--bandwidth 1gbit]
    python experiments/attacker/run.py --tables     measures nothing: prints README.md's table

Needs root, for namespaces. The attacker (tests/integration/attacker.py) has one of its own, and every worker and server
another. An attack at a rate that has ended replaces its record in results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
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

from gradwire.launch.child import Host, LocalHost
from gradwire.launch.supervisor import run_job
from gradwire.netlab import NetHost, NetLab
from gradwire.report.paired_statistics import paired_ratio

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from integration.processes import listening, member_of  # noqa: E402

ATTACKER = ROOT / "tests" / "integration" / "attacker.py"
TRAIN = ROOT / "experiments" / "fashion_mnist" / "train.py"
WORKERS, SERVERS = 2, 2
UNLIMITED = str(1 << 40)
AS_FAST_AS_IT_CAN = 0
RATES = (AS_FAST_AS_IT_CAN, 100)
ATTACKS = {"no_key": UNLIMITED, "wrong_key": UNLIMITED, "random_frames": UNLIMITED, "idle": "10000"}
_SECONDS = 1800


class Assault:
    """Watches a folder of /proc for the job's listeners, and attacks them until it is told that the job is over."""

    def __init__(self, attack: str, rate: int, host: NetHost) -> None:
        self._attack, self._rate, self._host = attack, rate, host
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
        if self._rate != AS_FAST_AS_IT_CAN:
            options += ["--rate", str(self._rate)]
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


def train(lab: NetLab, given: argparse.Namespace) -> dict[str, Any]:
    """Runs the training once, encrypted, each process on a host of its own; returns rank 0's record."""

    def place(role: str, rank: int) -> Host:
        if role == "scheduler":
            return LocalHost(lab.bridge_address)
        return lab.host(rank if role == "worker" else WORKERS + rank)

    with TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, str(TRAIN), "--network", "lenet", "--kv-store", "dist_sync"]
        command += ["--gc-type", "2bit", "--num-epochs", "1", "--limit", str(given.limit)]
        env = {"GRADWIRE_ENCRYPT": "on", "GRADWIRE_RESULT": str(file), "ATTACKED_BY": str(os.getpid())}
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


def cpu_seconds_of_children() -> float:
    """Of all that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(attack: str, rate: int, given: argparse.Namespace) -> dict[str, Any]:
    """Trains undisturbed and under attack in turns; one attacker at a time."""
    quiet, loud, assaults = [], [], []
    cores = []  # what the job took more of while it was attacked
    with NetLab(hosts=WORKERS + SERVERS + 1, bandwidth=given.bandwidth) as lab:
        for turn in range(given.repeat):
            began = cpu_seconds_of_children()
            quiet.append(train(lab, given))
            undisturbed = cpu_seconds_of_children() - began
            assault = Assault(attack, rate, lab.host(WORKERS + SERVERS))
            with assault.under_way():
                loud.append(train(lab, given))
            record = assault.record
            assaults.append(record)
            attacked = cpu_seconds_of_children() - began - undisturbed - record["cpu_seconds"]
            cores.append((attacked - undisturbed) / record["seconds"])
            print(f"{attack} at {rate}: turn {turn + 1} of {given.repeat}", flush=True)
    seconds = [[1 / record["images_per_second"] for record in records] for records in (loud, quiet)]
    heard = [bytes.fromhex(text) for assault in assaults for text in assault["heard"]]
    return {
        "attack": attack,
        "rate": rate,
        "bandwidth": given.bandwidth,
        "limit": given.limit,
        "step_time_ratio": asdict(paired_ratio(*seconds)),
        "job_cores": statistics.median(cores),
        "attacker_cores": statistics.median(a["cpu_seconds"] / a["seconds"] for a in assaults),
        "weights_equal": len({record["weights_sha256"] for record in [*quiet, *loud]}) == 1,
        "longest_heard_bytes": max(map(len, heard), default=0),
        "connections_per_second": statistics.median(a["connections_per_second"] for a in assaults),
        "frames_per_second": statistics.median(a["frames"] / a["seconds"] for a in assaults),
        "bytes_per_second": statistics.median(a["bytes_sent"] / a["seconds"] for a in assaults),
        "idle_connections_held": max(a["held"] for a in assaults),
        "load": round(os.getloadavg()[0], 1),
        "when": time.strftime("%Y-%m-%d"),
    }


def markdown(results: list[dict[str, Any]]) -> str:
    """The table of README.md."""
    heads = ["attack", "connections a second", "frames read a second", "held at once"]
    heads += ["step time", "weights equal", "job's cores", "attacker's cores"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in results:
        ratio = row["step_time_ratio"]
        cells = [
            f"`{row['attack']}`" + ("" if row["rate"] == AS_FAST_AS_IT_CAN else f", {row['rate']} a second"),
            f"{row['connections_per_second']:.0f}",
            f"{row['frames_per_second']:.0f}" if row["frames_per_second"] else "",
            str(row["idle_connections_held"] or ""),
            f"{ratio['mean']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})",
            "yes" if row["weights_equal"] else "**no**",
            f"{row['job_cores']:+.2f}",
            f"{row['attacker_cores']:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--attack", action="append", choices=list(ATTACKS), help="repeatable; unset: all")
    parser.add_argument(
        "--rate",
        action="append",
        type=int,
        help="connections a second that the attacker opens, 0 as many as it can; repeatable; unset: 0 and 100",
    )
    parser.add_argument("--repeat", type=int, default=5, help="pairs of trainings, 2 or more")
    parser.add_argument("--bandwidth", default="1gbit", help="of every host's link, the attacker's too")
    parser.add_argument("--limit", type=int, default=12800, help="images, over all workers")
    parser.add_argument("--folder", type=Path, default=HERE, help="where results.json is")
    parser.add_argument("--tables", action="store_true", help="print what results.json says")
    given = parser.parse_args()
    if given.repeat < 2:
        parser.error(f"--repeat {given.repeat}: expected 2 or more, for an interval")
    file = given.folder / "results.json"
    known = json.loads(file.read_text()) if file.exists() else []
    results = {(row["attack"], row["rate"]): row for row in known}
    for attack in [] if given.tables else given.attack or ATTACKS:
        for rate in given.rate or RATES:
            results[attack, rate] = measure(attack, rate, given)
            file.write_text(json.dumps(list(results.values()), indent=1) + "\n")
    print(markdown(list(results.values())))


if __name__ == "__main__":
    main()
