"""What do rounded weights cost in loss? FSDP2 and AdamW on two ranks, with gradients, weights or both compressed.

    python experiments/fsdp_weights/run.py            # all of the page, then its tables
    python experiments/fsdp_weights/run.py --tables   # the tables only

A run is a line of results.csv, and is not repeated: the same command goes on.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gradwire.report.paired_statistics import mean_interval
from training.readme import fill

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.csv"
TASKS = ("char_lm_tiny", "vit")
ARMS = (
    "plain",
    "gradients=int8",
    "weights=int8",
    "gradients=int8+weights=int8",
    "weights=int4",
)
SEEDS = 5
STEPS = 400


@dataclass(frozen=True)
class Row:
    """One training. Losses are in nats, on what the model has not seen.

    Attributes:
        loss: with the weights that ranks gather.
        loss_exact: with the exact weights.
    """

    task: str
    arm: str
    seed: int
    steps: int
    loss: float
    loss_exact: float


def read(file: Path = RESULTS) -> list[Row]:
    """Returns the runs of a file, none where there is no file."""
    if not file.exists():
        return []
    kinds = {"seed": int, "steps": int, "loss": float, "loss_exact": float}
    with file.open(newline="", encoding="utf-8") as lines:
        return [Row(**{k: kinds.get(k, str)(v) for k, v in line.items()}) for line in csv.DictReader(lines)]


def write(rows: list[Row], file: Path = RESULTS) -> None:
    rows = sorted(rows, key=lambda row: (TASKS.index(row.task), ARMS.index(row.arm), row.seed))
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def train(task: str, arm: str, seeds: list[int], steps: int) -> list[Row]:
    """Runs one job of two ranks, which trains with one seed after the other.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        given = [str(HERE / "train.py"), task, arm, ",".join(map(str, seeds)), str(steps), str(file)]
        done = subprocess.run([*command, *given], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{task} {arm}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [
        Row(task, arm, each["seed"], steps, round(each["loss"], 5), round(each["loss_exact"], 5))
        for each in found
    ]


def table(rows: list[Row]) -> str:
    """Returns the answer as the README has it."""
    lines = [
        "| task | compressed | loss, nats | behind `plain`, % of its loss | the same with the exact weights |",
        "|---|---|---|---|---|",
    ]
    for task in TASKS:
        plain = {row.seed: row.loss for row in rows if (row.task, row.arm) == (task, "plain")}
        base = sum(plain.values()) / len(plain)
        for arm in ARMS:
            own = {row.seed: row for row in rows if (row.task, row.arm) == (task, arm) and row.seed in plain}
            if not own:
                continue
            mean = sum(row.loss for row in own.values()) / len(own)
            cells = [task, f"`{arm}`", f"{mean:.4f}"]
            for name in ("loss", "loss_exact"):
                pairs = [(getattr(row, name), plain[seed]) for seed, row in own.items()]
                cells.append("" if arm == "plain" else difference(pairs, base))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def difference(pairs: list[tuple[float, float]], base: float) -> str:
    """Returns the mean difference with Student's 95 % interval, in per cent."""
    found = mean_interval([100 * (own - plain) / base for own, plain in pairs])
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tables", action="store_true", help="measure nothing; fill in the table of README.md"
    )
    given = parser.parse_args(arguments)
    if not given.tables:
        for task in TASKS:
            for arm in ARMS:
                rows = read()
                done = {row.seed for row in rows if (row.task, row.arm, row.steps) == (task, arm, STEPS)}
                if seeds := [seed for seed in range(SEEDS) if seed not in done]:
                    print(f"{task} {arm}: seeds {seeds}", file=sys.stderr, flush=True)
                    write(rows + train(task, arm, seeds, STEPS))
    fill("answer", table(read()), HERE / "README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
