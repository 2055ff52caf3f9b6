"""Fuzzes the decoders of every codec with libFuzzer under ASan and UBSan, from the corpus that is kept.

    .venv/bin/python tests/fuzz.py                             2 000 executions a codec, as `make test` does
    .venv/bin/python tests/fuzz.py --runs 10000000             as `make soak` does
    .venv/bin/python tests/fuzz.py --codec topk --runs 1000000 --keep

Builds the fuzzer (preset `fuzz`, needs clang). What it printed lies in build/fuzz/logs; an input that fails is kept
in build/fuzz/findings, and is run again by: build/fuzz/gradwire_decoder_fuzzer --codec=SPEC FILE
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
CORPUS = ROOT / "tests" / "compress" / "corpus"
FUZZER = BUILD / "gradwire_decoder_fuzzer"
LONGEST_INPUT = 700
"""Bytes: more than 600 elements take in most codecs; whole codec units have their own tests."""


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


def specs() -> list[str]:
    """Every codec, and other forms of some, as the fuzzer itself lists them."""
    listing = subprocess.run([FUZZER], capture_output=True, text=True, timeout=60).stderr
    return re.findall(r"^  --codec=(\S+)$", listing, re.MULTILINE)


def name_of(spec: str) -> str:
    return re.sub(r"[^\w.]+", "_", spec)


def unpack(spec: str) -> Path:
    """Adds the codec's kept corpus to what was found here before; returns the folder of both."""
    folder = BUILD / "corpus" / name_of(spec)
    folder.mkdir(parents=True, exist_ok=True)
    kept = CORPUS / f"{name_of(spec)}.zip"
    if kept.exists():
        with zipfile.ZipFile(kept) as archive:
            archive.extractall(folder)
    return folder


def fuzz(spec: str, runs: int, seed: int) -> Report:
    """Runs the fuzzer from the codec's corpus, to which it adds what it finds."""
    logs, findings = BUILD / "logs", BUILD / "findings"
    for folder in (logs, findings):
        folder.mkdir(parents=True, exist_ok=True)
    command = [str(FUZZER), f"--codec={spec}", f"-runs={runs}", f"-seed={seed}", f"-max_len={LONGEST_INPUT}"]
    command += ["-timeout=20", "-print_final_stats=1", f"-artifact_prefix={findings}/", str(unpack(spec))]
    began = time.monotonic()
    log = logs / f"{name_of(spec)}.log"
    with log.open("w") as output:
        status = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode
    text = log.read_text(errors="replace")
    executions = re.findall(r"stat::number_of_executed_units: (\d+)", text)
    edges = re.findall(r"cov: (\d+)", text)
    return Report(
        spec,
        int(executions[-1]) if executions else 0,
        int(edges[-1]) if edges else 0,
        time.monotonic() - began,
        "" if status == 0 else f"exit status {status}, see {log.relative_to(ROOT)}",
    )


def keep(spec: str) -> None:
    """Makes the kept corpus the smallest that covers what the old one and the new finds do."""
    with tempfile.TemporaryDirectory() as merged:
        subprocess.run(
            [FUZZER, f"--codec={spec}", "-merge=1", merged, unpack(spec)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with zipfile.ZipFile(CORPUS / f"{name_of(spec)}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(merged).iterdir()):
                archive.writestr(
                    zipfile.ZipInfo(path.name), path.read_bytes()
                )  # no time: equal inputs, equal file


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000, help="executions a codec")
    parser.add_argument(
        "--codec", action="append", help="such as 2bit:threshold=auto; repeatable; default: all"
    )
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="codecs at a time")
    parser.add_argument("--keep", action="store_true", help="merge what was found into the kept corpus")
    options = parser.parse_args(arguments)
    build()
    wanted = options.codec or specs()
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for report in pool.map(lambda spec: fuzz(spec, options.runs, options.seed), wanted):
            print(
                f"{report.spec:34} {report.executions:10} executions  {report.edges:5} edges  "
                f"{report.seconds:7.1f} s  {report.finding or 'no finding'}",
                flush=True,
            )
            failed += report.finding != ""
    if options.keep:
        for spec in wanted:
            keep(spec)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
