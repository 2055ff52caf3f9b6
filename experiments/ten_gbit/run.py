"""Where does the CPU time of a round go, and is the wire full? gradwire beside Gloo, bare sockets, and another tree.

    python experiments/ten_gbit/run.py cpu                     gradwire, Gloo and bare sockets in turns: five minutes
    python experiments/ten_gbit/run.py threads                 by thread, gradwire and Gloo in turns: seven minutes
    python experiments/ten_gbit/run.py codecs                  codecs, ranks and memory, beside Gloo: ten minutes
    python experiments/ten_gbit/run.py ps --ps-lite CHECKOUT   servers beside ps-lite's, in turns: four minutes
    python experiments/ten_gbit/run.py wire --against FOLDER   this tree and another one in turns: twelve minutes
    python experiments/ten_gbit/run.py tables                  measures nothing: prints README.md's tables

As root, on a machine that does nothing else. FOLDER has a checkout in which `make build` was run, and CHECKOUT one of
https://github.com/dmlc/ps-lite, for which Debian's protobuf-compiler, libprotobuf-dev and libzmq3-dev are needed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ps_lite
import threads
from gradwire.netlab import NetLab
from gradwire.terminal.machine import gradwire_version, machine_description

HERE = Path(__file__).resolve().parent
GRADIENT_BYTES = 100_000_000
RATES = ("1gbit", "10gbit")
RANKS = (2, 4)
TURNS = 2
ROUNDS = 5
# Of `codecs`: what `gradwire bench` is asked for at 10 Gbit, for each number of ranks.
CODEC_RANKS = (2, 4, 8)
CODECS = ("none", "fp16", "int8", "2bit")
_BOTH_WAYS = " ".join(f"--codec {codec}:reply={codec}" for codec in CODECS[1:])
ALL_REDUCES = f"allreduce --bandwidth 10gbit --codec none {_BOTH_WAYS} --peer gloo,gloo-fp16"
SERVERS = "ps --colocated --bandwidth 10gbit"
# Of `ps`: each worker's host has a server.
PS_CODECS = ("none", "2bit")
# Of `threads`: what `gradwire bench` is asked for.
THREADED = "allreduce --bandwidth 10gbit --codec none --peer gloo"
LEAST_SHOWN = 0.005  # CPU seconds for each GB: threads that take less are not shown
# Of `wire`: what `gradwire bench` is asked for.
ROWS = {
    "1gbit, 2 workers, 1 server, none": "ps -n 2 -s 1 --bandwidth 1gbit --codec none",
    "1gbit, 4 workers, 2 servers, none": "ps -n 4 -s 2 --bandwidth 1gbit --codec none",
    "1gbit, 4 workers, 4 servers, none": "ps -n 4 -s 4 --bandwidth 1gbit --codec none",
    "1gbit, 8 workers, 1 server, none, 25 MB": "ps -n 8 -s 1 --bandwidth 1gbit --codec none --bytes 25MB",
    "1gbit, 4 workers, 2 servers, fp16": "ps -n 4 -s 2 --bandwidth 1gbit --codec fp16 --reply fp16",
    "1gbit, 4 workers, 2 servers, 2bit": "ps -n 4 -s 2 --bandwidth 1gbit --codec 2bit --reply 2bit",
    "100mbit, 2 workers, 1 server, none, 25 MB": "ps -n 2 -s 1 --bandwidth 100mbit --codec none --bytes 25MB",
    "10gbit, 4 workers, 2 servers, none": "ps -n 4 -s 2 --bandwidth 10gbit --codec none",
    "1gbit, 4 peers, none": "allreduce -n 4 --bandwidth 1gbit --codec none",
    "10gbit, 4 peers, none": "allreduce -n 4 --bandwidth 10gbit --codec none",
    "1gbit, 4 peers, 2bit": "allreduce -n 4 --bandwidth 1gbit --codec 2bit --reply 2bit",
}


def bench(python: str, words: str) -> list[dict[str, Any]]:
    """Returns the records of one `gradwire bench` of the tree whose interpreter this is."""
    command = [python, "-m", "gradwire.cli", "bench", *words.split()]
    command += ["--repeat", str(ROUNDS), "--launches", "1", "--json", "-"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    records: list[dict[str, Any]] = json.loads(done.stdout)
    return records


def sockets(ranks: int, bandwidth: str) -> dict[str, float]:
    """Returns what bare sockets take, as summary()."""
    share = 2 * GRADIENT_BYTES // ranks  # what a rank pushes to another, and what comes back
    with NetLab(hosts=ranks, bandwidth=bandwidth) as lab:
        addresses = [lab.host(rank).address for rank in range(ranks)]
        program = [sys.executable, str(HERE / "sockets.py")]
        jobs = [
            lab.host(rank).popen(
                [*program, str(rank), str(share), str(ROUNDS), *addresses], stdout=subprocess.PIPE, text=True
            )
            for rank in range(ranks)
        ]
        outputs = [job.communicate(timeout=120)[0] for job in jobs]
    return summary(outputs, ranks)


def summary(outputs: Iterable[str], ranks: int, warm_up: int = 0) -> dict[str, float]:
    """Returns seconds of the median round, and mean CPU seconds for each GB of gradient.

    Args:
        outputs: of each process its lines of JSON, one a round.
        warm_up: rounds that do not count.
    """
    members = ([json.loads(line) for line in text.splitlines()] for text in outputs)
    rounds = list(zip(*members, strict=True))[warm_up:]
    return {
        "seconds": statistics.median(max(row["seconds"] for row in rows) for rows in rounds),
        "cpu_seconds_per_gb": statistics.mean(
            sum(row["cpu_seconds"] for row in rows) / (ranks * GRADIENT_BYTES / 1e9) for rows in rounds
        ),
    }


def cost(record: dict[str, Any]) -> dict[str, float]:
    """What summary() says of other systems, of a record of `gradwire bench`."""
    return {"seconds": record["seconds_median"], "cpu_seconds_per_gb": record["cpu_seconds_per_gb"]}


def with_servers(ranks: int, codec: str) -> str:
    """What `gradwire bench` is asked for, where each worker's host has a server."""
    return f"{SERVERS} -n {ranks} -s {ranks} --codec {codec} --reply {codec}"


