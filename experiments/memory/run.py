"""How much memory does training take for each parameter, with and without gradwire?

    python experiments/memory/run.py                   all arms, two ranks each: twenty minutes
    python experiments/memory/run.py --only bfloat16   those with this in front end and codec; keeps the others
    python experiments/memory/run.py tables            measures nothing: prints README.md's table

Each arm is a job of its own. A figure is the slope between a small model and a large one, so what a process takes
whatever the model is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gradwire.terminal.machine import gradwire_version, machine_description

HERE = Path(__file__).resolve().parent
MILLIONS = (16, 48)
LAYER = 1024 * 1024  # parameters
CODECS = ("none", "fp16", "int8", "nf4", "2bit")
# Behind a codec: how residuals are kept, if not in float32.
RESIDUALS = {"bfloat16": "residuals in bfloat16", "none": "no residuals"}
WITH_RESIDUALS = (*CODECS, "int8 bfloat16", "int8 none")
OF_BFLOAT16_MODELS = ("plain", "none", "int8", "int8 bfloat16", "int8 none", "2bit")
# Front end, codec ("plain": without gradwire), servers.
ARMS = (
    ("ddp", "plain", 0),
    *(("ddp", codec, 0) for codec in WITH_RESIDUALS),
    ("optimizer", "plain", 0),
    *(("optimizer", codec, 0) for codec in WITH_RESIDUALS),
    *(("optimizer", codec, 2) for codec in WITH_RESIDUALS),
    ("fsdp2", "plain", 0),
    *(("fsdp2", codec, 0) for codec in WITH_RESIDUALS),
    *(("ddp bfloat16", codec, 0) for codec in OF_BFLOAT16_MODELS),
    *(("optimizer bfloat16", codec, 0) for codec in OF_BFLOAT16_MODELS),
)
NAMES = {
    "ddp": "DDP and its hook",
    "optimizer": "DistributedOptimizer",
    "fsdp2": "FSDP2",
    "ddp bfloat16": "DDP and its hook, a bfloat16 model",
    "optimizer bfloat16": "DistributedOptimizer, a bfloat16 model",
}


def peaks(front_end: str, codec: str, servers: int, millions: int) -> dict[str, int]:
    """What rank 0 of a job with two ranks says: peaks in bytes, of itself and of a server."""
    spec, _, residuals = codec.partition(" ")
    worker = [sys.executable, str(HERE / "worker.py"), front_end, spec, str(millions)]
    command = [sys.executable, "-m", "gradwire.cli", "run", "-n", "2", "-s", str(servers), *worker]
    # What is in use: by default glibc keeps memory that nobody has any more.
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "GRADWIRE_RESIDUAL_DTYPE": residuals or "float32",
    }
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=600
    )
    (line,) = (line for line in done.stdout.splitlines() if "{" in line)
    found: dict[str, int] = json.loads(line[line.index("{") :])
    return found


def measure(front_end: str, codec: str, servers: int, millions: tuple[int, int]) -> dict[str, Any]:
    """One arm."""
    small, large = (peaks(front_end, codec, servers, count) for count in millions)
    parameters = (millions[1] - millions[0]) * LAYER
    each = {name: (large[name] - small[name]) / parameters for name in small}
    return {
        "front_end": front_end,
        "codec": codec,
        "servers": servers,
        "bytes_per_parameter": round(each["worker"], 2),
        "server_bytes_per_parameter": round(each["server"], 2) if servers else None,
    }


def tables(record: dict[str, Any]) -> str:
    """README.md's."""
    lines = [
        "| front end | codec | a worker | more than without gradwire | a server |",
        "|---|---|---|---|---|",
    ]
    plain = {
        row["front_end"]: row["bytes_per_parameter"] for row in record["arms"] if row["codec"] == "plain"
    }
    for row in record["arms"]:
        name = NAMES[row["front_end"]] + (f", {row['servers']} servers" if row["servers"] else "")
        own = row["bytes_per_parameter"]
        more = "" if row["codec"] == "plain" else f"{own - plain[row['front_end']]:+.1f}"
        spec, _, residuals = row["codec"].partition(" ")
        codec = "without gradwire" if spec == "plain" else f"`{spec}`"
        codec += f", {RESIDUALS[residuals]}" if residuals else ""
        server = (
            "" if row["server_bytes_per_parameter"] is None else f"{row['server_bytes_per_parameter']:.1f}"
        )
        lines.append(f"| {name} | {codec} | {own:.1f} | {more} | {server} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="?", choices=("measure", "tables"), default="measure")
    parser.add_argument("--folder", type=Path, default=HERE, help="where results.json is")
    parser.add_argument(
        "--only", default="", help="a part of front end and codec, such as 'optimizer int8'; default: all"
    )
    given = parser.parse_args()
    file = given.folder / "results.json"
    if given.what == "measure":
        kept = json.loads(file.read_text())["arms"] if given.only else []
        arms = {(arm["front_end"], arm["codec"], arm["servers"]): arm for arm in kept}
        for arm in (each for each in ARMS if given.only in f"{each[0]} {each[1]}"):
            arms[arm] = measure(*arm, MILLIONS)
            print(arms[arm], flush=True)
        record = {
            "gradwire": gradwire_version(),
            "machine": machine_description(),
            "millions": MILLIONS,
            "arms": [arms[arm] for arm in ARMS if arm in arms],
        }
        file.write_text(json.dumps(record, indent=1) + "\n")
    print(tables(json.loads(file.read_text())))


if __name__ == "__main__":
    main()
