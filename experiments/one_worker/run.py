"""What does gradwire cost a single worker, per training step?

    python experiments/one_worker/run.py [--network lenet --network resnet8] [--arm ARM]... [--json results.json]

Each arm is a process that trains two copies of one network, one with plain torch and one through gradwire, a step
of each in turns, so that whatever else the machine does meets both. A block's ratio is gradwire's median step
over plain torch's. Arm `plain` trains both copies with plain torch: its ratio shows what the method can tell.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent / "fashion_mnist"))

import gradwire as gw  # noqa: E402
import gradwire.torch  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from dataset import Dataset, load  # noqa: E402
from networks import NETWORKS  # noqa: E402


@dataclass(frozen=True)
class Arm:
    """store: None for plain torch. servers: None where no job is started."""

    store: str | None
    compression: str = "none"
    servers: int | None = None


ARMS = {
    "plain": Arm(None),
    "local": Arm("local"),
    "dist_sync none": Arm("dist_sync", "none", 1),
    "dist_sync 2bit exact": Arm("dist_sync", "2bit:reply=exact", 1),
    "dist_sync 2bit 2bit": Arm("dist_sync", "2bit:reply=2bit", 1),
    "allreduce none": Arm("allreduce", "none", 0),
    "allreduce 2bit": Arm("allreduce", "2bit", 0),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--network", action="append", choices=sorted(NETWORKS), help="repeatable; unset: lenet and resnet8")
    add("--arm", action="append", choices=list(ARMS), help="repeatable; unset: all")
    add("--blocks", type=int, default=11, help="blocks of steps, a ratio each (default: %(default)s)")
    add("--steps", type=int, default=40, help="steps of each side in a block (default: %(default)s)")
    add("--batch-size", type=int, default=64, help="images per step (default: %(default)s)")
    add("--threads", type=int, default=1, help="torch's threads (default: %(default)s)")
    add("--json", metavar="FILE", help="write all records there; - is stdout")
    add("--measure", metavar="FILE", help=argparse.SUPPRESS)  # this process is the arm's worker
    given = parser.parse_args()
    for name in ("blocks", "steps", "batch_size", "threads"):
        if (value := getattr(given, name)) < 1:
            parser.error(f"--{name.replace('_', '-')}: {value} was given, expected 1 or more")
    given.network = given.network or ["lenet", "resnet8"]
    given.arm = given.arm or list(ARMS)
    return given


# ---------------------------------------------------------------- the process of an arm


@dataclass(frozen=True)
class Clocks:
    """seconds on the wall; cpu_seconds of all threads of this process."""

    seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> Clocks:
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, other: Clocks) -> Clocks:
        return Clocks(self.seconds - other.seconds, self.cpu_seconds - other.cpu_seconds)


def make_side(network: str, store: gw.kv.KVStore | None, compression: str) -> tuple[torch.nn.Module, Any]:
    """Returns a fresh network and its optimizer; the same first weights every time."""
    torch.manual_seed(0)
    model = NETWORKS[network]().to(memory_format=torch.channels_last)
    optimizer: Any = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4
    )
    if store is not None:
        optimizer = gw.torch.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=compression,
            store=store,
            momentum_correction="auto",
        )
    return model, optimizer


def batches(data: Dataset, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        for pick in torch.arange(len(data.train_labels)).split(size):
            if len(pick) == size:
                yield data.train_images[pick], data.train_labels[pick]


def make_step(model: torch.nn.Module, optimizer: Any, data: Dataset, size: int) -> Callable[[], Clocks]:
    """Returns a function that trains for one step and says what it took."""
    supply = batches(data, size)

    def step() -> Clocks:
        images, labels = next(supply)
        began = Clocks.now()
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        return Clocks.now() - began

    return step


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Trains both sides in turns, a step each. Returns the medians of every block of steps."""
    torch.set_num_threads(given.threads)
    (network,), (name,) = given.network, given.arm
    arm = ARMS[name]
    data = load(50 * given.batch_size)
    store = None if arm.store is None else gw.kv.create(arm.store)
    sides = {
        "plain": make_step(*make_side(network, None, "none"), data, given.batch_size),
        "gradwire": make_step(*make_side(network, store, arm.compression), data, given.batch_size),
    }
    block(sides, given.steps)  # first rounds, first allocations
    before = (0, 0.0) if store is None else (_bytes(store), store.engine.codec_seconds())
    blocks = [block(sides, given.steps) for _ in range(given.blocks)]
    after = (0, 0.0) if store is None else (_bytes(store), store.engine.codec_seconds())
    if store is not None:
        store.close()
    return {
        "network": network,
        "arm": name,
        "batch_size": given.batch_size,
        "threads": given.threads,
        "dataset": data.name,
        "steps_per_block": given.steps,
        "blocks": blocks,
        "bytes_per_step": round((after[0] - before[0]) / (given.blocks * given.steps)),
        "codec_seconds_per_step": (after[1] - before[1]) / (given.blocks * given.steps),
    }