def measure_cpu() -> list[dict[str, Any]]:
    """The systems of `cpu` in turns."""
    found: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for turn in range(TURNS):
        for bandwidth in RATES:
            for ranks in RANKS:
                words = f"allreduce -n {ranks} --bandwidth {bandwidth} --codec none --checksum auto,off --peer gloo"
                for record in bench(sys.executable, words):
                    found.setdefault((bandwidth, ranks, record["label"]), []).append(cost(record))
                found.setdefault((bandwidth, ranks, "sockets alone"), []).append(sockets(ranks, bandwidth))
                print(f"turn {turn + 1} of {TURNS}: {bandwidth}, {ranks} ranks", flush=True)
    return [
        {"bandwidth": bandwidth, "ranks": ranks, "system": system, "turns": turns}
        for (bandwidth, ranks, system), turns in found.items()
    ]


def measure_codecs() -> list[dict[str, Any]]:
    """The rows of `codecs` in turns."""
    kept = ("seconds_median", "wire_limit_seconds", "cpu_seconds_per_gb", "memory_bytes_per_rank")
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for turn in range(TURNS):
        for ranks in CODEC_RANKS:
            calls = [f"{ALL_REDUCES} -n {ranks}"]
            for codec in CODECS:
                calls.append(with_servers(ranks, codec))
            for record in itertools.chain.from_iterable(bench(sys.executable, words) for words in calls):
                found.setdefault((ranks, record["label"]), []).append({name: record[name] for name in kept})
            print(f"turn {turn + 1} of {TURNS}: {ranks} ranks", flush=True)
    return [{"ranks": ranks, "system": system, "turns": turns} for (ranks, system), turns in found.items()]


def measure_threads() -> list[dict[str, Any]]:
    """The threads of `threads`, in turns."""
    found: dict[tuple[int, str, str], list[float]] = {}
    for turn in range(TURNS):
        for ranks in RANKS:
            for (system, thread), cpu in threads.measure(
                f"{THREADED} -n {ranks}", ranks, GRADIENT_BYTES
            ).items():
                found.setdefault((ranks, system, thread), []).append(cpu)
            print(f"turn {turn + 1} of {TURNS}: {ranks} ranks", flush=True)
    return [
        {"ranks": ranks, "system": system, "thread": thread, "cpu_seconds_per_gb": turns}
        for (ranks, system, thread), turns in found.items()
    ]


def measure_ps(checkout: Path) -> list[dict[str, Any]]:
    """The rows of `ps` in turns."""
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = ps_lite.build(checkout, Path(folder))
        for turn in range(TURNS):
            for ranks in CODEC_RANKS:
                for codec in PS_CODECS:
                    (record,) = bench(sys.executable, with_servers(ranks, codec))
                    found.setdefault((ranks, record["label"]), []).append(cost(record))
                for keys, key_bytes in ps_lite.KEY_BYTES.items():
                    outputs = ps_lite.run(program, ranks, "10gbit", GRADIENT_BYTES, key_bytes, ROUNDS + 1)
                    alone = summary(outputs, ranks, warm_up=1)
                    found.setdefault((ranks, f"ps-lite alone, {keys}"), []).append(alone)
                print(f"turn {turn + 1} of {TURNS}: {ranks} ranks", flush=True)
    return [{"ranks": ranks, "system": system, "turns": turns} for (ranks, system), turns in found.items()]


