"""`gradwire plan`: what it predicts and recommends, and how it reads its files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from gradwire import compress
from gradwire.plan import calibration, layer_profile, planner, progress, simulation
from gradwire.plan.simulation import FREE, Network, Schedule, Variant

ROOT = Path(__file__).resolve().parents[2]
COSTS = calibration.load()
GBIT = 1e9


def question(model: str = "vgg16", **changes: Any) -> planner.Question:
    asked = planner.Question(layer_profile.find(model), workers=8, bandwidth=10 * GBIT, latency=50e-6)
    return replace(asked, **changes)


def gradwire(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradwire.cli", "plan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def efficiency(servers: int, schedule: Schedule) -> float:
    network = Network("servers", 8, servers, 10 * GBIT, 50e-6)
    done = simulation.predict(layer_profile.find("vgg16"), network, Variant("none"), schedule, COSTS)
    return 100 * done.compute_seconds / done.step_seconds


@pytest.mark.parametrize(("servers", "other"), [(1, 58.76), (2, 99.90), (4, 100.0)])
def test_the_bound_is_that_of_another_simulation(servers: int, other: float) -> None:
    """Of 1 MB slices on a fluid link, written apart from this: experiments/schedule_bound has its figures."""
    network = Network("servers", 8, servers, 10 * GBIT, 0)
    setup = simulation.setup(layer_profile.find("vgg16"), network, FREE, Schedule())
    from gradwire import _core

    bound = 100 * layer_profile.find("vgg16").compute_seconds / _core.least_step_seconds(setup)
    assert bound == pytest.approx(other, abs=0.5)
    assert bound >= other - 0.05


@pytest.mark.parametrize(("servers", "other"), [(1, 30.37), (2, 55.16), (4, 93.17)])
def test_whole_tensors_in_order_are_as_slow_as_in_another_simulation(servers: int, other: float) -> None:
    """MXNet's own schedule, of which real MXNet on a scale model gave 54.3 % and 89.0 % with 2 and 4 servers."""
    mxnet = Schedule(whole=True, in_order=True, shard_bound=1_000_000, fusion_bytes=0, credit_bytes=2**62)
    assert efficiency(servers, mxnet) == pytest.approx(other, abs=3)


def test_priorities_and_small_parts_beat_the_order_of_backward() -> None:
    ours = efficiency(2, Schedule())
    assert ours > efficiency(2, Schedule(in_order=True)) + 5
    assert ours > efficiency(2, Schedule(credit_bytes=2**40)) + 5
    assert ours > efficiency(2, Schedule(per_layer=False)) + 5


def test_four_thousand_workers_can_be_simulated() -> None:
    for placement, servers in (("servers", 4096), ("servers", 64), ("peers", 0)):
        network = Network(placement, 4096, servers, 25 * GBIT, 20e-6)  # type: ignore[arg-type]
        found = simulation.predict(
            layer_profile.find("bert_large"), network, Variant("2bit"), Schedule(), COSTS
        )
        assert found.step_seconds > 0


def test_no_codec_where_the_link_is_fast_enough() -> None:
    found = planner.answer(question(bandwidth=25 * GBIT), COSTS)
    assert not found.best.variant.lossy
    assert "do not compress" in found.reason


def test_a_codec_where_the_link_is_slow() -> None:
    found = planner.answer(question(bandwidth=GBIT), COSTS)
    assert found.best.variant.lossy
    assert found.best.efficiency > 0.9
    assert "compress: without" in found.reason
    dense = [row for row in found.predictions if not row.variant.lossy]
    assert all(row.efficiency < 0.8 for row in dense)
    assert all(row.efficiency <= row.bound + 1e-9 for row in found.predictions)


def test_a_codec_where_no_step_is_near_its_compute() -> None:
    """A step of seconds instead of minutes is worth a codec, though neither is a per cent of compute."""
    compute = layer_profile.find("resnet50")
    fast = compute.scaled(0.09 / compute.compute_seconds)
    found = planner.answer(question(profile=fast, bandwidth=10e6, placements=("peers",)), COSTS)
    least = min(row.step_seconds for row in found.predictions)
    dense = next(row for row in found.predictions if not row.variant.lossy)
    assert (found.best.variant.codec, found.best.step_seconds) == ("nf2", least)
    assert dense.step_seconds > 10 * least
    assert dense.efficiency < 0.001
    assert re.search(
        r"^nf2 with 8 peers: 0\.8\d % at 10mbit; compress: without, 8 peers reach 0\.05\d %, and a step takes "
        r"2\.5\d* min instead of 10\.\d s and sends 179 MB a worker instead of 11\.9 MB",
        found.reason,
    )
    rows = [replace(row, network=replace(row.network, bandwidth=10e6)) for row in found.predictions]
    assert planner.pays_below(rows) == 10e6


