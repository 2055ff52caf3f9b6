"""How fast are the codecs? Each beside memcpy, on one thread, on two and in the cache; MXNet's 2 bits beside ours.

python experiments/codec_speed/run.py              about three minutes; fills README.md
python experiments/codec_speed/run.py --mxnet      and MXNet 1.9.1's own quantizer (its environment is made once)
python experiments/codec_speed/run.py --tables     measures nothing: fills README.md from the results
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.bench import peer_mxnet
from gradwire.bench.system import PeerUnavailable
from gradwire.bench.tables import CODEC_TITLES, codec_row
from gradwire.launch.rendezvous import free_port
from gradwire.launch.supervisor import run_job

HERE = Path(__file__).resolve().parent
REPEATS = 9
ELEMENTS = 25_000_000
CACHED_ELEMENTS = 131_072  # two codec units: gradient, residual and payload lie in the second-level cache
SETUPS = {
    "one_thread": ["--repeat", str(REPEATS)],
    "two_threads": ["--repeat", str(REPEATS), "--threads", "2"],
    "cached": ["--repeat", "499", "--elements", str(CACHED_ELEMENTS), "--piece-elements", "0"],
}
FILES = {"one_thread": "results.json", "two_threads": "two_threads.json", "cached": "cached.json"}
MXNET_FILE = "mxnet.json"
JOB_SECONDS = 300
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Goal:
    """What was set out for: at least so much, of memcpy or (absolute) in G elements a second."""

    codec: str
    op: str
    residual: str
    least: float
    setup: str = "one_thread"
    absolute: bool = False


GOALS = (
    Goal("2bit", "encode", "fp32", 0.9),
    Goal("2bit", "encode", "fp32", 0.9, "two_threads"),
    Goal("2bit", "encode", "bf16", 1.2),
    Goal("2bit", "encode", "bf16", 1.2, "two_threads"),
    *(
        Goal(codec, op, "none", least, setup)
        for setup in ("one_thread", "two_threads")
        for codec in ("fp16", "bf16")
        for op, least in (("encode", 1.3), ("decode", 1.15))
    ),
    *(
        Goal(codec, "encode", "none", least, setup)
        for setup in ("one_thread", "two_threads")
        for codec, least in (("int8", 1.1), ("fp8", 0.9))
    ),
    Goal("1bit", "encode", "fp32", 0.55),
    Goal("1bit", "encode", "fp32", 0.55, "two_threads"),
    Goal("2bit", "encode", "fp32", 7.0, "cached", absolute=True),
)
MXNET_TIMES = 12  # ours against MXNet's 2-bit encode


def measure(setup: str) -> None:
    """Has `gradwire bench codec` write the setup's file.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    command = [str(Path(sys.executable).with_name("gradwire")), "bench", "codec", *SETUPS[setup]]
    subprocess.run([*command, "--json", str(HERE / FILES[setup])], check=True, stdout=sys.stderr)


def measure_mxnet() -> None:
    """Notes the seconds of MXNet's quantizer over 25 000 000 floats: the median that its own profiler saw.

    Raises:
        PeerUnavailable: MXNet cannot be run here, or the job failed.
    """
    python = peer_mxnet.find_python(None, lambda text: print(text, file=sys.stderr))
    root = ("127.0.0.1", free_port("127.0.0.1"))
    said: list[str] = []
    job = run_job(
        [str(python), "-I", str(HERE / "mxnet_worker.py"), str(ELEMENTS), str(REPEATS)],
        3,  # the scheduler, a server, a worker
        0,
        worker_env=lambda process: {
            **peer_mxnet.environment(process, 1, 1, root, "127.0.0.1", "lo"),
            "OMP_NUM_THREADS": "1",
        },
        output=lambda line: said.append(line.text),
        timeout=JOB_SECONDS,
    )
    found = [json.loads(text) for text in said if text.startswith('{"quantize_ms"')]
    if job.exit_code != 0 or not found:
        raise PeerUnavailable(f"mxnet: the job failed: {job.cause}; it last said: {said[-1:]}")
    seconds = statistics.median(found[0]["quantize_ms"]) / 1000
    (HERE / MXNET_FILE).write_text(json.dumps({"elements": ELEMENTS, "quantize_seconds": seconds}) + "\n")


