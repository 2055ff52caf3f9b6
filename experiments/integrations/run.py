"""What do the integrations save, and what do they cost in loss? Trains by three frameworks, plain and compressed."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).with_name("train.py")
FRAMEWORKS = ("lightning", "accelerate", "transformers")


def train(framework: str, arm: str, folder: Path, *flags: str, dies: bool = False) -> dict[str, Any]:
    """Runs one job of two ranks. Returns rank 0's record; of one that dies, nothing.

    Raises:
        RuntimeError: the job has ended in another way than it should.
    """
    record = folder / "record.json"
    record.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(TRAIN),
    ]
    given = [framework, arm, "--folder", str(folder / "checkpoints"), "--json", str(record), *flags]
    done = subprocess.run([*command, *given], capture_output=True, text=True)
    if dies:
        if done.returncode == 0 or "SIGKILL" not in done.stderr:
            raise RuntimeError(f"{framework} {arm}: was to be killed\n{done.stdout}{done.stderr}")
        return {}
    if done.returncode != 0:
        raise RuntimeError(f"{framework} {arm}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    read: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return read


def measure(framework: str, arms: list[str], steps: int, seed: int) -> dict[str, Any]:
    """Runs all arms of a framework, and the first compressed one once more: killed, and resumed."""
    length = ("--steps", str(steps), "--seed", str(seed))
    found: dict[str, Any] = {}
    for arm in arms:
        with tempfile.TemporaryDirectory() as folder:
            found[arm] = train(framework, arm, Path(folder), *length)
    with tempfile.TemporaryDirectory() as folder:
        saves = (*length, "--save-after", str(steps // 2))
        train(framework, arms[1], Path(folder), *saves, "--kill-after", str(steps * 2 // 3), dies=True)
        resumed = train(framework, arms[1], Path(folder), *saves, "--resume")
    found["resumed"] = resumed
    return found


def table(results: dict[str, Any]) -> str:
    """Returns the results as the README has them."""
    lines = [
        "| framework | lines added | arm | bytes a step | loss | against plain | killed and resumed |",
        "|---|---|---|---|---|---|---|",
    ]
    for framework, found in results["frameworks"].items():
        plain = found["plain"]["loss"]
        for arm, row in found.items():
            if arm == "resumed":
                continue
            is_plain = arm == "plain"
            sent = row["bytes_per_step"]
            share = "" if is_plain else f"{sent} ({row['bytes_uncompressed'] / sent:.1f} times fewer)"
            change = "" if is_plain else f"{100 * (row['loss'] / plain - 1):+.2f} %"
            resumed = ""
            if arm == results["arms"][1]:
                same = found["resumed"]["weights"] == row["weights"]
                resumed = "same weights, bit for bit" if same else "other weights"
            lines.append(
                f"| {framework} | {0 if is_plain else results['lines'][framework]} | `{arm}` | {share} "
                f"| {row['loss']:.4f} | {change} | {resumed} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arms", nargs="+", default=["plain", "int8", "nf2"], help="plain, then codecs")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frameworks", nargs="+", default=FRAMEWORKS)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    sys.path.insert(0, str(TRAIN.parent))
    from train import lines_changed

    results: dict[str, Any] = {"steps": given.steps, "seed": given.seed, "arms": given.arms}
    results |= {"lines": lines_changed(), "frameworks": {}}
    for framework in given.frameworks:
        results["frameworks"][framework] = measure(framework, given.arms, given.steps, given.seed)
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"{framework} done", file=sys.stderr, flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