def test_the_row_to_take_stands_first_though_another_is_a_little_faster() -> None:
    answers = [planner.answer(question(bandwidth=rate), COSTS) for rate in planner.BANDWIDTHS]
    assert all(found.predictions[0] is found.best for found in answers)
    assert any(max(row.efficiency for row in a.predictions) > a.best.efficiency for a in answers)


def test_servers_are_asked_for_only_where_they_gain() -> None:
    assert planner.answer(question(), COSTS).best.network.placement == "peers"


def test_a_sweep_says_where_codecs_stop_paying() -> None:
    rows = list(planner.sweep(question("resnet50", codecs=("none", "2bit")), "bandwidth", COSTS))
    assert len(rows) == 2 * len(planner.BANDWIDTHS)
    highest = planner.pays_below(rows)
    assert highest is not None
    assert 100e6 <= highest <= 25 * GBIT
    assert planner.pays_below([row for row in rows if not row.variant.lossy]) is None


# Ctrl-C comes while the fourth prediction of the sweep is made, or before the first.
INTERRUPTED = """
import os, signal, sys
from gradwire import cli
from gradwire.plan import planner
calls, left, made = [], {left}, planner.with_interval
def interrupted(question, *rest):
    if question.bandwidth in planner.BANDWIDTHS[:2]:
        calls.append(question)
        if len(calls) > left:
            os.kill(os.getpid(), signal.SIGINT)
    return made(question, *rest)
planner.with_interval = interrupted
cli.main()
"""


@pytest.mark.parametrize("left", [3, 0])
def test_ctrl_c_leaves_what_a_sweep_has_predicted(left: int, tmp_path: Path) -> None:
    svg, record = tmp_path / "sweep.svg", tmp_path / "record.json"
    words = ["plan", "--model", "resnet50", "--codec", "none", "--codec", "2bit", "--sweep", "bandwidth"]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            INTERRUPTED.format(left=left),
            *words,
            "--svg",
            str(svg),
            "--json",
            str(record),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert "plan: stopped by SIGINT before the sweep was complete" in done.stderr
    rows = json.loads(record.read_text())
    assert len(rows["sweep"]) == left
    assert rows["predictions"]
    assert svg.exists() == bool(left)
    assert ("50mbit" in done.stdout) == bool(left)


def test_a_sweep_leaves_out_more_servers_than_the_workers_they_are_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner, "WORKERS", (2, 4, 8, 16))
    asked = question("resnet50", servers=8, placements=("beside",), codecs=("none",))
    found = [row.network for row in planner.sweep(asked, "workers", COSTS)]
    assert [network.workers for network in found] == [8, 16]
    asked = replace(asked, placements=("beside", "peers"))
    both = [row.network for row in planner.sweep(asked, "workers", COSTS)]
    assert [network.workers for network in both] == [2, 4, 8, 16]
    assert both[0].placement == "peers"


@pytest.mark.parametrize("spec", ["2bit:threshold=1", "fp16:reply=exact", "none:x", "other"])
def test_a_codec_that_is_not_planned_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="--codec"):
        Variant.parse(spec)


def test_a_ring_is_predicted_as_a_library_has_it_send_whatever_is_asked_for() -> None:
    asked, ring = question("bert_large"), Network("ring", 8, 0, 25 * GBIT, 50e-6)
    ours, theirs = (
        planner.predict(asked, ring, Variant("none"), schedule, COSTS)
        for schedule in (Schedule(), Schedule(in_order=True, per_layer=False, credit_bytes=2**62))
    )
    assert ours.step_seconds == pytest.approx(theirs.step_seconds, rel=0.01)
    record = ours.record()
    assert (record["overlap_step"], record["credit_bytes"]) == (False, None)


def test_latency_of_a_ring_is_hidden_behind_other_sums() -> None:
    """BERT-large in 1 MiB parts, 14 rounds each: one after the other they would reach half of the bound."""
    ring = Network("ring", 8, 0, 25 * GBIT, 50e-6)
    found = planner.predict(question("bert_large"), ring, Variant("none"), Schedule(), COSTS)
    assert 0.95 * found.bound < found.efficiency < found.bound


