"""`gradwire plan`: compute timed with as many processes as there will be, its spread, and intervals of predictions."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gradwire.plan import calibration, layer_profile, planner, step_profile
from gradwire.plan.layer_profile import Layer, Profile
from gradwire.plan.step_profile import Step

COSTS = calibration.load()
LAYERS = (Layer("front", 100_000, 0.01, 0.02), Layer("back", 900_000, 0.03, 0.04))
STEADY = Profile("made up", "this test", 10, 100.0, LAYERS, (0.099, 0.101))


def question(profile: Profile, bandwidth: float = 1e8) -> planner.Question:
    return planner.Question(profile, 4, bandwidth, 50e-6, codecs=("none", "2bit"), placements=("peers",))


def steps_of(seconds: list[float]) -> list[Step]:
    steps, now = [], 0.0
    for each in [0.1, *seconds]:
        steps.append(Step({0: now, 1: now + 0.3 * each}, {1: now + 0.6 * each, 0: now + 0.9 * each}))
        now += each
    return steps


def test_a_profile_tells_how_steps_varied() -> None:
    steady = step_profile.profile_of(steps_of([0.1] * 29), {0: 5, 1: 7}, {0: "a", 1: "b"}, 4)
    assert steady.spread == (pytest.approx(0.1), pytest.approx(0.1))
    assert steady.warning is None
    hiccup = step_profile.profile_of(
        steps_of([0.1] * 14 + [5.0] + [0.1] * 14), {0: 5, 1: 7}, {0: "a", 1: "b"}, 4
    )
    assert hiccup.warning is None  # one of thirty
    wild = step_profile.profile_of(steps_of([0.09, 0.4] * 15), {0: 5, 1: 7}, {0: "a", 1: "b"}, 4)
    assert wild.spread is not None
    assert wild.warning is not None
    assert "measure again" in wild.warning


def test_the_warning_names_the_steps() -> None:
    text = replace(STEADY, spread=(0.09, 0.4)).warning
    assert text is not None
    assert text.startswith("steps varied from 90 ms to 400 ms (10th to 90th percentile): measure again")


def test_a_profile_keeps_its_spread_and_older_ones_have_none(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(layer_profile.text_of(STEADY))
    assert layer_profile.load(file) == STEADY
    older = json.loads(file.read_text())
    del older["spread"]
    file.write_text(json.dumps(older))
    assert layer_profile.load(file) == replace(STEADY, spread=None)
    for wrong in ([2, 1], [1], [0, 1], ["a", "b"], [1, None]):
        file.write_text(json.dumps(older | {"spread": wrong}))
        with pytest.raises(ValueError, match="expected two numbers of seconds above 0"):
            layer_profile.load(file)


def test_steps_of_a_scaled_profile_vary_as_before() -> None:
    """With its own --step-time, a profile's prediction is what it was without."""
    steps = tuple(0.09 + 0.02 * i / 26 for i in range(27))
    profile = replace(STEADY, spread=(0.092, 0.108), steps=steps)
    assert profile.scaled(1.0) == profile
    double = profile.scaled(2.0)
    assert double.spread == pytest.approx((0.184, 0.216))
    assert double.of_slowest(8).compute_seconds == pytest.approx(2 * profile.of_slowest(8).compute_seconds)
    layer_profile.validate(double)


def test_a_step_waits_for_the_slowest_worker() -> None:
    """For the step's median, against the mean of many drawn maxima."""
    steps = tuple(0.09 + 0.02 * i / 26 for i in range(27))
    profile = replace(STEADY, spread=(0.092, 0.108), steps=steps)
    assert profile.of_slowest(1) == profile
    assert STEADY.of_slowest(64) == STEADY  # nothing is known of its steps
    drawn = np.random.default_rng(0).choice(np.interp(np.linspace(0, 26, 1001), range(27), steps), (9999, 8))
    for workers in (2, 4, 8):
        slowest = profile.of_slowest(workers).compute_seconds
        assert slowest == pytest.approx(np.median(drawn[:, :workers].max(axis=1)), rel=2e-3)
    row = planner.answer(question(profile, 1e12), COSTS).best
    assert row.step_seconds > profile.of_slowest(4).compute_seconds > row.compute_seconds
    assert row.compute_seconds == pytest.approx(STEADY.compute_seconds)
    assert row.efficiency == pytest.approx(row.compute_seconds / row.step_seconds)


def test_a_profile_keeps_its_steps(tmp_path: Path) -> None:  # from last gradient to last gradient
    found = step_profile.profile_of(steps_of([0.3, 0.1, 0.2]), {0: 5, 1: 7}, {0: "a", 1: "b"}, 4)
    assert found.steps == (pytest.approx(0.12), pytest.approx(0.19), pytest.approx(0.28))
    file = tmp_path / "profile.json"
    file.write_text(layer_profile.text_of(found))
    assert layer_profile.load(file) == found
    for wrong in ([], [0], ["a"], [1, -1]):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"steps": wrong}))
        with pytest.raises(ValueError, match="expected numbers of seconds above 0"):
            layer_profile.load(file)