def measure_wire(against: Path) -> list[dict[str, Any]]:
    """The rows of `wire`, this tree and the other one in turns."""
    trees = {"before": str(against / ".venv" / "bin" / "python"), "now": sys.executable}
    rows: list[dict[str, Any]] = []
    for name, words in ROWS.items():
        row: dict[str, Any] = {"row": name, "command": f"gradwire bench {words}", "before": [], "now": []}
        for _ in range(TURNS):
            for tree, python in trees.items():
                (record,) = bench(python, words)
                limit = record["wire_limit_seconds"]
                row[tree] += [round(seconds / limit, 4) for seconds in record["seconds"]]
        rows.append(row)
        print(
            f"{name}: {statistics.median(row['before']):.3f} to {statistics.median(row['now']):.3f}",
            flush=True,
        )
    return rows


def spread(values: Iterable[float]) -> str:
    """Median, least and most."""
    ordered = sorted(values)
    return f"{statistics.median(ordered):.2f} ({ordered[0]:.2f} to {ordered[-1]:.2f})"


def cost_cells(turns: Sequence[dict[str, float]]) -> str:
    """Seconds, and CPU seconds for each GB."""
    seconds = statistics.median(turn["seconds"] for turn in turns)
    return f"{seconds:.3f} | {spread(turn['cpu_seconds_per_gb'] for turn in turns)}"


def tables(record: dict[str, Any]) -> str:
    """README.md's."""
    lines = ["| link, ranks | system | s | CPU s/GB |", "|---|---|---|---|"]
    for row in record.get("cpu", []):
        lines.append(f"| {row['bandwidth']}, {row['ranks']} | {row['system']} | {cost_cells(row['turns'])} |")
    lines += ["", "| ranks | system | thread | CPU s/GB |", "|---|---|---|---|"]
    for row in record.get("threads", []):
        if statistics.median(row["cpu_seconds_per_gb"]) < LEAST_SHOWN:
            continue
        lines.append(
            f"| {row['ranks']} | {row['system']} | {row['thread']} | {spread(row['cpu_seconds_per_gb'])} |"
        )
    lines += ["", "| ranks | system | s | CPU s/GB |", "|---|---|---|---|"]
    for row in record.get("ps", []):
        lines.append(f"| {row['ranks']} | {row['system']} | {cost_cells(row['turns'])} |")
    lines += ["", "| ranks | system | s | x limit | CPU s/GB | memory, MB |", "|---|---|---|---|---|---|"]
    for row in record.get("codecs", []):
        turns = row["turns"]
        seconds = statistics.median(turn["seconds_median"] for turn in turns)
        limit = turns[0]["wire_limit_seconds"]
        lines.append(
            f"| {row['ranks']} | {row['system']} | {seconds:.3f} | {seconds / limit:.2f} | "
            f"{spread(turn['cpu_seconds_per_gb'] for turn in turns)} | "
            f"{max(turn['memory_bytes_per_rank'] for turn in turns) / 1e6:.0f} |"
        )
    lines += ["", "| row | before | now |", "|---|---|---|"]
    for row in record.get("wire", []):
        lines.append(f"| {row['row']} | {spread(row['before'])} | {spread(row['now'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("cpu", "threads", "codecs", "ps", "wire", "tables"))
    parser.add_argument("--against", type=Path, help="the other tree; required by wire")
    parser.add_argument("--ps-lite", type=Path, help="a checkout of ps-lite; required by ps")
    parser.add_argument("--folder", type=Path, default=HERE, help="where results.json is")
    given = parser.parse_args()
    if given.what == "wire" and given.against is None:
        parser.error("wire needs --against FOLDER, a checkout in which `make build` was run")
    if given.what == "ps" and given.ps_lite is None:
        parser.error("ps needs --ps-lite CHECKOUT, a checkout of https://github.com/dmlc/ps-lite")
    file = given.folder / "results.json"
    record: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if given.what != "tables":
        measures = {
            "cpu": measure_cpu,
            "threads": measure_threads,
            "codecs": measure_codecs,
            "ps": lambda: measure_ps(given.ps_lite),
            "wire": lambda: measure_wire(given.against),
        }
        record[given.what] = measures[given.what]()
        record.setdefault("made", {})[given.what] = {
            "gradwire": gradwire_version(),
            "machine": machine_description(),
        }
        file.write_text(json.dumps(record, indent=1) + "\n")
    print(tables(record))


if __name__ == "__main__":
    main()