def test_a_ring_sums_dense_codecs_and_says_which_it_leaves_out() -> None:
    found = planner.answer(question(placements=("ring",)), COSTS)
    assert {str(row.variant) for row in found.predictions} == {"none", "fp16"}
    assert "not in a ring: int8, nf4, nf2, 2bit; a library adds what none, fp16, bf16" in str(found.left_out)
    assert "2bit" in {str(row.variant) for row in planner.answer(question(), COSTS).predictions}
    rows = list(planner.sweep(question(placements=("ring",), codecs=("bf16", "2bit")), "bandwidth", COSTS))
    assert {str(row.variant) for row in rows} == {"bf16"}
    half, whole = (
        next(row for row in found.predictions if str(row.variant) == codec) for codec in ("fp16", "none")
    )
    assert half.sent_bytes == pytest.approx(whole.sent_bytes / 2, rel=0.01)
    with pytest.raises(ValueError, match="nothing to try: not in a ring: 2bit; a library adds"):
        planner.answer(question(placements=("ring",), codecs=("2bit",)), COSTS)


@pytest.mark.parametrize("codec", compress.list())
def test_every_codec_is_planned(codec: str) -> None:
    variant = Variant.parse(codec)
    profile = layer_profile.find("vgg16")
    done = simulation.predict(profile, Network("peers", 8, 0, GBIT, 0), variant, Schedule(), COSTS)
    bits = 8 * len(compress.make(codec).encode(np.zeros(2**18, np.float32))) / 2**18
    reply = 5 if codec == "2bit" else bits  # exact: sums of 8 workers' -1, 0 and 1
    assert done.sent_bytes == pytest.approx(7 / 8 * profile.elements * (bits + reply) / 8, rel=0.05)
    assert done.received_bytes == pytest.approx(done.sent_bytes)


def test_exact_replies_grow_with_the_workers() -> None:
    variant = Variant.parse("2bit")
    network = Network("peers", 8, 0, GBIT, 0)
    profile = layer_profile.find("vgg16")
    few = simulation.predict(profile, network, variant, Schedule(), COSTS)
    many = simulation.predict(profile, replace(network, workers=64), variant, Schedule(), COSTS)
    assert few.sent_bytes == pytest.approx(7 / 8 * profile.elements * (2 + 5) / 8, rel=0.01)
    assert many.sent_bytes == pytest.approx(63 / 64 * profile.elements * (2 + 8) / 8, rel=0.01)
    apart = Network("servers", 8, 8, GBIT, 0)
    worker = simulation.predict(profile, apart, variant, Schedule(), COSTS)
    assert worker.sent_bytes == pytest.approx(profile.elements * 2 / 8, rel=0.01)
    assert worker.received_bytes == pytest.approx(profile.elements * 5 / 8, rel=0.01)


def test_the_calibration_is_made_from_the_committed_bench() -> None:
    rows = json.loads((ROOT / "experiments/schedule_bound/codec_speeds.json").read_text())
    assert COSTS.codecs == calibration.of_bench(rows)
    row = next(r for r in rows if (r["codec"], r["op"], r["ways"]) == ("fp16", "decode_sum", 8))
    speed = COSTS.speed("fp16")
    assert speed.sum_seconds + 8 * speed.sum_seconds_per_worker == pytest.approx(
        1 / row["elements_per_second"]
    )
    with pytest.raises(ValueError, match="codec other has no calibration: expected one of none, fp16"):
        COSTS.speed("other")


def test_a_bench_that_lacks_an_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="bench of none lacks"):
        calibration.of_bench([])


def test_codec_speeds_of_several_threads_are_refused(tmp_path: Path) -> None:
    """Costs are seconds of one thread: those of four at once would be taken as a quarter."""
    rows = json.loads((ROOT / "experiments/schedule_bound/codec_speeds.json").read_text())
    file = tmp_path / "speeds.json"
    file.write_text(json.dumps([row | {"threads": 4} for row in rows]))
    with pytest.raises(
        ValueError, match=r"speeds\.json cannot be used \(none was measured with 4 threads, and"
    ):
        calibration.measure(print, file)


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"codecs": [{}]}'])
def test_what_is_no_calibration_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="is not a calibration"):
        calibration.load(file)


