"""MXNet's train_mnist.py with --kv-store dist_sync --gc-type 2bit, on MXNet 1.9.1's servers and, the same script, on
gradwire's: images a second and accuracy at 100 Mbit and at 1 Gbit.

    python experiments/mxnet_lenet/run.py [--link 100mbit]... [--seeds 5] [--mxnet-python FILE]
    python experiments/mxnet_lenet/run.py --tables       measures nothing: prints README.md's tables

Needs root, for links, and makes an environment for MXNet (50 MB from PyPI) unless --mxnet-python names one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.bench import peer_mxnet
from gradwire.bench.hosts import Network, Watched
from gradwire.launch.child import Line
from gradwire.launch.rendezvous import free_port
from gradwire.launch.supervisor import JobResult, run_job
from gradwire.report.paired_statistics import Interval, paired_ratio

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "train_mnist.py"
RESULTS = HERE / "results.json"
WORKERS, SERVERS = 2, 1
LINKS = ("100mbit", "1gbit")
_SECONDS = 1200.0
_LAST_LINES = 20


@dataclass(frozen=True)
class Arm:
    """What is compared. compression: overrides the codec that the script sets, in gradwire."""

    name: str
    system: str
    gc_type: str
    compression: str = ""


ARMS = (
    Arm("MXNet", "mxnet", "none"),
    Arm("MXNet 2bit", "mxnet", "2bit"),
    Arm("gradwire", "gradwire", "none"),
    Arm("gradwire 2bit", "gradwire", "2bit"),
    Arm("gradwire 2bit:threshold=auto", "gradwire", "2bit", "2bit:threshold=auto"),
    Arm("gradwire fp16", "gradwire", "2bit", "fp16"),
)


def start(arm: Arm, network: Network, python: Path, script: list[str], output: Any) -> JobResult:
    """Runs one training to its end, on MXNet's servers or on gradwire's."""
    if arm.system == "gradwire":
        with tempfile.TemporaryDirectory(prefix="gradwire-mxnet-") as folder:
            peer_mxnet.link_gradwire(Path(folder))
            return run_job(
                [str(python), "-m", "gradwire.mxnet", *script],
                WORKERS,
                SERVERS,
                env={"PYTHONPATH": folder, "GRADWIRE_COMPRESSION": arm.compression},
                placement=network.place,
                output=output,
                timeout=_SECONDS,
            )
    root_address = network.place("scheduler", 0).address
    root = root_address, free_port(root_address)

    def host(process: int) -> Watched:
        return network.place(*peer_mxnet.role_of(process, SERVERS))

    def environment(process: int) -> Mapping[str, str]:
        here = host(process)
        return peer_mxnet.environment(process, WORKERS, SERVERS, root, here.address, network.interface(here))

    return run_job(  # to the launcher, MXNet's scheduler and server are workers as well
        [str(python), "-I", *script],
        1 + SERVERS + WORKERS,
        0,
        worker_env=environment,
        placement=lambda role, process: host(process),
        output=output,
        timeout=_SECONDS,
    )


def train(arm: Arm, seed: int, network: Network, python: Path, flags: list[str]) -> dict[str, Any]:
    """Returns what rank 0 printed, and the bytes that the workers' hosts have sent for each step.

    Raises: RuntimeError: a worker failed, or the script ran on another store than was asked for.
    """
    lines: list[str] = []
    script = [str(SCRIPT), "--network", "lenet", "--kv-store", "dist_sync", "--gc-type", arm.gc_type]
    network.forget_processes()
    job = start(arm, network, python, [*script, "--seed", str(seed), *flags], lambda line: _note(lines, line))
    last_lines = lines[-_LAST_LINES:]
    job.require_success(f"mxnet_lenet: {arm.name}", last_lines)
    records = [json.loads(text) for text in lines if text.startswith('{"store"')]
    if len(records) != 1:
        raise RuntimeError("\n  | ".join([f"mxnet_lenet: {arm.name}: no record of rank 0", *last_lines]))
    record: dict[str, Any] = records[0]
    if record.pop("store").startswith("gradwire") is not (arm.system == "gradwire"):
        raise RuntimeError(f"mxnet_lenet: {arm.name}: trained on another store than its own")
    return record


def _note(lines: list[str], line: Line) -> None:
    lines.append(line.text)


def measure(link: str, given: argparse.Namespace, python: Path) -> dict[str, Any]:
    """Runs all arms of all seeds in turns."""
    runs: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in ARMS}
    with Network.open(WORKERS, SERVERS, link, colocated=False) as network:
        for seed in range(given.seeds):
            for arm in ARMS:
                runs[arm.name].append(train(arm, seed, network, python, given.flags))
                last = runs[arm.name][-1]
                print(
                    f"{link} seed {seed} {arm.name}: {last['images_per_second']:.0f} images/s, "
                    f"{last['accuracy']:.2f} %",
                    flush=True,
                )
    return {"link": link, "load": round(os.getloadavg()[0], 1), "flags": given.flags, "runs": runs}


def markdown(results: list[dict[str, Any]]) -> str:
    """README.md's table: medians over the seeds, and images a second over those of MXNet without compression."""
    lines = [
        "| link | arm | images/s | over MXNet's [95 %] | accuracy, % | weights of seed 0 |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        plain = [run["images_per_second"] for run in result["runs"][ARMS[0].name]]
        for arm in ARMS:
            runs = result["runs"][arm.name]
            speeds = [run["images_per_second"] for run in runs]
            accuracy = statistics.median(run["accuracy"] for run in runs)
            lines.append(
                f"| {result['link']} | {arm.name} | {statistics.median(speeds):.0f} | "
                f"{_interval(paired_ratio(speeds, plain))} | {accuracy:.1f} | `{runs[0]['weights']}` |"
            )
    return "\n".join(lines)


def _interval(ratio: Interval) -> str:
    ends = "" if ratio.low is None else f" [{ratio.low:.2f}, {ratio.high:.2f}]"
    return f"{ratio.mean:.2f}{ends}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--link", action="append", choices=LINKS, help="repeatable; unset: both")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each arm")
    parser.add_argument("--mxnet-python", type=Path, help="a Python that has MXNet 1.9.1")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="where a link's results replace its last ones"
    )
    parser.add_argument("--tables", action="store_true", help="measure nothing, print the tables")
    parser.add_argument("flags", nargs="*", help="after --: more flags of train_mnist.py")
    given = parser.parse_args()
    file: Path = given.results
    results = {result["link"]: result for result in json.loads(file.read_text())} if file.exists() else {}
    if not given.tables:
        python = peer_mxnet.find_python(given.mxnet_python, lambda text: print(text, file=sys.stderr))
        for link in given.link or LINKS:
            results[link] = measure(link, given, python)
            kept = [results[link] for link in LINKS if link in results]
            file.write_text(json.dumps(kept, indent=1) + "\n")
    print(markdown([results[link] for link in LINKS if link in results]))


if __name__ == "__main__":
    main()