def block(sides: dict[str, Callable[[], Clocks]], steps: int) -> dict[str, dict[str, float]]:
    """Takes steps of both sides in turns; who goes first alternates. Returns the median step of each side."""
    taken: dict[str, list[Clocks]] = {side: [] for side in sides}
    for index in range(steps):
        for side in sorted(sides, reverse=index % 2 == 0):
            taken[side].append(sides[side]())
    return {
        side: {
            "seconds": statistics.median(clocks.seconds for clocks in all_clocks),
            "cpu_seconds": statistics.median(clocks.cpu_seconds for clocks in all_clocks),
        }
        for side, all_clocks in taken.items()
    }


def _bytes(store: gw.kv.KVStore) -> int:
    counters = store.engine.counters()
    return int(counters["bytes_sent"] + counters["bytes_received"])


# ---------------------------------------------------------------- the process that starts them


def launch(network: str, name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Runs an arm in a process of its own, inside a job where it needs one. Returns its record."""
    arm = ARMS[name]
    job = [] if arm.servers is None else ["-m", "gradwire.cli", "run", "-n", "1", "-s", str(arm.servers)]
    options = {key: getattr(given, key) for key in ("blocks", "steps", "batch_size", "threads")}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "record.json")
        command = [str(HERE), "--network", network, "--arm", name, "--measure", str(file)]
        for key, value in options.items():
            command += [f"--{key.replace('_', '-')}", str(value)]
        load_before = os.getloadavg()[0]
        # A job's output goes to stderr: stdout is --json's.
        subprocess.run(
            [sys.executable, *job, *([sys.executable] if job else []), *command],
            stdout=sys.stderr,
            check=True,
            timeout=1800,
        )
        record: dict[str, Any] = json.loads(file.read_text())
    return record | {
        "ratio": quartiles(compared(record, "seconds", operator.truediv)),
        "cpu_ratio": quartiles(compared(record, "cpu_seconds", operator.truediv)),
        "extra_cpu_seconds": quartiles(compared(record, "cpu_seconds", operator.sub)),
        "load_before_and_after": [round(load_before, 1), round(os.getloadavg()[0], 1)],
    }


def compared(record: dict[str, Any], clock: str, compare: Callable[[float, float], float]) -> list[float]:
    """Returns a number per block: gradwire's clock compared to plain torch's."""
    return [compare(block["gradwire"][clock], block["plain"][clock]) for block in record["blocks"]]


def quartiles(values: list[float]) -> list[float]:
    """Returns the first quartile, the median and the third."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def row(record: dict[str, Any]) -> str:
    """Returns a row of README's table."""
    plain = statistics.median(block["plain"]["seconds"] for block in record["blocks"])
    cells = [
        *(record["network"], record["arm"], f"{plain * 1e3:.2f}"),
        *("{1:.3f} ({0:.3f}-{2:.3f})".format(*record[ratio]) for ratio in ("ratio", "cpu_ratio")),
        f"{record['extra_cpu_seconds'][1] * 1e3:+.2f}",
        f"{record['codec_seconds_per_step'] * 1e3:.2f}",
        f"{record['bytes_per_step']:,}",
        "-".join(map(str, record["load_before_and_after"])),
    ]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| network | arm | plain step, ms | ratio of times | ratio of CPU times | extra CPU, ms | codec, ms | bytes "
    "| load |\n"
    f"|{'---|' * 9}"
)


def main() -> None:
    given = parse_arguments()
    if given.measure:
        Path(given.measure).write_text(json.dumps(measure(given)))
        return
    stream = sys.stderr if given.json == "-" else sys.stdout
    print(HEAD, file=stream, flush=True)
    records = []
    for network in given.network:
        for name in given.arm:
            records.append(launch(network, name, given))
            print(row(records[-1]), file=stream, flush=True)
            if given.json not in (None, "-"):  # after each: a run cut short leaves what it has
                Path(given.json).write_text(json.dumps(records, indent=1) + "\n")
    if given.json == "-":
        print(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
