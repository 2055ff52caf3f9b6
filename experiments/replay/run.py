"""Runs rows of README.md in the scale model; writes results.json, results.csv and results.svg.

python experiments/replay/run.py                                 gradwire's rows, about a quarter of an hour
python experiments/replay/run.py --peer mxnet,openmpi,gloo       those of the peers too
python experiments/replay/run.py --row gradwire-2bit-8w2s-5gbit  any row; --list names those of the table
python experiments/replay/run.py --predict                       before any replay: writes predictions.json
python experiments/replay/run.py --tables                        replays nothing, prints README.md's tables
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gradwire.bench import peer_mxnet
from gradwire.bench.system import PeerUnavailable
from gradwire.launch.console import say
from gradwire.netlab import NetLabUnavailable
from gradwire.settings.units import parse_size
from gradwire.terminal.machine import machine_description

from replay import figures, launches, predict, profiles, rows
from replay.plan import CPU_LIMIT, Plan, ReplayFailed, default
from replay.rows import Row
from replay.scale import Scale

FOLDER = Path(__file__).resolve().parent
Key = tuple[str, tuple[str, ...], bool]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", action="append", metavar="NAME", help="repeatable; unset: gradwire's")
    parser.add_argument("--peer", default="", metavar="P,P", help="rows of mxnet, openmpi, gloo as well")
    parser.add_argument("--list", action="store_true", help="name the rows of the table and stop")
    parser.add_argument("--steps", type=int, help="timed steps of each mode; unset: 3, or 6 s of short ones")
    parser.add_argument("--rounds", type=int, default=Plan.rounds, help="timed rounds of 400 MB; 0: none")
    parser.add_argument("--scale", type=float, help="what divides bytes and rates; unset: each model's own")
    parser.add_argument("--partition", type=size, default=Scale(1).partition_bytes, metavar="SIZE")
    parser.add_argument("--credit", type=size, default=Scale(1).credit_bytes, metavar="SIZE")
    parser.add_argument("--queue", type=milliseconds, default=Plan.queue_seconds, metavar="MS")
    parser.add_argument("--in-order", action="store_true", help="a control: front layers get no priority")
    parser.add_argument("--profile", type=Path, help="a layer profile in place of the rows' models")
    parser.add_argument(
        "--cpu-limit", type=float, default=CPU_LIMIT, metavar="SHARE", help="1: refuse nothing"
    )
    parser.add_argument("--mxnet-python", type=Path, help="a Python that has MXNet 1.9.1; unset: one is made")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results are")
    parser.add_argument("--json", metavar="FILE", help="write this run's records; - is stdout")
    parser.add_argument("--predict", action="store_true", help="replay nothing, write what to expect")
    parser.add_argument("--tables", action="store_true", help="replay nothing, print the tables")
    given = parser.parse_args()
    if given.steps is not None and given.steps < 1:
        parser.error(f"--steps {given.steps}: expected 1 or more")
    if given.rounds < 0:
        parser.error(f"--rounds {given.rounds}: expected 0 or more")
    if not 0 < given.cpu_limit <= 1:
        parser.error(f"--cpu-limit {given.cpu_limit:g}: expected a share of all cores, above 0 to 1")
    return given


def size(text: str) -> int:
    """Raises: argparse.ArgumentTypeError: not a size, or less than 4KiB."""
    try:
        value = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value < 4096:
        raise argparse.ArgumentTypeError(f"{text!r} is too small: expected 4KiB or more, at full size")
    return value


def milliseconds(text: str) -> float:
    """Returns seconds. Raises: argparse.ArgumentTypeError: not a time that a queue may be long."""
    try:
        value = float(text) / 1000
    except ValueError:
        value = 0.0
    if not 0 < value <= 10:
        raise argparse.ArgumentTypeError(f"{text!r}: expected milliseconds, above 0 to 10000")
    return value


def wanted(given: argparse.Namespace) -> list[Row]:
    """Raises: ValueError: a row or peer that there is not."""
    peers = [name for name in given.peer.split(",") if name]
    for name in peers:
        if name not in rows.PEERS:
            raise ValueError(f"replay: --peer {name} is not valid: expected one of {', '.join(rows.PEERS)}")
    named = [rows.parse(name) for name in given.row or ()]
    return [*(named or rows.OURS), *(row for name in peers for row in rows.PEERS[name])]


def plan(row: Row, given: argparse.Namespace, mxnet_python: Path | None) -> Plan:
    """Raises: ValueError, OSError: the model's profile is not there or not valid."""
    path = given.profile or profiles.FOLDER / f"{row.model}.json"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in profiles.FOLDER.glob("*.json")))
        raise ValueError(f"replay: no profile {path.name} for {row.name}: expected a model of {known}")
    plain = default(row, profiles.load(path))
    return replace(
        plain,
        scale=Scale(given.scale or plain.scale.factor, given.partition, given.credit),
        in_order=given.in_order,
        queue_seconds=given.queue,
        steps=given.steps or plain.steps,
        rounds=given.rounds if plain.rounds else 0,
        cpu_limit=given.cpu_limit,
        mxnet_python=mxnet_python if row.system == "mxnet" else None,
    )


