"""Fuzzes what reads hostile bytes with libFuzzer under ASan and UBSan, from the corpora that are kept: the decoders of
every codec, and the parsers of frames and of the texts of control frames.

    .venv/bin/python tests/fuzz.py --replay                    the corpora alone, without clang, as `make test` does
    .venv/bin/python tests/fuzz.py                             2 000 executions of each
    .venv/bin/python tests/fuzz.py --runs 10000000             as `make soak` does
    .venv/bin/python tests/fuzz.py --codec topk --runs 1000000 --keep
    .venv/bin/python tests/fuzz.py --part roster --runs 1000000 --keep

Builds the fuzzers (preset `fuzz`, needs clang); --replay takes programs of the test tree. What a fuzzer printed lies in
build/fuzz/logs; an input that fails is kept in build/fuzz/findings, and is run again by:
build/fuzz/gradwire_decoder_fuzzer --codec=SPEC FILE (gradwire_frame_fuzzer --part=PART FILE).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
LONGEST_INPUT = 700
"""Bytes: more than 600 elements take in most codecs; whole codec units have their own tests."""


@dataclass(frozen=True)
class Fuzzer:
    """Programs that fuzz, or replay, one of several things, as their option says, and list them where none is given."""

    name: str
    option: str
    corpus: Path

    @property
    def program(self) -> Path:
        return BUILD / f"gradwire_{self.name}_fuzzer"

    def replay(self, tree: Path) -> Path:
        return tree / "tests" / f"gradwire_{self.name}_replay"


@dataclass(frozen=True)
class Target:
    """One of the things that a fuzzer fuzzes."""

    fuzzer: Fuzzer
    spec: str

    @property
    def word(self) -> str:
        return f"--{self.fuzzer.option}={self.spec}"

    @property
    def command(self) -> list[str]:
        return [str(self.fuzzer.program), self.word]

    @property
    def name(self) -> str:
        return re.sub(r"[^\w.]+", "_", self.spec)

    @property
    def kept(self) -> Path:
        return self.fuzzer.corpus / f"{self.name}.zip"


DECODERS = Fuzzer("decoder", "codec", ROOT / "tests" / "compress" / "corpus")
FRAMES = Fuzzer("frame", "part", ROOT / "tests" / "transport" / "corpus")


@dataclass(frozen=True)
class Report:
    spec: str
    executions: int
    edges: int
    seconds: float
    finding: str


def build() -> None:
    if not (BUILD / "build.ninja").exists():
        subprocess.run(["cmake", "--preset", "fuzz"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "--preset", "fuzz"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def targets(fuzzer: Fuzzer, program: Path) -> list[Target]:
    """All that one of a fuzzer's programs lists: every codec, and other forms of some."""
    listing = subprocess.run([program], capture_output=True, text=True, timeout=60).stderr
    specs = re.findall(rf"^  --{fuzzer.option}=(\S+)$", listing, re.MULTILINE)
    assert specs, f"{program} lists nothing: {listing}"
    return [Target(fuzzer, spec) for spec in specs]


def unpack(target: Target) -> Path:
    """Adds the kept corpus to what was found here before; returns the folder of both."""
    folder = BUILD / "corpus" / target.name
    folder.mkdir(parents=True, exist_ok=True)
    if target.kept.exists():
        with zipfile.ZipFile(target.kept) as archive:
            archive.extractall(folder)
    return folder


def fuzz(target: Target, runs: int, seed: int) -> Report:
    """Runs the fuzzer from the target's corpus, to which it adds what it finds."""
    logs, findings = BUILD / "logs", BUILD / "findings"
    for folder in (logs, findings):
        folder.mkdir(parents=True, exist_ok=True)
    command = [*target.command, f"-runs={runs}", f"-seed={seed}", f"-max_len={LONGEST_INPUT}"]
    command += ["-timeout=20", "-print_final_stats=1", f"-artifact_prefix={findings}/", str(unpack(target))]
    began = time.monotonic()
    log = logs / f"{target.name}.log"
    with log.open("w") as output:
        status = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode
    text = log.read_text(errors="replace")
    executions = re.findall(r"stat::number_of_executed_units: (\d+)", text)
    edges = re.findall(r"cov: (\d+)", text)
    return Report(
        target.spec,
        int(executions[-1]) if executions else 0,
        int(edges[-1]) if edges else 0,
        time.monotonic() - began,
        "" if status == 0 else f"exit status {status}, see {log.relative_to(ROOT)}",
    )


def replay(target: Target, tree: Path) -> str | None:
    """Runs the kept corpus through a program of a build tree; returns what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(target.kept) as archive:
            archive.extractall(folder)
        command = [str(target.fuzzer.replay(tree)), target.word, folder]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        expected = f"replayed {len(list(Path(folder).iterdir()))} inputs"
    if done.returncode == 0 and done.stdout.splitlines()[-1] == expected:
        return None
    return f"exit status {done.returncode}: {' | '.join(done.stdout.splitlines()[-4:])}"


def replay_all(tree: Path, jobs: int) -> int:
    """Replays every corpus; returns the exit status."""
    found = [target for fuzzer in (DECODERS, FRAMES) for target in targets(fuzzer, fuzzer.replay(tree))]
    wanted = [target for target in found if target.kept.exists()]
    for target in found:
        if target not in wanted:
            print(f"{target.spec}: no corpus; `tests/fuzz.py --keep` makes one")
    with ThreadPoolExecutor(jobs) as pool:
        findings = list(pool.map(lambda target: replay(target, tree), wanted))
    for target, finding in zip(wanted, findings, strict=True):
        if finding is not None:
            print(f"{target.spec}: {finding}")
    print(f"{len(wanted)} corpora replayed, {sum(finding is not None for finding in findings)} with findings")
    return int(any(findings))


def keep(target: Target) -> None:
    """Makes the kept corpus the smallest that covers what the old one and the new finds do."""
    target.kept.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as merged:
        subprocess.run(
            [*target.command, "-merge=1", merged, unpack(target)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with zipfile.ZipFile(target.kept, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(merged).iterdir()):
                archive.writestr(
                    zipfile.ZipInfo(path.name), path.read_bytes()
                )  # no time: equal inputs, equal file


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000, help="executions of each")
    parser.add_argument(
        "--codec",
        action="append",
        help="such as 2bit:threshold=auto; repeatable; default: all, unless --part",
    )
    parser.add_argument(
        "--part", action="append", help="of frames, such as header; repeatable; default: all, unless --codec"
    )
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="fuzzers at a time")
    parser.add_argument("--keep", action="store_true", help="merge what was found into the kept corpus")
    parser.add_argument(
        "--replay", action="store_true", help="run the kept corpora through a build tree's programs"
    )
    parser.add_argument(
        "--tree", type=Path, default=ROOT / "build" / "release", help="of --replay (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.replay:
        return replay_all(options.tree, options.jobs)
    build()
    wanted = [Target(DECODERS, spec) for spec in options.codec or []]
    wanted += [Target(FRAMES, part) for part in options.part or []]
    wanted = wanted or targets(DECODERS, DECODERS.program) + targets(FRAMES, FRAMES.program)
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for report in pool.map(lambda target: fuzz(target, options.runs, options.seed), wanted):
            print(
                f"{report.spec:34} {report.executions:10} executions  {report.edges:5} edges  "
                f"{report.seconds:7.1f} s  {report.finding or 'no finding'}",
                flush=True,
            )
            failed += report.finding != ""
    if options.keep:
        for target in wanted:
            keep(target)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
