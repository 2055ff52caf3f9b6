"""What does a step of DDP, FSDP2 or HSDP wait for the network? PyTorch's own sums and gradwire's, in the same run on
the same links.

python experiments/exposed_communication/run.py [--row NAME]... [--steps 7] [--folder DIR]
python experiments/exposed_communication/run.py --tables       only prints README.md's tables from results.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.bench.hosts import Network
from gradwire.launch.child import Line
from gradwire.launch.supervisor import run_job
from gradwire.plan.simulation import PAYLOAD_SHARE
from gradwire.report.chart import Bar, Panel, panel_chart, standalone
from gradwire.settings.units import format_duration, parse_rate
from gradwire.terminal.machine import machine_description

WORKER = Path(__file__).with_name("worker.py")
OURS = "gradwire"
DDP_HOOKS = (
    *("plain", "fp16", "powersgd 1", "powersgd 4"),
    *(f"{OURS} fp16", f"{OURS} int8", f"{OURS} 2bit", f"{OURS} 2bit:reply=2bit"),
)
SHARDED_HOOKS = ("plain", *(f"{OURS} {codec}" for codec in ("none", "fp16", "int8", "nf2")))
WITH_WEIGHTS = (f"{OURS} int8, weights int8", f"{OURS} nf2, weights int8")
BANDWIDTH = "1gbit"
_SECONDS = 900


@dataclass(frozen=True)
class Row:
    """way: ddp, fsdp, or hsdp with two ranks in each host."""

    model: str
    ranks: int
    launches: int
    way: str = "ddp"

    @property
    def hooks(self) -> tuple[str, ...]:
        """HSDP gathers weights inside a host, where nothing is gained."""
        return {"ddp": DDP_HOOKS, "fsdp": SHARDED_HOOKS + WITH_WEIGHTS, "hsdp": SHARDED_HOOKS}[self.way]

    @property
    def ranks_per_host(self) -> int:
        return 2 if self.way == "hsdp" else 1


ROWS = {
    "25m-2": Row("25m", 2, 2),
    "25m-4": Row("25m", 4, 2),
    "vgg16-2": Row("vgg16", 2, 1),
    "fsdp-2": Row("25m", 2, 2, "fsdp"),
    "fsdp-4": Row("25m", 4, 2, "fsdp"),
    "hsdp-4": Row("25m", 4, 2, "hsdp"),
}


@dataclass(frozen=True)
class Claim:
    """exposed: ours is at most 1/bound of the rival's; step: ours is at most bound seconds."""

    row: str
    against: str
    bound: float


CLAIMS = (
    *(Claim(row, "fp16", 5) for row in ("25m-2", "25m-4")),
    *(Claim("25m-2", f"powersgd {rank}", 2) for rank in (1, 4)),
    *(Claim("25m-4", f"powersgd {rank}", 2.5) for rank in (1, 4)),
    Claim("vgg16-2", "step", 1.15),
)


def launch(row: Row, hook: str, steps: int, network: Network) -> list[dict[str, Any]]:
    """Runs one job. Returns what its ranks measured.

    Raises: RuntimeError: it failed, or ranks ended with different gradients.
    """
    network.forget_processes()
    meeting = network.meeting(row.ranks)
    said: list[str] = []

    def environment(rank: int) -> dict[str, str]:
        interface = network.interface(network.place("worker", rank))
        return meeting(rank) | {"GLOO_SOCKET_IFNAME": interface, "TORCH_CPP_LOG_LEVEL": "ERROR"}

    def remember(line: Line) -> None:
        said.append(f"{line.role} {line.rank}: {line.text}")

    with tempfile.TemporaryDirectory(prefix="gradwire-exposed-") as folder:
        job = run_job(
            [sys.executable, str(WORKER), folder, row.model, row.way, hook, str(steps)],
            row.ranks,
            0,
            worker_env=environment,
            placement=network.place,
            output=remember,
            timeout=_SECONDS,
        )
        job.require_success(hook, said[-20:])
        records = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(row.ranks)]
    if len({record["digest"] for record in records}) != 1:
        raise RuntimeError(f"{hook}: the ranks ended with different gradients")
    return records


def measure(name: str, steps: int) -> dict[str, Any]:
    """Runs all hooks in turns, as often as the row says."""
    row = ROWS[name]
    load = os.getloadavg()[0]
    taken: dict[str, list[list[dict[str, Any]]]] = {hook: [] for hook in row.hooks}
    with Network.open(row.ranks, 0, BANDWIDTH, colocated=True, ranks_per_host=row.ranks_per_host) as network:
        for number in range(row.launches):
            for hook in row.hooks:
                print(f"{name}: {hook}: launch {number + 1} of {row.launches}", file=sys.stderr, flush=True)
                taken[hook].append(launch(row, hook, steps, network))
    return {
        "row": name,
        "model": row.model,
        "way": row.way,
        "ranks": row.ranks,
        "bandwidth": BANDWIDTH,
        "machine": machine_description(),
        "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
        "records": [summary(hook, launches) for hook, launches in taken.items()],
    }


