"""What does every codec cost in accuracy? One `gradwire ab` per task, 4 workers, all codecs, the same seeds.

    python experiments/codec_accuracy/run.py [--task lenet]... [--arm none --arm 2bit]... [--seeds 5]
    python experiments/codec_accuracy/run.py --tables

Results of a task replace that task's in results.json; --tables prints the README's tables and draws results.svg from
it. The pages with curves are report/codec_accuracy/TASK/index.html.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.chart import Bar, Panel, panel_chart, standalone

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
WORKERS = 4


@dataclass(frozen=True)
class Task:
    """script: below experiments/. flags: the same for all codecs."""

    script: str
    flags: str


TASKS = {
    "lenet": Task("fashion_mnist/train.py", "--network lenet --limit 6400 --num-epochs 4 --batch-size 16"),
    "resnet8": Task(
        "fashion_mnist/train.py", "--network resnet8 --limit 3200 --num-epochs 4 --batch-size 16"
    ),
    "char_lm": Task("char_lm/train.py", "--network tiny --limit 6400 --num-epochs 2 --batch-size 16"),
}
ARMS = (
    *("none", "fp16", "bf16", "int8", "fp8", "fp8:format=e5m2", "int4", "qsgd", "2bit", "2bit:reply=2bit"),
    *("1bit", "topk:ratio=0.01", "topk:ratio=0.1", "randomk:ratio=0.1"),
)


def measure(name: str, arms: list[str], seeds: int) -> dict[str, Any]:
    """Runs one task; returns what `gradwire ab` wrote and its command."""
    task = TASKS[name]
    options = [part for arm in arms for part in ("--arm", arm)]
    training = ["python", f"experiments/{task.script}", *task.flags.split(), "--kv-store", "allreduce"]
    command = ["ab", "-n", str(WORKERS), "-s", "0", "--seeds", str(seeds), *options]
    command += ["--report", f"report/codec_accuracy/{name}"]
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "gradwire.cli", *command, "--json", str(record)),
                *("--", sys.executable, *training[1:]),
            ],
            cwd=HERE.parent.parent,
            check=True,
        )
        result = json.loads(record.read_text())
    return {"command": " ".join(["gradwire", *command, "--", *training]), **result}


def bits_per_element(result: Mapping[str, Any], arm: Mapping[str, Any]) -> float:
    """Returns bits at the socket per parameter, both ways together, headers included; 64 are uncompressed."""
    dense = next(row["bytes_per_step"] for row in result["arms"] if row["arm"] == "none")
    return 64 * float(arm["bytes_per_step"]) / dense


def table(result: Mapping[str, Any]) -> str:
    """Returns a task's table in Markdown."""
    is_loss = result["metric"] == "loss"
    unit = "loss, nats" if is_loss else "accuracy, %"
    lines = [
        f"`{result['command']}`",
        "",
        f"| codec | {unit} | difference to none [95 %] | bits per element, both ways | codec seconds |",
        "|---|---|---|---|---|",
    ]
    scale = 1 if is_loss else 100
    for arm in result["arms"]:
        score = arm["loss"] if is_loss else arm["accuracy"]
        gap = arm["difference"]
        text = "" if gap is None else f"{scale * gap['mean']:+.2f}"
        if gap is not None and gap["low"] is not None:
            text += f" [{scale * gap['low']:+.2f}, {scale * gap['high']:+.2f}]"
        lines.append(
            f"| `{arm['arm']}` | {scale * score:.2f} | {text} | {bits_per_element(result, arm):.2f} | "
            f"{arm['codec_seconds']:.2f} |"
        )
    return "\n".join(lines)


def draw(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the final score of every codec, one panel per task."""
    panels = []
    for task, result in results.items():
        is_loss = result["metric"] == "loss"
        bars = []
        for index, arm in enumerate(result["arms"]):
            score, spread = (
                (arm["loss"], arm["loss_std"]) if is_loss else (arm["accuracy"], arm["accuracy_std"])
            )
            scale = 1 if is_loss else 100
            spread = scale * (spread or 0)
            bars.append(
                Bar(
                    arm["arm"],
                    scale * score,
                    (scale * score - spread, scale * score + spread),
                    note=f"{bits_per_element(result, arm):.1f} bits",
                    colour=min(index, 1),
                )
            )
        panels.append(
            Panel(f"{task}: {'validation loss, nats' if is_loss else 'test accuracy, %'}", tuple(bars))
        )
    return standalone(panel_chart(panels, lambda value: f"{value:.2f}"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", action="append", choices=list(TASKS), help="repeatable; default: all")
    parser.add_argument("--arm", action="append", metavar="CODEC", help="repeatable; default: every codec")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--tables", action="store_true", help="measure nothing: print tables, draw results.svg"
    )
    given = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not given.tables:
        for name in given.task or TASKS:
            results[name] = measure(name, given.arm or list(ARMS), given.seeds)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for name, result in results.items():
        print(f"\n{name}\n\n{table(result)}")
    (HERE / "results.svg").write_text(draw(results))


if __name__ == "__main__":
    main()