@pytest.mark.parametrize(
    "text", ["{", "3", "[1]", '{"codec": "none"}', '[{"codec": "none"}]', '["none"]', b"\xff\xfe\x00"]
)
def test_codec_speeds_of_another_shape_are_refused_by_their_file(tmp_path: Path, text: str | bytes) -> None:
    file = tmp_path / "speeds.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(
        ValueError, match=r"--codec-speeds .*speeds\.json cannot be used .* bench codec --json"
    ):
        calibration.measure(print, file)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00"])
def test_a_profile_that_is_no_json_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "profile.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"profile .*profile\.json: not JSON .*; expected what"):
        layer_profile.load(file)


def test_messages_cost_something() -> None:
    probe = calibration.probe_messages()
    assert 0 < probe["message_seconds"] < probe["round_trip_seconds"] < 1
    assert 0 < probe["wakeup_seconds"] < 1


def test_a_message_alone_takes_its_round_trip_in_the_simulator() -> None:
    costs = replace(COSTS, message_seconds=5e-6, wakeup_seconds=40e-6, round_trip_seconds=300e-6)
    profile = layer_profile.Profile("one", "this test", 1, 0.5, (layer_profile.Layer("one", 1, 1.0, 1.0),))
    done = simulation.predict(profile, Network("servers", 1, 1, 1e15, 0), Variant("none"), Schedule(), costs)
    assert done.step_seconds == pytest.approx(2 + 300e-6, rel=1e-7)
    older = replace(costs, wakeup_seconds=0.0)
    assert older.hop_seconds == pytest.approx(140e-6)


def test_the_command_predicts_recommends_and_draws(tmp_path: Path) -> None:
    svg = tmp_path / "sweep.svg"
    words = [
        "--model",
        "resnet50",
        "-n",
        "4",
        "-s",
        "2",
        "--bandwidth",
        "1gbit",
        "--codec",
        "none",
        "--codec",
        "2bit",
    ]
    done = gradwire(*words, "--sweep", "bandwidth", "--svg", str(svg), "--json", "-")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert {"predictions", "recommendation", "reason", "sweep"} <= set(record)
    assert len(record["predictions"]) == 4
    assert record["recommendation"]["codec"] == "2bit"
    assert "compress" in record["reason"]
    assert "2bit" in svg.read_text()
    ElementTree.fromstring(svg.read_text())


def test_a_models_step_takes_the_time_that_is_given() -> None:
    """Its own is of a GPU that the reader may not have."""
    words = ("--model", "resnet50", "-n", "4", "--bandwidth", "1gbit", "--codec", "none")
    done = gradwire(*words, "--step-time", "90ms", "--json", "-")
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout)["predictions"]:
        assert row["step_seconds"] >= 0.09
        assert row["efficiency"] == pytest.approx(0.09 / row["step_seconds"], rel=1e-6)
    assert "90 ms of compute a step\n" in done.stderr
    assert "own device; --step-time gives yours" in gradwire(*words).stdout