def measure(plans: Sequence[Plan], given: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """Runs the rows one after the other, and writes what is known after each.

    Returns: the records, and how many rows failed, which it says.
    """
    file = given.folder / "results.json"
    known = {key_of(record): record for record in json.loads(file.read_text())} if file.exists() else {}
    facts = {"machine": machine_description(), "command": " ".join(sys.argv[1:])}
    taken: list[dict[str, Any]] = []
    failed = 0
    for number, one in enumerate(plans, start=1):
        say(f"row {number} of {len(plans)}: {one.row.name}")
        began, load = time.monotonic(), os.getloadavg()[0]
        try:
            records = launches.run(one, say)
        except ReplayFailed as error:  # the other rows can still be measured
            say(str(error))
            failed += 1
            continue
        wall = {
            "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
            "wall_seconds": round(time.monotonic() - began, 1),
        }
        records = [record | wall | facts for record in records]
        for record in records:
            say(figures.line(record))
            if not keep(known, record):
                say("the record of before is kept: nothing of it was refused")
        taken += records
        given.folder.mkdir(parents=True, exist_ok=True)
        everything = sorted_records(known)
        file.write_text(json.dumps(everything, indent=1) + "\n")
        figures.write(given.folder, everything)
    return taken, failed


def key_of(record: Mapping[str, Any]) -> Key:
    """What a later run of the same replaces: a control never replaces the row of the table."""
    return record["row"], tuple(record["changes"]), record["overlap_step"]


def keep(known: dict[Key, dict[str, Any]], record: dict[str, Any]) -> bool:
    """Puts a record among those that are known; one that was refused does not replace one that was not.

    Returns: whether it was.
    """
    before = known.get(key_of(record))
    if before is not None and is_whole(before) and not is_whole(record):
        return False
    known[key_of(record)] = record
    return True


def is_whole(record: Mapping[str, Any]) -> bool:
    """Says whether nothing of a record was refused, its rounds included."""
    return not record["refused"] and not (record["round_all_seconds"] and record["round_seconds"] is None)


def sorted_records(known: Mapping[Key, dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns records by row: those of the table in its order, then others."""
    place = {name: number for number, name in enumerate(table())}
    return [known[key] for key in sorted(known, key=lambda key: (place.get(key[0], len(place)), key))]


def table() -> list[str]:
    """Names the rows of the table."""
    return [row.name for row in rows.TABLE]


def foresee(folder: Path) -> None:
    """Predicts all rows of the table, and prints and writes that. Raises: ValueError: there are replays already."""
    found = predict.of_rows(rows.TABLE)
    predict.write(folder, found)
    print(figures.predicted([one.record() for one in found]))


def main() -> int:
    given = arguments()
    if given.list:
        print("\n".join(table()))
        return 0
    if given.tables:
        records = json.loads((given.folder / "results.json").read_text())
        print(figures.markdown(records, predict.read(given.folder)))
        return 0
    try:
        if given.predict:
            foresee(given.folder)
            return 0
        chosen = wanted(given)
        needs_mxnet = any(row.system == "mxnet" for row in chosen)
        mxnet_python = peer_mxnet.find_python(given.mxnet_python, say) if needs_mxnet else None
        taken, failed = measure([plan(row, given, mxnet_python) for row in chosen], given)
    except (ValueError, OSError, NetLabUnavailable, PeerUnavailable) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130
    if given.json:
        text = json.dumps(taken, indent=2) + "\n"
        sys.stdout.write(text) if given.json == "-" else Path(given.json).write_text(text, encoding="utf-8")
    return 1 if failed or any(record["refused"] for record in taken) else 0


if __name__ == "__main__":
    sys.exit(main())
