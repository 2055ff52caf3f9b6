"""A/B experiments: the statistics against worked values, and whole experiments on a tiny training script."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gradwire import result
from gradwire.ab import experiment as ab
from gradwire.ab import summary
from gradwire.ab.experiment import Plan, Run
from gradwire.launch.child import Line
from gradwire.report import paired_statistics
from gradwire.result import RunProgress, RunResult
from gradwire.stores import codec_override

ROOT = Path(__file__).resolve().parents[2]


# Statistics


# Two-sided 95 % points of Student's t as printed tables have them.
@pytest.mark.parametrize(
    ("degrees", "t"),
    [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (5, 2.571),
        (9, 2.262),
        (10, 2.228),
        (29, 2.045),
        (120, 1.980),
    ],
)
def test_t_quantile_equals_the_tables(degrees: int, t: float) -> None:
    assert paired_statistics.t_quantile(degrees) == pytest.approx(t, abs=5e-4)


def test_t_probability_equals_the_integral_of_its_density() -> None:
    for degrees in (1, 2, 3, 4, 7, 12):
        x = np.linspace(0.0, 2.5, 200_001)
        gammas = math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2) / math.sqrt(degrees * math.pi)
        density = gammas * (1 + x**2 / degrees) ** (-(degrees + 1) / 2)
        expected = 2 * np.trapezoid(density, x)
        assert paired_statistics.t_probability(2.5, degrees) == pytest.approx(expected, abs=1e-9)


def test_paired_difference_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, standard deviation 1, half width 4.3027 / sqrt(3).
    interval = paired_statistics.paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert interval.mean == 2.0
    assert (interval.low, interval.high) == (
        pytest.approx(-0.48414, abs=1e-4),
        pytest.approx(4.48414, abs=1e-4),
    )


def test_paired_difference_equals_numpy() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=8), rng.normal(size=8)
    d = a - b
    half = 2.36462 * d.std(ddof=1) / np.sqrt(8)  # 7 degrees of freedom
    interval = paired_statistics.paired_difference(list(a), list(b))
    assert interval.low == pytest.approx(d.mean() - half, abs=1e-5)
    assert interval.high == pytest.approx(d.mean() + half, abs=1e-5)


def test_ratio_is_geometric() -> None:
    interval = paired_statistics.paired_ratio([2.0, 8.0], [1.0, 1.0])
    assert interval.mean == pytest.approx(4.0)
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low * interval.high == pytest.approx(16.0)


def test_one_value_has_no_interval() -> None:
    interval = paired_statistics.mean_interval([5.0])
    assert (interval.mean, interval.low, interval.high, interval.width) == (5.0, None, None, math.inf)


# What runs add up to


def run(
    arm: str,
    seed: int,
    per_epoch: list[float],
    *,
    speed: float = 100.0,
    metric: str = "accuracy",
    step: float = 1e6,
) -> Run:
    seconds = tuple(10.0 * (index + 1) for index in range(len(per_epoch)))
    record = RunResult(
        metric,  # type: ignore[arg-type]
        tuple(per_epoch),
        seconds,
        images_per_second=speed,
        bytes_per_step=step,
        steps=50,
        codec_seconds=2.0,
    )
    return Run(arm, seed, record, wall_seconds=99.0)


def test_summary_by_hand() -> None:
    runs = [
        run("none", 0, [0.5, 0.80], speed=100),
        run("2bit", 0, [0.5, 0.79], speed=400, step=1e5),
        run("none", 1, [0.5, 0.82], speed=100),
        run("2bit", 1, [0.5, 0.81], speed=400, step=1e5),
    ]
    found = summary.summarise(runs, ["none", "2bit"], 0.8, "100mbit")
    none, two_bit = found.arms
    assert none.final == pytest.approx(0.81)
    assert none.final_std == pytest.approx(math.sqrt(2) / 100)
    assert two_bit.difference is not None
    assert two_bit.difference.mean == pytest.approx(-0.01)
    assert two_bit.difference.width == pytest.approx(0.0, abs=1e-12)
    assert two_bit.speed_ratio is not None
    assert two_bit.speed_ratio.mean == pytest.approx(4.0)
    assert (found.target, found.target_reason) == (0.8, "given by --target")
    assert none.seconds_to_target == pytest.approx((20.0 + (10 + 10 * 0.30 / 0.32)) / 2)
    assert two_bit.seconds_to_target is None
    assert two_bit.sooner is None
    record = found.record()
    assert [arm["arm"] for arm in record["arms"]] == ["none", "2bit"]
    assert [arm["name"] for arm in record["arms"]] == ["no compression", "2bit"]
    assert record["arms"][1]["bytes_per_step"] == 1e5
    assert record["arms"][1]["times_fewer_bytes"] == pytest.approx(10)
    assert record["arms"][1]["per_seed"][1]["accuracy"] == 0.81
    assert json.loads(json.dumps(record, allow_nan=False))


def test_seconds_to_target_lie_between_epochs_on_a_line() -> None:
    assert summary.seconds_to(run("a", 0, [0.2, 0.6, 0.7]), 0.4) == pytest.approx(15.0)
    assert summary.seconds_to(run("a", 0, [0.5]), 0.4) == 10.0
    assert summary.seconds_to(run("a", 0, [0.2, 0.3]), 0.4) is None
    assert summary.seconds_to(run("a", 0, [2.0, 1.0], metric="loss"), 1.5) == pytest.approx(15.0)


def test_order_is_seed_major_and_rotates() -> None:
    plan = Plan(("true",), ("a", "b", "c"), (0, 1, 2, 3), 1, 0, None, Path())
    words = "".join(arm for arm, _ in plan.order())
    assert words == "abc" + "bca" + "cab" + "abc"
    assert [seed for _, seed in plan.order()] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


# Records


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ([], "the record is list, expected an object"),
        ({"steps": 3}, "the record has steps, expected accuracy_per_epoch or loss_per_epoch"),
        ({"accuracy": 87.3}, "accuracy 87.3 is outside 0 to 1: write a fraction"),
        ({"accuracy_per_epoch": [0.5, math.nan]}, "accuracy_per_epoch is .*expected finite numbers"),
        ({"loss": 1.0, "images_per_second": math.inf}, "images_per_second is inf, expected finite numbers"),
        ({"loss": 1.0, "images_per_second": -1}, "images_per_second is -1, expected 0 or more"),
        ({"loss": 1.0, "seconds_per_epoch": [0.0]}, "expected times above 0"),
        ({"accuracy": "0.9"}, "accuracy is '0.9', expected finite numbers"),
        (
            {"accuracy_per_epoch": [0.1, 0.2], "seconds_per_epoch": [1.0]},
            "seconds_per_epoch has 1 values for 2",
        ),
        ({"accuracy_per_epoch": [0.1, 0.2], "seconds_per_epoch": [2.0, 1.0]}, "or falls"),
    ],
)
def test_bad_records_are_refused(record: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        result.parse(record)


def test_a_record_of_one_number_is_enough() -> None:
    found = result.parse({"accuracy": 0.5})
    assert (found.metric, found.per_epoch, found.images_per_second) == ("accuracy", (0.5,), None)


def test_only_rank_0_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    monkeypatch.setenv("GRADWIRE_NUM_WORKERS", "2")
    monkeypatch.setenv("GRADWIRE_RANK", "0")
    result.write(accuracy=0.5)  # outside an experiment: nothing to write to
    monkeypatch.setenv("GRADWIRE_RESULT", str(path))
    monkeypatch.setenv("GRADWIRE_RANK", "1")
    result.write(accuracy=0.5)
    assert not path.exists()
    monkeypatch.setenv("GRADWIRE_RANK", "0")
    result.write(accuracy=0.75, weights_sha256="ab")
    assert (result.read(path).final, result.read(path).weights_sha256) == (0.75, "ab")


def test_a_record_says_whether_a_store_took_the_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    monkeypatch.setenv("GRADWIRE_RESULT", str(path))

    def took() -> bool | None:
        result.write(accuracy=0.5)
        return result.read(path).took_compression

    for name in ("_has_store", "_is_taken"):
        monkeypatch.setattr(codec_override, name, False)
    assert took() is None, "it was not set"
    monkeypatch.setenv("GRADWIRE_COMPRESSION", "2bit")
    assert took() is None, "the script has no store"
    codec_override.offer()
    assert took() is False
    assert codec_override.taken() == "2bit"
    assert took() is True


PLAIN_STORE = """
import numpy as np
import gradwire as gw
import gradwire.result
kv = gw.kv.create("allreduce")
{told}
kv.init("w", np.zeros(100, np.float32))
kv.pushpull("w", np.ones(100, np.float32), out=np.zeros(100, np.float32))
gradwire.result.write(loss_per_epoch=[1.0, 0.5])
kv.close()
"""


@pytest.mark.parametrize("told", ["", "kv.set_gradient_compression('none')"])
def test_an_arm_that_no_store_took_has_failed(tmp_path: Path, told: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(PLAIN_STORE.format(told=told))
    plan = Plan((sys.executable, str(path)), ("none", "2bit"), (0,), 2, 0, None, tmp_path / "report")
    none, two_bit = ab.run_plan(plan, ab.Conditions(), Recorder())
    assert isinstance(none, Run)
    log = (tmp_path / "report/logs/2bit-seed0.log").read_text()
    words = "GRADWIRE_COMPRESSION=2bit is set, and nothing was compressed by it"
    if told:
        assert isinstance(two_bit, Run)
        assert words not in log
    else:
        assert isinstance(two_bit, ab.RunFailed)
        assert "no store of the command used the codec of GRADWIRE_COMPRESSION: call store.set_grad" in str(
            two_bit
        )
        assert log.count(words) == 1


NO_STORE = "import gradwire.result\ngradwire.result.write(loss_per_epoch=[1.0, 0.5]{more})\n"


@pytest.mark.parametrize("more", ["", ", took_compression=True"])
def test_an_arm_of_a_script_that_does_not_use_gradwire_has_failed(tmp_path: Path, more: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(NO_STORE.format(more=more))
    plan = Plan((sys.executable, str(path)), ("none", "int8"), (0,), 1, 0, None, tmp_path / "report")
    none, int8 = ab.run_plan(plan, ab.Conditions(), Recorder())
    assert isinstance(none, Run)
    assert isinstance(int8, Run) if more else "register gradwire's DDP hook" in str(int8)


def test_a_run_of_no_epoch_may_have_gone_on_from_another_ones_snapshot() -> None:
    with pytest.raises(ValueError, match=r"loss_per_epoch is empty: .* resume from a snapshot"):
        result.parse({"loss_per_epoch": []})


# Whole experiments

TRAIN = """
import json, os, sys, time
arm, seed = os.environ["GRADWIRE_COMPRESSION"], int(os.environ["GRADWIRE_SEED"])
rank = os.environ["GRADWIRE_RANK"]
print("epoch 0", arm, seed, rank, flush=True)
dense = arm == "none"
{body}
record = {{
    "accuracy_per_epoch": [0.5, 0.9 - 0.001 * seed - (0 if dense else 0.002)],
    "seconds_per_epoch": [1.0, 2.0] if dense else [0.25, 0.5],
    "images_per_second": 1000 if dense else 4000, "bytes_per_step": 1e6 if dense else 8e4, "steps": 10,
    "codec_seconds": 0.0 if dense else 0.2,
}}
json.dump(record, open(os.environ["GRADWIRE_RESULT"], "w"))
"""


def script(tmp_path: Path, body: str = "") -> list[str]:
    path = tmp_path / "train.py"
    path.write_text(TRAIN.format(body=body))
    return [sys.executable, str(path)]


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.lines: list[Line] = []
        self.moves: list[RunProgress] = []

    def started(self, arm: str, seed: int) -> None:
        self.events.append((arm, seed))

    def line(self, line: Line) -> None:
        self.lines.append(line)

    def moved(self, progress: RunProgress) -> None:
        self.moves.append(progress)

    def finished(self, run: Run) -> None:
        assert (run.arm, run.seed) == self.events[-1]

    def failed(self, failure: ab.RunFailed) -> None:
        assert (failure.arm, failure.seed) == self.events[-1]


def make_plan(tmp_path: Path, body: str = "", seeds: int = 2) -> Plan:
    return Plan(
        tuple(script(tmp_path, body)), ("none", "2bit"), tuple(range(seeds)), 2, 0, None, tmp_path / "report"
    )


def test_an_experiment_from_end_to_end(tmp_path: Path) -> None:
    plan, recorder = make_plan(tmp_path), Recorder()
    with ab.network(plan) as conditions:
        runs = list(ab.run_plan(plan, conditions, recorder))
    assert conditions.link == "unshaped"
    assert recorder.events == [("none", 0), ("2bit", 0), ("2bit", 1), ("none", 1)]
    found = summary.summarise(runs, plan.arms, None, conditions.link)
    assert found.arms[1].difference is not None
    assert found.arms[1].difference.mean == pytest.approx(-0.002)
    assert found.arms[1].speed_ratio is not None
    assert found.arms[1].speed_ratio.mean == pytest.approx(4.0)
    log = (tmp_path / "report/logs/2bit-seed1.log").read_text()
    assert sorted(log.splitlines()) == ["[worker 0] epoch 0 2bit 1 0", "[worker 1] epoch 0 2bit 1 1"]


def test_a_failing_run_keeps_its_last_lines_and_costs_itself_alone(tmp_path: Path) -> None:
    body = "if arm == '2bit' and rank == '1': print('oh no', file=sys.stderr); sys.exit(23)"
    plan, recorder = make_plan(tmp_path, body), Recorder()
    ended = list(ab.run_plan(plan, ab.Conditions(), recorder))
    assert recorder.events == [("none", 0), ("2bit", 0), ("2bit", 1), ("none", 1)]
    good = [run for run in ended if isinstance(run, Run)]
    failures = [run for run in ended if isinstance(run, ab.RunFailed)]
    assert [(run.arm, run.seed) for run in good] == [("none", 0), ("none", 1)]
    assert [(run.arm, run.seed, run.exit_code) for run in failures] == [("2bit", 0, 23), ("2bit", 1, 23)]
    assert re.match(r"2bit, seed 0: worker 1 .* ended with exit code 23", str(failures[0]))
    assert failures[0].last_lines == ("epoch 0 2bit 0 1", "oh no")


def test_a_command_that_fails_under_every_arm_is_not_tried_with_another_seed(tmp_path: Path) -> None:
    recorder = Recorder()
    [*_] = ab.run_plan(make_plan(tmp_path, "sys.exit(3)"), ab.Conditions(), recorder)
    assert recorder.events == [("none", 0), ("2bit", 0)]


def test_a_command_that_writes_no_result_is_run_once(tmp_path: Path) -> None:
    """Every arm would lack it, too, each after a whole run."""
    recorder = Recorder()
    [failure] = ab.run_plan(make_plan(tmp_path, "sys.exit(0)"), ab.Conditions(), recorder)
    assert re.search(r"wrote nothing to GRADWIRE_RESULT: call .*accuracy_.* or loss_per_epoch", str(failure))
    assert recorder.events == [("none", 0)]


def test_a_script_that_mentions_no_result_is_told_so_before_the_first_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('no result')\n")
    words = ["ab", "-n", "1", "--arm", "none", "--report", str(tmp_path / "report"), "--"]
    done = subprocess.run(
        [sys.executable, "-m", "gradwire.cli", *words, sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    shown = "".join(done.stdout.split())  # lines break anywhere in a long path
    assert "train.pydoesnotmentiongradwire.result." in shown.split("Norunhasended")[0]


def test_a_program_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    plan = Plan(("/nowhere/train",), ("none",), (0, 1), 1, 0, None, tmp_path / "report")
    [failure] = ab.run_plan(plan, ab.Conditions(), Recorder())
    assert "/nowhere/train" in str(failure)


@pytest.mark.parametrize(
    ("arms", "seeds", "bandwidth", "text"),
    [
        ((), 1, None, "ab: no --arm"),
        (("a", "a"), 1, None, "ab: --arm a is given twice"),
        (("a",), 0, None, "expected at least 1"),
        (("a",), 1, "fast", "'fast' is not a rate"),
    ],
)
def test_misuse(arms: tuple[str, ...], seeds: int, bandwidth: str | None, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Plan(("true",), arms, tuple(range(seeds)), 1, 0, bandwidth, Path())


def test_misspelt_arm_is_found_before_any_run() -> None:
    pytest.importorskip("gradwire._core")
    ab.check_arms(["none", "2bit:threshold=auto,reply=2bit"])
    with pytest.raises(ValueError, match=r"ab: --arm 2bti: .*2bit"):
        ab.check_arms(["none", "2bti"])


def start(tmp_path: Path, *arguments: str, body: str = "") -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "gradwire.cli",
        "ab",
        "-n",
        "2",
        "-s",
        "0",
        "--report",
        str(tmp_path / "report"),
    ]
    command += [*arguments, "--arm", "none", "--arm", "2bit:threshold=auto", "--", *script(tmp_path, body)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_command_writes_table_page_and_record(tmp_path: Path) -> None:
    out, err = start(tmp_path, "--seeds", "2", "--json", str(tmp_path / "r.json")).communicate(timeout=300)
    assert err == ""
    assert "final accuracy" in out
    assert "run 3 seeds or more" in " ".join(out.split())
    assert str(tmp_path / "report/index.html") in out
    record = json.loads((tmp_path / "r.json").read_text())
    fields = {"arm", "accuracy", "accuracy_std", "images_per_second", "bytes_per_step", "seconds_to_target"}
    assert fields | {"codec_seconds"} <= set(record["arms"][0])
    assert {"target", "link", "verdict"} <= set(record)
    assert record["arms"][1]["arm"] == "2bit:threshold=auto"
    page = (tmp_path / "report/index.html").read_text()
    assert record["headline"] in page.replace("&nbsp;", " ")
    assert not re.search(r"https?:|src=|@import|url\(", page)


def test_record_on_stdout_is_alone_there(tmp_path: Path) -> None:
    out, err = start(tmp_path, "--seeds", "1", "--json", "-").communicate(timeout=300)
    assert json.loads(out)["arms"][0]["accuracy_std"] is None
    assert "final accuracy" in err


def test_command_returns_the_failing_code(tmp_path: Path) -> None:
    process = start(tmp_path, body="print('the reason', file=sys.stderr); sys.exit(17)")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 17
    assert "| the reason" in out
    assert err.startswith("gradwire: ab: none, seed 0: worker ")
    assert "Traceback" not in err
    assert "the command itself is at fault)" in err
    page = (tmp_path / "report/index.html").read_text()
    assert "failed in 1 of 1 runs" in page
    assert "the reason" in page
    assert "1x" not in page


def test_a_program_that_is_not_there_is_refused_before_any_run(tmp_path: Path) -> None:
    words = ["ab", "-n", "1", "--arm", "none", "--report", str(tmp_path / "report"), "--", "nosuchprog"]
    done = subprocess.run(
        [sys.executable, "-m", "gradwire.cli", *words], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1
    assert done.stderr.startswith("gradwire: ab: nosuchprog is not a program: expected ")
    assert not (tmp_path / "report/index.html").exists()


def test_ctrl_c_ends_all(tmp_path: Path) -> None:
    body = f"open({str(tmp_path)!r} + '/pid' + rank, 'w').write(str(os.getpid())); time.sleep(60)"
    process = start(tmp_path, body=body)
    pids = [tmp_path / "pid0", tmp_path / "pid1"]
    end = time.monotonic() + 20
    while not all(path.exists() and path.read_text() for path in pids):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "stopped by SIGINT" in err
    assert not [path for path in pids if Path("/proc", path.read_text()).exists()]