def read() -> dict[str, Any]:
    """Returns what was measured: the rows of each setup, and of MXNet what there is."""
    files = {**FILES, "mxnet": MXNET_FILE}
    return {
        name: json.loads((HERE / file).read_text()) for name, file in files.items() if (HERE / file).exists()
    }


def the(rows: Sequence[Row], codec: str, op: str, residual: str) -> Row:
    (row,) = (r for r in rows if (r["codec"], r["op"], r["residual"]) == (codec, op, residual))
    return row


def goals(results: Mapping[str, Any]) -> list[list[str]]:
    """A line per goal: what, where, at least, measured, what memory allows, whether it holds."""
    lines = []
    for goal in GOALS:
        row = the(results[goal.setup], goal.codec, goal.op, goal.residual)
        value = row["elements_per_second"] / 1e9 if goal.absolute else row["ratio_to_memcpy"]
        unit = " G elements/s" if goal.absolute else " of memcpy"
        memcpy = row["memcpy_elements_per_second"] / 1e9
        limit = f"memcpy {memcpy:.1f} G" if goal.absolute else f"{row['memory_limit_ratio']:.2f}"
        what = f"`{goal.codec}` {goal.op}" + (
            "" if goal.residual == "none" else f", {goal.residual} residual"
        )
        holds = "yes" if value >= goal.least else "**no**"
        lines.append(
            [what, goal.setup.replace("_", " "), f"{goal.least:g}{unit}", f"{value:.2f}", limit, holds]
        )
    if mxnet := results.get("mxnet"):
        ours = the(results["one_thread"], "2bit", "encode", "fp32")
        times = mxnet["quantize_seconds"] * ours["elements_per_second"] / mxnet["elements"]
        holds = "yes" if times >= MXNET_TIMES else "**no**"
        what = "`2bit` encode, fp32 residual"
        lines.append([what, "one thread", f"{MXNET_TIMES} x MXNet 1.9.1's", f"{times:.1f}", "", holds])
    return lines


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def fill(results: Mapping[str, Any]) -> None:
    """Puts the tables between README.md's marks."""
    titles = ["codec", *CODEC_TITLES, "bits", "relative error"]
    every = [
        [row["codec"], *codec_row(row), f"{row['bits_per_element']:.2f}", f"{row['relative_error']:.2g}"]
        for row in results["one_thread"]
    ]
    tables = {
        "goals": markdown(["what", "where", "at least", "measured", "limit", "holds"], goals(results)),
        "every operation": markdown(titles, every),
    }
    file = HERE / "README.md"
    page = file.read_text(encoding="utf-8")
    for name, table in tables.items():
        head, _, rest = page.partition(f"<!-- {name} -->\n")
        _, _, tail = rest.partition(f"<!-- end {name} -->")
        page = f"{head}<!-- {name} -->\n{table}\n<!-- end {name} -->{tail}"
    file.write_text(page, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setup", action="append", choices=list(SETUPS), help="repeatable; default: all")
    parser.add_argument("--mxnet", action="store_true", help="measure MXNet's quantizer too")
    parser.add_argument("--tables", action="store_true", help="measure nothing: fill README.md")
    given = parser.parse_args()
    try:
        for setup in () if given.tables else given.setup or SETUPS:
            measure(setup)
        if given.mxnet and not given.tables:
            measure_mxnet()
    except (PeerUnavailable, subprocess.CalledProcessError) as error:
        print(f"codec_speed: {error}", file=sys.stderr)
        return 1
    fill(read())
    return 0


if __name__ == "__main__":
    sys.exit(main())