def test_each_prediction_has_an_interval_around_it() -> None:
    found = planner.answer(question(STEADY), COSTS)
    for row in found.predictions:
        assert row.step_interval is not None
        low, high = row.step_interval
        assert low <= row.step_seconds < high
        assert row.record()["step_seconds_interval"] == [low, high]
    rows = list(planner.sweep(question(STEADY), "workers", COSTS))
    assert all(row.step_interval is not None for row in rows)


def test_the_table_fits_a_terminal_and_says_the_interval_in_the_unit_of_the_step() -> None:
    command = [
        sys.executable,
        "-m",
        "gradwire.cli",
        "plan",
        "--model",
        "vgg16",
        "-n",
        "2",
        "--bandwidth",
        "1gbit",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = planner.answer(replace(question(layer_profile.find("vgg16"), 1e9), workers=2), COSTS)
    dense = next(row for row in found.predictions if str(row.variant) == "none")
    assert dense.step_interval is not None
    assert f"{dense.step_seconds:.2f} s  {dense.step_interval[0]:.2f}-" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if ": gradwire " not in line)


def test_the_interval_widens_with_the_spread_of_steps_and_holds_the_optimism_of_a_link_that_rules() -> None:
    steady, wild = (
        planner.answer(question(profile), COSTS).predictions
        for profile in (STEADY, replace(STEADY, spread=(0.08, 0.3)))
    )
    for one, other in zip(steady, wild, strict=True):
        assert one.step_interval is not None
        assert other.step_interval is not None
        assert other.step_interval[0] <= one.step_interval[0]
        assert other.step_interval[1] > one.step_interval[1]
    dense = next(row for row in steady if str(row.variant) == "none")
    assert dense.busiest_link > 0.8
    assert dense.step_interval is not None
    assert dense.step_interval[1] > 1.08 * dense.step_seconds


def test_the_interval_holds_a_codec_that_shares_cores_with_compute() -> None:
    """On a link that is fast enough the codec is hidden in the prediction, and takes its time where cores are few."""
    row = next(
        row for row in planner.answer(question(STEADY), COSTS).predictions if str(row.variant) == "2bit"
    )
    speed = COSTS.speed("2bit")
    codec = STEADY.elements * (speed.encode_with_residual_seconds + speed.decode_seconds)
    assert row.step_interval is not None
    assert row.step_interval[1] > row.step_seconds + codec


def test_a_codec_that_cannot_be_predicted_costs_itself_alone() -> None:
    costs = replace(COSTS, codecs=tuple(row for row in COSTS.codecs if row.codec != "int8"))
    asked = replace(question(STEADY), codecs=("none", "int8", "2bit"))
    found = planner.answer(asked, costs)
    assert {str(row.variant) for row in found.predictions} == {"none", "2bit"}
    assert "not predicted: int8 with 4 peers (plan: codec int8 has no calibration" in str(found.left_out)
    rows = list(planner.sweep(asked, "bandwidth", costs))
    assert {str(row.variant) for row in rows} == {"none", "2bit"}
    with pytest.raises(ValueError, match=r"nothing to try: not predicted: int8 .* has no calibration"):
        planner.answer(replace(asked, codecs=("int8",)), costs)


SCRIPT = """
import os, pathlib, sys, time
import torch
here = pathlib.Path(sys.argv[1])
(here / str(os.getpid())).write_text(os.environ.get("OMP_NUM_THREADS", "unset"))
while len(list(here.iterdir())) < 2:
    time.sleep(0.01)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if os.getpid() == max(int(path.name) for path in here.iterdir()):
    model.register_forward_hook(lambda *_: time.sleep(0.02))
    fail = len(sys.argv) > 2
    model.register_forward_hook(lambda *_: sys.exit("no memory") if fail else None)
while True:
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().sum().backward()
    optimizer.step()
"""


def test_compute_is_timed_with_as_many_processes_as_there_will_be_and_the_slowest_counts(
    tmp_path: Path,
) -> None:
    here, script = tmp_path / "here", tmp_path / "train.py"
    here.mkdir()
    script.write_text(SCRIPT)
    words = ["plan", "-n", "4", "--copies", "2", "--bandwidth", "1gbit", "--codec", "none", "--json", "-"]
    command = [sys.executable, "-m", "gradwire.cli", *words, "--profile", str(tmp_path / "profile.json")]
    done = subprocess.run(
        [*command, "--", sys.executable, str(script), str(here)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "30 steps, 2 copies at once" in done.stderr
    assert len(list(here.iterdir())) == 2
    assert "unset" not in {path.read_text() for path in here.iterdir()}
    assert layer_profile.load(tmp_path / "profile.json").compute_seconds >= 0.02
    assert all(row["step_seconds_interval"] for row in json.loads(done.stdout)["predictions"])
    assert not [path for path in here.iterdir() if Path("/proc", path.name).exists()]


def test_a_copy_that_fails_is_an_error_and_leaves_nothing_running(tmp_path: Path) -> None:
    here, script = tmp_path / "here", tmp_path / "train.py"
    here.mkdir()
    script.write_text(SCRIPT)
    with pytest.raises(RuntimeError, match=r"ended with exit code 1 before 30 steps .*: no memory"):
        step_profile.of_command([sys.executable, str(script), str(here), "fail"], 2)
    assert not [path for path in here.iterdir() if Path("/proc", path.name).exists()]