def test_a_bad_rate_is_refused_before_a_command_is_profiled(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('it ran')")
    done = gradwire("--bandwidth", "fast", "--", sys.executable, str(script))
    assert done.returncode != 0
    assert "fast" in done.stderr
    assert "it ran" not in done.stderr


def test_at_80_columns_it_is_still_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of each row's values had 281 lines."""
    monkeypatch.setenv("COLUMNS", "80")
    for more in ((), ("--sweep", "bandwidth")):
        lines = gradwire("--model", "resnet50", *more).stdout.splitlines()
        assert "--json also has partition, credit, bound, exposed." in " ".join(lines)
        assert max(len(line) for line in lines if ": gradwire " not in line) <= 80  # but for commands
        assert not any("e+03" in line or "\u2026" in line for line in lines)
        assert sum(line.strip().startswith("placement:") for line in lines) == 0


def test_a_job_with_adam_is_planned_with_codecs_that_go_with_it() -> None:
    adam = replace(layer_profile.find("vgg16"), optimizer="AdamW", is_like_adam=True)
    sgd = replace(adam, optimizer="SGD", is_like_adam=False)
    tried = {row.variant.codec for row in planner.answer(question(profile=adam), COSTS).predictions}
    assert tried == {"none", "fp16", "int8", "nf4", "nf2"}
    assert "2bit" in question(profile=sgd).tried_codecs
    slow = {"bandwidth": 0.1 * GBIT, "codecs": ("none", "2bit")}
    assert "faster, and may cost loss: 2bit" in planner.answer(question(profile=adam, **slow), COSTS).reason
    alone = question(profile=adam, bandwidth=0.1 * GBIT, codecs=("2bit",))
    assert "it loses accuracy with AdamW" in planner.answer(alone, COSTS).reason
    assert "loses accuracy" not in planner.answer(question(profile=sgd, **slow), COSTS).reason
    assert "with Adam and AdamW" in planner.answer(question(**slow), COSTS).reason


def test_with_adam_a_codec_that_keeps_the_loss_is_recommended_and_the_faster_ones_are_named() -> None:
    """nf2 was recommended, and `gradwire ab` called it worse on the same script."""
    adam = replace(layer_profile.find("vgg16"), optimizer="AdamW", is_like_adam=True)
    found = planner.answer(question(profile=adam, bandwidth=0.2 * GBIT), COSTS)
    assert found.best.variant.codec == "int8"
    assert re.search(r"faster, and may cost loss: nf2 [\d.]+ %, nf4 [\d.]+ %", found.reason)
    start, compare = found.next_steps
    assert re.match(
        r"Start on 16 hosts, the first 8 for workers: (GRADWIRE_\w+=\d+ )*gradwire run -n 8 -s 8 --launcher ssh "
        r"-H HOST1,HOST2,... --compression int8 python train\.py",
        start,
    )
    assert "gradwire ab -n 2 --arm none --arm int8 --arm nf2 --arm nf4 --bandwidth 200mbit" in compare
    only = planner.answer(question(profile=adam, codecs=("nf2",)), COSTS)
    assert only.best.variant.codec == "nf2"
    assert "it may cost loss with AdamW" in only.reason


def test_what_a_prediction_rests_on_is_in_the_command_that_starts_it() -> None:
    """Partitions and credit that are not the defaults, and the codec, under torchrun too."""
    fast = layer_profile.find("vgg16").scaled(0.1)
    found = planner.answer(
        question(profile=fast, bandwidth=5 * GBIT, codecs=("2bit",), placements=("peers",)), COSTS
    )
    start, by_torchrun, _ = found.next_steps
    schedule = found.best.schedule
    if schedule.partition_bytes != 2**20:
        assert f"GRADWIRE_PARTITION_BYTES={schedule.partition_bytes} " in start
    assert "gradwire run -n 8 -s 0 --launcher ssh" in start
    if schedule.credit_bytes != 256 * 2**10:
        assert f"GRADWIRE_CREDIT_BYTES={schedule.credit_bytes}, " in by_torchrun
    assert by_torchrun.startswith("Or by torchrun with ")
    assert by_torchrun.endswith("GRADWIRE_COMPRESSION=2bit.")


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_settings_that_a_prediction_rests_on_are_for_torchrun_too(codec: str) -> None:
    asked = question(codecs=(codec,), placements=("peers",))
    row = planner.predict(
        asked,
        asked.networks()[0],
        Variant(codec),
        Schedule(partition_bytes=2**22, credit_bytes=2**16),
        COSTS,
    )
    _, by_torchrun, *_ = planner._next_steps(asked, [row], row)
    compression = "" if codec == "none" else ", GRADWIRE_COMPRESSION=int8"
    assert by_torchrun == (
        f"Or by torchrun with GRADWIRE_PARTITION_BYTES=4194304, GRADWIRE_CREDIT_BYTES=65536{compression}."
    )


def test_a_sweep_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    asked = question("resnet50", codecs=("none", "int8"))
    with progress.shown() as watch:
        rows = list(planner.sweep(asked, "bandwidth", COSTS, watch))
        planner.answer(asked, COSTS, watch)
    out, err = capfd.readouterr()
    said = err.splitlines()
    assert out == ""
    assert said[0] == "gradwire: plan: 0 of 22 predicted; none with 8 workers, links of 50mbit"
    assert said[21] == "gradwire: plan: 21 of 22 predicted; int8 with 8 workers, links of 100gbit"
    assert len(rows) == 22
    assert said[22] == "gradwire: plan: 0 of 10 predicted; none with 8 peers"


def test_what_is_given_twice_is_tried_once() -> None:
    once = ["--codec", "int8", "--placement", "peers"]
    done = gradwire("--model", "vgg16", *once, *once, "--json", "-")
    assert len(json.loads(done.stdout)["predictions"]) == 1


def test_a_codec_is_refused_before_a_command_is_profiled(tmp_path: Path) -> None:
    done = gradwire("--codec", "fp32", "--", sys.executable, "-c", "raise SystemExit('it ran')")
    assert "--codec fp32 is not planned" in done.stderr
    assert "it ran" not in done.stderr


def test_the_command_is_of_one_worker() -> None:
    done = gradwire("--", "torchrun", "--nproc-per-node", "2", "train.py")
    assert (
        "plan: torchrun starts workers, and one alone is profiled: give the command of one worker"
        in done.stderr
    )


def test_what_is_assumed_of_the_network_is_said() -> None:
    text = gradwire("--model", "resnet50", "--codec", "none").stdout
    assert "Assumed: 8 workers (-n), links of 10gbit (--bandwidth).\n" in text
    text = gradwire("--model", "resnet50", "--codec", "none", "-n", "8").stdout
    assert "Assumed: links of 10gbit (--bandwidth).\n" in text


def test_commands_to_copy_are_not_cut_by_line_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    done = gradwire("--model", "resnet50", "-n", "4", "--bandwidth", "1gbit", "--json", "-")
    steps = json.loads(done.stdout)["next"]
    assert [step for step in steps if "gradwire run" in step or "gradwire ab" in step]
    assert set(steps) <= set(done.stderr.splitlines())


def test_no_cell_breaks_at_110_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "2bit..." and "10gb..." had stood in it."""
    monkeypatch.setenv("COLUMNS", "110")
    for more in ((), ("--sweep", "bandwidth"), ("--placement", "beside", "--placement", "servers")):
        text = gradwire("--model", "resnet50", *more).stdout
        assert "\u2026" not in text
        assert "nf2" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "expected either --model (vgg16, resnet50, bert_large, gpt2_124m, or a file) or a command"),
        (
            ["--model", "alexnet"],
            "there is no model 'alexnet': expected vgg16, resnet50, bert_large, gpt2_124m or a",
        ),
        (["--model", "vgg16", "--svg", "x.svg"], "--svg draws a sweep"),
        (
            ["--model", "vgg16", "--codec", "topk:ratio=0.1"],
            "--codec topk:ratio=0.1 is not planned: expected one of none, fp16, ",
        ),
        (["--step-time", "90ms", "true"], "--step-time 90ms needs --model"),
        (["--model", "vgg16", "--step-time", "0s"], "--step-time 0s: expected a time above 0"),
        (["--model", "vgg16", "--profile", "x.json"], "--profile keeps the profile of a command"),
        (
            ["--model", "vgg16", "--placement", "peers", "-s", "3"],
            "-s 3 needs --placement servers or beside",
        ),
        (["--model", "vgg16", "--placement", "ring", "--server-threads", "2"], "a ring has neither"),
        (["--calibrate", "x.json", "--model", "vgg16", "-n", "4"], "predicts nothing: leave --model, -n out"),
        (["--calibrate", "x.json", "true"], "predicts nothing: leave the command out"),
        (["--model", "vgg16", "--placement", "beside", "-s", "9"], "9 servers beside 8 workers"),
        (["--model", "vgg16", "true"], "expected either --model"),
        (
            ["--model", "vgg16", "-n", "4294967296"],
            "'--num-workers': '4294967296' should be less than or equal to 65536",
        ),
        (
            ["--model", "vgg16", "-s", "4294967296"],
            "'--num-servers': '4294967296' should be less than or equal to 65536",
        ),
        (
            ["--model", "vgg16", "--codec-threads", "5000000000"],
            "'--codec-threads': '5000000000' should be less than or equal to 1024",
        ),
        (
            ["--model", "vgg16", "--server-threads", "5000000000"],
            "'--server-threads': '5000000000' should be less than or equal to 1024",
        ),
        (["--calibrate", "/nowhere/x.json"], "'--calibrate': there is no folder /nowhere: make it first"),
        (
            ["--profile", "/nowhere/x.json", "false"],
            "'--profile': there is no folder /nowhere: make it first",
        ),
        (
            ["--model", "vgg16", "--sweep", "workers", "--svg", "/nowhere/x.svg"],
            "'--svg': there is no folder /nowhere: make it first",
        ),
        (["false"], "false ended with exit code 1 before 30 steps of a PyTorch optimizer: it wrote no error"),
    ],
)
def test_misuse_is_one_line(words: list[str], text: str) -> None:
    done = gradwire(*words)
    assert done.returncode != 0
    assert text in done.stderr
    assert "Traceback" not in done.stderr