def summary(hook: str, launches: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """The slowest rank of each step counts; exposed is a step less the step beside it that does not communicate."""
    step = [max(values) for ranks in launches for values in zip(*(r["step"] for r in ranks), strict=True)]
    alone = [max(values) for ranks in launches for values in zip(*(r["no_sync"] for r in ranks), strict=True)]
    exposed = [s - a for s, a in zip(step, alone, strict=True)]
    return {
        "hook": hook,
        "parameters": launches[0][0]["parameters"],
        "step": step,
        "no_sync": alone,
        "step_median": statistics.median(step),
        "no_sync_median": statistics.median(alone),
        "exposed_median": statistics.median(exposed),
        "exposed_min": min(exposed),
        "exposed_max": max(exposed),
        "relative_error": launches[0][0]["relative_error"],
    }


def dense_wire_seconds(row: dict[str, Any]) -> float:
    """What uncompressed gradients need of the wire: 2(N-1)/N * 4 bytes * elements, of N hosts; half where they are
    reduce-scattered alone.
    """
    way = row.get("way", "ddp")
    hosts = row["ranks"] // 2 if way == "hsdp" else row["ranks"]
    times = 1 if way == "fsdp" else 2
    bits = times * (hosts - 1) / hosts * 32 * row["records"][0]["parameters"]
    return float(bits / (PAYLOAD_SHARE * parse_rate(row["bandwidth"])))


def markdown(rows: list[dict[str, Any]]) -> str:
    """Returns README.md's tables."""
    lines = ["| claim | hook | bound | measured | holds |", "|---|---|---|---|---|"]
    by_name = {row["row"]: {r["hook"]: r for r in row["records"]} for row in rows}
    for claim in CLAIMS:
        records = by_name.get(claim.row, {})
        for hook in (h for h in (f"{OURS} 2bit", f"{OURS} 2bit:reply=2bit") if h in records):
            own = records[hook]
            if claim.against == "step":
                value, sense = own["step_median"], f"step <= {claim.bound:g} s"
                holds = value <= claim.bound
            else:
                value = records[claim.against]["exposed_median"] / own["exposed_median"]
                sense = f">= {claim.bound:g} x less than {claim.against}"
                holds = value >= claim.bound
            cells = [claim.row, hook, sense, f"{value:.2f}", "yes" if holds else "**no**"]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| row | hook | step, s | no_sync, s | exposed, s (min-max) | error of one step | load |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        load = "-".join(map(str, row["load_before_and_after"]))
        for r in row["records"]:
            exposed = f"{r['exposed_median']:.3f} ({r['exposed_min']:.3f}-{r['exposed_max']:.3f})"
            times = [f"{r['step_median']:.3f}", f"{r['no_sync_median']:.3f}", exposed]
            cells = [row["row"], r["hook"], *times, f"{r['relative_error']:.2g}", load]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append(f"| {row['row']} | limit of the wire, float32 | {dense_wire_seconds(row):.3f} | | | | |")
    return "\n".join(lines)


def write_chart(folder: Path, rows: list[dict[str, Any]]) -> None:
    panels = []
    for row in rows:
        bars = [
            Bar(r["hook"], r["exposed_median"], (r["exposed_min"], r["exposed_max"]), None, "", colour)
            for r in row["records"]
            for colour in [0 if r["hook"].startswith(OURS) else 1]
        ]
        panels.append(Panel(f"{row['row']} ranks, {row['bandwidth']}: exposed communication", tuple(bars)))
    (folder / "results.svg").write_text(standalone(panel_chart(panels, format_duration)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="repeatable; unset: all")
    parser.add_argument("--steps", type=int, default=7, help="timed steps of each launch, at least 5")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="where results are")
    parser.add_argument("--tables", action="store_true", help="measure nothing, print the tables")
    given = parser.parse_args()
    if given.steps < 5:
        parser.error(f"--steps: {given.steps} was given, expected 5 or more: a median of fewer says little")
    file = given.folder / "results.json"
    results = {row["row"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    for name in [] if given.tables else given.row or ROWS:
        results[name] = measure(name, given.steps)
        rows = [results[row] for row in ROWS if row in results]
        file.write_text(json.dumps(rows, indent=1) + "\n")
        write_chart(given.folder, rows)
    print(markdown([results[row] for row in ROWS if row in results]))


if __name__ == "__main__":
    main()
