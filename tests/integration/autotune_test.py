"""`gradwire tune` on real ranks: steps are timed, settings reach the job, it ends cleanly, and Ctrl-C ends it all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gradwire.ab.experiment import Conditions
from gradwire.autotune import search_space as boxes
from gradwire.autotune.launches import Job, Launcher, LaunchFailed
from gradwire.launch.child import Line
from integration.processes import clean_environment, descendants, is_alive, wait_until

TRAIN = """
import os, sys
import gradwire.torch
import torch
torch.set_num_threads(1)
print("credit", os.environ.get("GRADWIRE_CREDIT_BYTES"), "streams", os.environ.get("GRADWIRE_STREAMS"), flush=True)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if "alone" not in sys.argv:
    optimizer = gradwire.torch.DistributedOptimizer(optimizer, model.named_parameters(), compression="2bit")
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(8, 300)).square().mean().backward()
    optimizer.step()
print("trained to the end", flush=True)
"""
FOREVER = "1000000"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for variable in ("GRADWIRE_OVERLAP_STEP", "GRADWIRE_COMPRESSION"):
        monkeypatch.delenv(variable, raising=False)
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return str(path)


def launcher(script: str, workers: int, servers: int, lines: list[Line], *arguments: str) -> Launcher:
    job = Job((sys.executable, script, *arguments), workers, servers, None)
    return Launcher(job, boxes.of_this_machine(), Conditions(), lines.append, timeout=300)


@pytest.mark.parametrize(
    ("servers", "overlap_step", "store"), [(1, "off", "dist_sync"), (0, "on", "allreduce")]
)
def test_steps_are_timed_under_the_setting_and_the_job_ends_without_a_word(
    script: str, servers: int, overlap_step: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_OVERLAP_STEP", overlap_step)
    lines: list[Line] = []
    launched = launcher(script, 2, servers, lines, FOREVER)
    setting = launched.box.of({"credit_bytes": 2**20, "streams": 2})
    done = launched.launch(setting, steps=6)
    assert done.times is not None, [line.text for line in lines]
    assert len(done.times.seconds) == 6
    assert all(0 < seconds < done.wall_seconds for seconds in done.times.seconds)
    assert done.times.store == store
    assert str(done.times.compression).startswith("2bit:")
    # Nobody complains of a worker that is gone: they have left the job as after any training.
    said = sorted((line.role, line.text) for line in lines if "compressed: " not in line.text)
    assert said == [("worker", "credit 1048576 streams 2")] * 2


def test_a_job_that_ends_too_early_is_told(script: str) -> None:
    lines: list[Line] = []
    launched = launcher(script, 1, 0, lines, "7")
    with pytest.raises(
        LaunchFailed, match="ended before every worker had taken 11 steps of a PyTorch optimizer"
    ):
        launched.launch(launched.box.default, steps=6)
    assert [line.text for line in lines].count("trained to the end") == 1


def test_a_failing_job_fails_under_the_defaults_and_loses_under_a_setting(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import sys; print('the reason', file=sys.stderr); sys.exit(23)")
    launched = launcher(str(path), 1, 0, [])
    with pytest.raises(LaunchFailed, match=r"worker \d .* ended with exit code 23") as caught:
        launched.launch(launched.box.default, steps=6)
    assert caught.value.exit_code == 23
    assert any(line.endswith("the reason") for line in caught.value.last_lines)
    failed = launched.launch(launched.box.of({"streams": 2}), steps=6)
    assert failed.times is None
    assert "exit code 23" in str(failed.failure)


def tune(script: str, tmp_path: Path, *arguments: str, workers: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gradwire.cli", "tune", "-n", str(workers), "-s", "0", "--trials", "20"]
    command += ["--steps", "4", "--json", str(tmp_path / "tuned.json"), "--report", str(tmp_path / "rep[a]")]
    return subprocess.Popen(
        [*command, "--", sys.executable, script, *arguments],
        env=clean_environment(tmp_path, {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_ends_all_and_keeps_what_was_found(script: str, tmp_path: Path) -> None:
    process = tune(script, tmp_path, FOREVER)
    assert process.stdout is not None
    said = ""
    until = time.monotonic() + 120
    while "search defaults" not in said:  # the second launch has ended, and the third begins
        assert time.monotonic() < until
        line = process.stdout.readline()
        assert line, process.communicate()
        said += line
    wait_until(lambda: len(descendants(process.pid)) >= 3, 30, "the third launch's processes")
    started = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert errors == ""
    assert not [pid for pid in started if is_alive(pid)]
    assert "at most 20 launches of 4 steps, about" in said
    assert "beginning at the defaults: without --bandwidth the link is not known" in said
    record = json.loads((tmp_path / "tuned.json").read_text())
    assert record["interrupted"] is True
    assert record["settings"] == {}
    assert [trial["stage"] for trial in record["trials"]] == ["first", "search"]
    assert all(trial["step_seconds"] > 0 for trial in record["trials"])
    assert "Interrupted after 2 launches: the defaults stay" in rest
    page = tmp_path / "rep[a]/index.html"
    assert rest.endswith(f"report: {page}\n")
    assert "Interrupted after 2 launches" in page.read_text()


def test_a_script_that_sends_nothing_is_refused(script: str, tmp_path: Path) -> None:
    process = tune(script, tmp_path, FOREVER, "alone", workers=1)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 2
    assert errors.startswith("gradwire: tune: the command trains with no store of gradwire's")


@pytest.mark.soak
def test_a_setting_that_makes_steps_shorter_is_found_and_taken_by_run(script: str, tmp_path: Path) -> None:
    """A script that sleeps less with a credit of 16 MiB."""
    slow = "import os, time\nwait = 0.05 if os.environ['GRADWIRE_CREDIT_BYTES'] == '16777216' else 0.2\n"
    Path(script).write_text(
        slow + TRAIN.replace("    optimizer.step()", "    optimizer.step(); time.sleep(wait)")
    )
    out, errors = tune(script, tmp_path, FOREVER, workers=1).communicate(timeout=1200)
    assert errors == ""
    record = json.loads((tmp_path / "tuned.json").read_text())
    assert record["settings"] == {"credit_bytes": 16 * 2**20}
    assert record["speed"]["low"] > 2
    assert len(record["duels"][-1]["pairs"]) == 7
    assert len(record["trials"]) <= 1 + 20
    assert record["verdict"] in " ".join(out.split())
    assert "won" in (tmp_path / "rep[a]/index.html").read_text()
    run = [sys.executable, "-m", "gradwire.cli", "run", "-n", "1", "--settings", str(tmp_path / "tuned.json")]
    done = subprocess.run(
        [*run, sys.executable, script, "1"],
        env=clean_environment(tmp_path, {}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "[worker 0] credit 16777216 streams None" in done.stdout


LEAVES_FIRST = """
import pathlib, sys, time
import numpy as np
import gradwire as gw
from gradwire.autotune import step_times
kv = gw.kv.create("allreduce")
kv.init(["a", "b"], [np.ones(5000, np.float32)] * 2)
gone = pathlib.Path(sys.argv[1])
if kv.rank == 1:
    gone.touch()
    step_times._leave()
while not gone.exists():
    time.sleep(0.01)
time.sleep(2.5)
out = [np.zeros(5000, np.float32) for _ in range(2)]
kv.pull(["a", "b"], out=out)
print("pulled", float(out[0][0] + out[1][0]), flush=True)
kv.close()
"""


def test_a_timed_worker_serves_the_others_to_their_end(tmp_path: Path) -> None:
    """It ends without the exit's own calls, and may be the first."""
    job = tmp_path / "job.py"
    job.write_text(LEAVES_FIRST)
    words = ["run", "-n", "2", "-s", "0", sys.executable, str(job), str(tmp_path / "gone")]
    done = subprocess.run(
        [sys.executable, "-m", "gradwire.cli", *words], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "pulled 2.0" in done.stdout
