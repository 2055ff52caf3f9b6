"""`gradwire plan`: cores that compute and codecs share, bytes below the engine, and a netlab on one machine."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gradwire.plan import calibration, layer_profile, planner, simulation
from gradwire.plan.layer_profile import Layer, Machine, Profile
from gradwire.plan.simulation import Network, Schedule, Variant
from python.plan_test import gradwire

COSTS = calibration.load()
LAYERS = (Layer("front", 1_600_000, 0.03, 0.01), Layer("back", 8_400_000, 0.02, 0.04))
ALONE = Profile("made up", "this test", 10, 100.0, LAYERS, (0.099, 0.101))
SHARED = replace(ALONE, machine=Machine(cores=2, workers=2, compute_threads=1))


def seconds(
    profile: Profile, bandwidth: float, codec: str, placement: Any = "peers", **changes: Any
) -> float:
    servers = 1 if placement == "servers" else 0
    network = Network(placement, 2, servers, bandwidth, 20e-6, netlab=changes.pop("netlab", False))
    costs = changes.pop("costs", COSTS)
    return simulation.predict(profile, network, Variant.parse(codec), Schedule(**changes), costs).step_seconds


def test_a_codec_takes_its_time_from_compute_where_they_share_a_core() -> None:
    assert seconds(SHARED, 1e11, "none") > seconds(ALONE, 1e11, "none")
    for codec in ("fp16", "int8", "2bit"):
        speed = COSTS.speed(codec)
        codecs = SHARED.elements * (speed.encode_with_residual_seconds + speed.decode_seconds)
        alone, shared = (seconds(profile, 1e10, codec) for profile in (ALONE, SHARED))
        assert shared > alone + 0.5 * codecs, codec
        assert shared >= ALONE.compute_seconds + 0.9 * codecs, "no core works twice"
    roomy = replace(SHARED, machine=Machine(cores=64, workers=2, compute_threads=1))
    assert seconds(roomy, 1e10, "2bit") == pytest.approx(seconds(ALONE, 1e10, "2bit"))
    on_gpu = replace(SHARED, machine=Machine(cores=4, workers=2, compute_threads=0))
    assert seconds(on_gpu, 1e10, "2bit") == pytest.approx(seconds(ALONE, 1e10, "2bit"))


def test_servers_of_their_own_take_the_machines_cores_in_a_netlab_alone() -> None:
    elsewhere, here = (seconds(SHARED, 1e10, "int8", "servers", netlab=netlab) for netlab in (False, True))
    assert here > elsewhere


def test_bytes_take_cores_where_these_are_known() -> None:
    costs = replace(COSTS, byte_seconds=3e-10)
    assert seconds(SHARED, 1e10, "none", costs=costs) > 1.05 * seconds(SHARED, 1e10, "none")
    assert seconds(ALONE, 1e10, "none", costs=costs) == seconds(ALONE, 1e10, "none")


def test_a_connection_has_its_share_of_a_netlabs_queue() -> None:
    network = Network("peers", 2, 0, 1e8, 20e-6)
    assert network.queued_bytes == 0
    queue = 0.02 * 1e8 / 8 * simulation.PAYLOAD_SHARE
    lab = replace(network, netlab=True)
    assert lab.queued_bytes == round(queue / 2), "a push and a reply share a link"
    assert replace(lab, placement="servers", servers=1).queued_bytes == round(queue / 2), "so do two workers"
    assert replace(lab, placement="servers", servers=4).queued_bytes == round(queue / 4)
    assert replace(lab, bandwidth=1e11).queued_bytes == 4 * 2**20, "no connection has more under way"


def test_bytes_below_the_engine_delay_what_the_next_forward_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mlp = (
        Layer("1", 1_600_000, 0.034, 0.006),
        Layer("2", 4_200_000, 0.008, 0.023),
        Layer("3", 4_200_000, 0.008, 0.023),
        Layer("4", 20_000, 0.0002, 0.0002),
    )
    profile = replace(ALONE, layers=mlp)
    below, in_a_lab = (seconds(profile, 1e9, "2bit", "servers", netlab=netlab) for netlab in (False, True))
    drained = seconds(profile, 1e9, "2bit", "servers", per_layer=False)
    nothing_below = seconds(profile, 1e9, "2bit", "servers", socket_bytes=0)
    assert 1.05 * nothing_below < below < in_a_lab <= drained * (1 + 1e-9)


def test_a_profile_keeps_its_machine_and_refuses_what_is_none(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(layer_profile.text_of(SHARED))
    assert layer_profile.load(file) == SHARED
    assert SHARED.scaled(2).machine == SHARED.machine
    given = json.loads(file.read_text())
    for wrong in ({"cores": 0}, {"workers": 1.5}, {"compute_threads": -1}, {"cores": True}):
        file.write_text(json.dumps(given | {"machine": given["machine"] | wrong}))
        with pytest.raises(ValueError, match=r"machine: .* expected a whole number"):
            layer_profile.load(file)
    file.write_text(json.dumps(given | {"machine": {"cores": 2}}))
    with pytest.raises(ValueError, match="missing"):
        layer_profile.load(file)


def test_older_calibrations_have_no_cost_of_bytes(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    given = json.loads(COSTS.text())
    given.pop("byte_seconds")
    file.write_text(json.dumps(given))
    assert calibration.load(file).byte_seconds == 0
    measured = replace(COSTS, byte_seconds=3e-10)
    file.write_text(measured.text())
    assert calibration.load(file) == measured
    assert measured.times(2).byte_seconds == pytest.approx(6e-10)
    file.write_text(replace(COSTS, byte_seconds=math.nan).text())
    with pytest.raises(ValueError, match="not a cost"):
        calibration.load(file)


def test_the_interval_counts_shared_cores_once() -> None:
    rows = {}
    for name, profile in (("alone", ALONE), ("shared", SHARED)):
        question = planner.Question(profile, 2, 1e10, 20e-6, codecs=("2bit",), placements=("peers",))
        (rows[name],) = planner.answer(question, COSTS).predictions
    assert rows["shared"].step_seconds > rows["alone"].step_seconds
    low, high = rows["shared"].step_interval or (0, 0)
    assert low <= rows["shared"].step_seconds < high


def test_a_netlab_needs_a_profile_of_all_workers_on_one_machine(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(layer_profile.text_of(SHARED))
    words = ["--bandwidth", "100mbit", "--codec", "2bit", "--netlab", "--model"]
    good = gradwire("-n", "2", *words, str(file), "--json", "-")
    assert good.returncode == 0, good.stderr
    for model, workers, known in (("vgg16", "2", "not known"), (str(file), "4", "2 at once were timed on")):
        bad = gradwire("-n", workers, *words, model)
        assert bad.returncode != 0
        assert known in " ".join(bad.stderr.split())
        assert f"with --copies {workers}" in " ".join(bad.stderr.split())
    early = gradwire("-n", "2", "--bandwidth", "100mbit", "--netlab", "--", "no-such-program")
    assert early.returncode != 0
    assert "give --copies 2, not 1" in " ".join(early.stderr.split()), "said before a profile is made"
