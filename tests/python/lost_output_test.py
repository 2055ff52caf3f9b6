"""Files are written where nobody reads what a command shows: `gradwire bench ps --json FILE | head`, or a full disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gradwire.timeline.merge import merge
from gradwire.timeline.trace_event import write_trace
from python.timeline_test import two_workers

OUTPUTS = ["nobody reads", "/dev/full"]


@contextmanager
def opened(output: str) -> Iterator[int]:
    """Opens what cannot be written to: a pipe whose reader has gone, or a full disk."""
    if output == "nobody reads":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(output, os.O_WRONLY)
    try:
        yield writer
    finally:
        os.close(writer)


def gradwire(output: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradwire.cli", *words]
    with opened(output) as stdout:
        done = subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=folder, timeout=300
        )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(
    "command",
    [
        "timeline out.json --json FILE.json --svg FILE.svg --out FILE.trace",
        "plan --model vgg16 --codec 2bit --sweep bandwidth --json FILE.json --svg FILE.svg",
        "doctor --json FILE.json",
        "codecs --json FILE.json",
        "bench ps -n 1 --bytes 4KB --repeat 1 --json FILE.json",
        "bench allreduce -n 1 --bytes 4KB --repeat 1 --launches 1 --json FILE.json --report FILE",
    ],
    ids=lambda command: " ".join(command.split()[:2]),
)
def test_files_are_written_before_anything_is_shown(command: str, output: str, tmp_path: Path) -> None:
    write_trace(merge(two_workers()), tmp_path / "out.json")
    words = command.split()
    done = gradwire(output, tmp_path, *words)
    assert done.returncode == 1
    assert ("the output of this command cannot be written" in done.stderr) == (output == "/dev/full")
    for name in (word for word in words if word.startswith("FILE")):
        assert (tmp_path / name).exists()
    assert json.loads((tmp_path / "FILE.json").read_text())


@pytest.mark.parametrize("output", OUTPUTS)
def test_an_experiment_goes_on(output: str, tmp_path: Path) -> None:
    """It had ended with its first line."""
    script = tmp_path / "train.py"
    script.write_text(
        "import gradwire.result\ngradwire.result.write(loss_per_epoch=[2.0, 1.0], took_compression=True)\n"
    )
    words = ["ab", "-n", "1", "-s", "0", "--arm", "none", "--arm", "int8", "--seeds", "2"]
    words += ["--report", "report", "--json", "record.json", sys.executable, str(script)]
    done = gradwire(output, tmp_path, *words)
    assert done.returncode == 0
    note = "gradwire: the output cannot be written (No space left on device): the work goes on, and shows nothing"
    assert done.stderr == ("" if output == "nobody reads" else f"{note} further\n")
    assert json.loads((tmp_path / "record.json").read_text())["runs"] == 4
    assert (tmp_path / "report/index.html").exists()


@pytest.mark.parametrize("output", OUTPUTS)
def test_codecs_are_measured_for_the_record(output: str, tmp_path: Path) -> None:
    words = ["bench", "codec", "--elements", "4096", "--repeat", "1", "--codec", "none", "--codec", "2bit"]
    done = gradwire(output, tmp_path, *words, "--json", "record.json")
    assert done.returncode == 0
    assert {row["codec"] for row in json.loads((tmp_path / "record.json").read_text())} == {"none", "2bit"}
    done = gradwire(output, tmp_path, *words)
    assert done.returncode == 1, "nobody is to have the results"
