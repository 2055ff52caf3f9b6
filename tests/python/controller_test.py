"""compression="auto": what a budget admits, what is predicted and chosen. Pure, but for the simulator."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import gradwire as gw
import numpy as np
import pytest
from gradwire import _core
from gradwire.ab.experiment import check_arms
from gradwire.controller import CANDIDATES, Budget, Plan, Tensor, accuracy, choice, requested
from gradwire.controller import error as codec_error
from gradwire.controller.choice import choose
from gradwire.controller.prediction import Job, network_of
from gradwire.controller.step_clock import Step, StepClock, layers
from gradwire.plan import calibration, layer_profile, simulation
from gradwire.plan.simulation import Network, Schedule, Variant
from gradwire.stores.placement import Link
from python.inproc_ranks import run_ranks

COSTS = calibration.load()
MBIT = 1e6
RATES = [50 * MBIT, 200 * MBIT, 1000 * MBIT, 10_000 * MBIT]
MODELS = ["vgg16", "resnet50", "bert_large"]
ALL = frozenset(CANDIDATES)


# ---- budgets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "limit"),
    [
        ("0.3 points", "points", 0.3),
        ("1 point", "points", 1.0),
        (" .5points ", "points", 0.5),
        ("5% error", "error", 0.05),
        ("5 % error", "error", 0.05),
        ("0.01 error", "error", 0.01),
    ],
)
def test_a_budget_is_points_or_an_error(text: str, kind: str, limit: float) -> None:
    found = Budget.parse(text)
    assert (found.kind, found.limit) == (kind, pytest.approx(limit))
    assert Budget.parse(str(found)) == found


@pytest.mark.parametrize("text", ["", "0.3", "5%", "5% points", "-1 points", "much", "0.3 points or so"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected points of accuracy"):
        Budget.parse(text)


def test_compression_says_whether_it_is_auto() -> None:
    assert requested("auto") == Budget("points", 0.3)
    assert requested("auto", "1 points") == Budget("points", 1.0)
    assert requested("auto:budget=5% error", "1 points") == Budget("error", 0.05)
    assert requested({"type": "auto", "budget": "2 points"}) == Budget("points", 2.0)
    assert requested("2bit", "1 points") is None
    assert requested(None) is None
    with pytest.raises(ValueError, match="takes a budget and nothing else"):
        requested("auto:threshold=1")


def test_an_arm_of_ab_may_be_auto() -> None:
    check_arms(["none", "auto", "auto:budget=5% error"])
    for arm, text in (("auto:budget=some", "expected points of accuracy"), ("auto:x=1", "and nothing else")):
        with pytest.raises(ValueError, match=f"ab: --arm {arm}.*{text}"):
            check_arms([arm])


def test_other_doors_say_where_auto_is_to_be_had() -> None:
    with pytest.raises(ValueError, match="DistributedOptimizer"):
        gw.compress.Compression.parse("auto")


# ---- what a budget admits ------------------------------------------------------------------------------------


TABLE = {
    "fp16": accuracy.Cost(0.0, 0.0004),
    "int8": accuracy.Cost(0.2, 0.02),
    "nf2": accuracy.Cost(0.6, 1.2),
}
UNKNOWN = "its accuracy was not measured"
ERRORS = {"none": 0.0, "fp16": 0.0004, "int8": 0.02, "nf4": 0.3, "nf2": 1.0}


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("0 points", {"none", "fp16"}),
        ("0.3 points", {"none", "fp16", "int8"}),
        ("5 points", {"none", "fp16", "int8", "nf2"}),
        ("3% error", {"none", "fp16", "int8"}),
        ("30% error", {"none", "fp16", "int8", "nf4"}),
        ("0% error", {"none"}),
    ],
)
def test_a_budget_admits_what_is_known_to_fit(budget: str, expected: set[str]) -> None:
    assert accuracy.admitted(Budget.parse(budget), TABLE, ERRORS) == expected


def test_points_say_nothing_of_a_tensor_that_is_more_wrong_than_those_measured() -> None:
    errors = ERRORS | {"int8": 0.05}
    assert "int8" not in accuracy.admitted(Budget("points", 5), TABLE, errors)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("0.3 points", f"nf4 ({UNKNOWN}), nf2 (0.6 points)"),
        ("0.1 points", f"int8 (0.2 points), nf4 ({UNKNOWN}), nf2 (0.6 points)"),
        ("5 points", f"nf4 ({UNKNOWN})"),
        ("3% error", "nf4 (up to 30% error), nf2 (up to 100% error)"),
    ],
)
def test_what_a_budget_leaves_out_is_said_with_the_reason(budget: str, expected: str) -> None:
    errors = [ERRORS, ERRORS | {"fp16": 0.0003}]
    assert accuracy.left_out(Budget.parse(budget), TABLE, errors) == expected


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("0.3 points", ["fp16", "int8"]),
        ("5 points", ["fp16", "int8", "nf2"]),
        ("0% error", list(CANDIDATES[1:])),
    ],
)
def test_only_what_may_fit_is_followed(budget: str, expected: list[str]) -> None:
    possible = accuracy.possible(Budget.parse(budget), TABLE)
    assert list(possible) == expected
    meter = codec_error.ErrorMeter([Tensor("w", 1000, 0)], possible)
    meter.add([gradients(rank, 0, 1000) for rank in range(2)])
    assert list(meter.errors()[0]) == ["none", *expected]


def test_what_some_tensors_may_not_have_is_counted() -> None:
    errors = [ERRORS, ERRORS | {"int8": 0.05}, ERRORS]
    found = accuracy.left_out(Budget("points", 5), TABLE | {"nf4": TABLE["int8"]}, errors)
    assert "int8 for 1 of 3 tensors (more wrong here than where its accuracy was measured)" in found
    assert accuracy.left_out(Budget("error", 2), TABLE, errors) == ""


@pytest.mark.parametrize("optimizer", [*get_args(accuracy.Optimizer), None])
def test_the_table_that_comes_with_gradwire_knows_all_candidates(
    optimizer: accuracy.Optimizer | None,
) -> None:
    table = accuracy.load(optimizer)
    assert list(table) == list(CANDIDATES[1:])
    most = [cost.points_at_most for cost in table.values()]
    assert most == sorted(most)
    assert [cost.relative_error for cost in table.values()] == sorted(
        cost.relative_error for cost in table.values()
    )


def test_of_an_optimizer_that_is_not_known_each_candidate_costs_what_it_costs_at_most() -> None:
    tables = [accuracy.load(optimizer) for optimizer in get_args(accuracy.Optimizer)]
    for name, cost in accuracy.load(None).items():
        assert cost.points_at_most == max(table[name].points_at_most for table in tables)
        assert cost.relative_error == min(table[name].relative_error for table in tables)


def test_a_candidate_that_was_measured_with_one_optimizer_is_admitted_with_it_alone(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{optimizer},fp16,0,0.001,5" for optimizer in get_args(accuracy.Optimizer)]
    table.write_text(
        "\n".join(["optimizer,codec,points_at_most,relative_error,seeds", *rows, "adam,nf4,0.1,0.2,5\n"])
    )
    assert list(accuracy.load("adam", table)) == ["fp16", "nf4"]
    assert list(accuracy.load("sgd", table)) == list(accuracy.load(None, table)) == ["fp16"]


LOSSIEST: dict[accuracy.Optimizer | None, dict[float, str]] = {
    "sgd": {0.0: "fp16", 0.3: "int8", 0.5: "nf4", 1.0: "nf2"},
    "adam": {0.0: "fp16", 0.3: "int8", 0.5: "nf4", 1.0: "nf4", 2.5: "nf2"},
    "muon": {0.0: "fp16", 0.3: "int8", 0.5: "int8", 1.0: "nf4", 3.0: "nf2"},
    None: {0.0: "fp16", 0.3: "int8", 0.5: "int8", 1.0: "nf4", 3.0: "nf2"},
}


def test_the_docs_say_of_the_table_what_it_holds() -> None:
    """accuracy_cost.csv, and what Budget's docstring and python/docs/howto/tune.md say of it."""
    for optimizer, lossiest in LOSSIEST.items():
        table = accuracy.load(optimizer)
        errors = {"none": 0.0} | {name: cost.relative_error for name, cost in table.items()}
        for points, expected in lossiest.items():
            allowed = accuracy.admitted(Budget("points", points), table, errors)
            assert max(allowed, key=CANDIDATES.index) == expected


def test_a_tensor_without_samples_is_not_compressed() -> None:
    assert accuracy.admitted(Budget("points", 5), TABLE, {}) == {"none"}


def test_it_begins_with_the_lossiest_that_is_known_to_fit() -> None:
    assert accuracy.begins_with(Budget("points", 0), TABLE) == "fp16"
    assert accuracy.begins_with(Budget("points", 0.3), TABLE) == "int8"
    assert accuracy.begins_with(Budget("points", 5), TABLE) == "nf2"
    assert accuracy.begins_with(Budget("error", 0.01), TABLE) == "fp16"
    assert accuracy.begins_with(Budget("error", 0.0001), TABLE) == "none"
    assert accuracy.begins_with(Budget("points", 1), {}) == "none"


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("codec,points\nfp16,1\n")
    with pytest.raises(ValueError, match="no table of what codecs cost"):
        accuracy.load("sgd", tmp_path / "t.csv")


# ---- errors --------------------------------------------------------------------------------------------------


def gradients(rank: int, step: int, elements: int) -> np.ndarray:
    random = np.random.default_rng([rank, step])
    return random.standard_normal(elements, dtype=np.float32) * np.float32(0.01)


@pytest.mark.parametrize("candidate", CANDIDATES[1:])
def test_what_is_simulated_is_what_a_job_makes_of_it(candidate: str) -> None:
    """Bit for bit: thresholds that are agreed, residuals of workers and of the server, replies."""
    from gradwire.controller import compression_of

    elements, steps = 3000, 4
    got: dict[int, list[np.ndarray]] = {}

    def rank(store: gw.kv.KVStore) -> None:
        store.use_compression(compression_of(candidate))
        store.init("w", np.zeros(elements, np.float32))
        out = np.empty(elements, np.float32)
        for step in range(steps):
            store.pushpull("w", gradients(store.rank, step, elements), out)
            got.setdefault(store.rank, []).append(out.copy() / 2)

    run_ranks(2, rank)
    simulated = codec_error.SimulatedMean(compression_of(candidate), elements, 2, key=0)
    for step in range(steps):
        mean = simulated.mean([gradients(r, step, elements) for r in range(2)], step)
        np.testing.assert_array_equal(mean, got[0][step])
    assert len(got[0]) == steps


def test_errors_are_those_of_the_codecs_and_of_tensors_by_themselves() -> None:
    tensors = [Tensor("big", 1_000_000, 0), Tensor("norm", 100, 1, free=False), Tensor("small", 3000, 2)]
    meter = codec_error.ErrorMeter(tensors)
    assert meter.elements == 8 * 512 + 3000
    for step in range(8):
        meter.add([gradients(rank, step, meter.elements) for rank in range(4)])
    big, norm, small = meter.errors()
    assert norm == {"none": 0.0}
    for errors in (big, small):
        assert set(errors) == ALL
        assert errors["none"] < errors["fp16"] < errors["int8"] < errors["nf4"] < errors["nf2"]
        assert errors["fp16"] < 1e-3
        assert 0.001 < errors["int8"] < 0.05


def test_steps_that_say_nothing_are_passed_over() -> None:
    meter = codec_error.ErrorMeter([Tensor("w", 1000, 0)])
    meter.add([np.full(1000, np.nan, np.float32), np.ones(1000, np.float32)])
    meter.add([np.zeros(1000, np.float32), np.zeros(1000, np.float32)])
    assert meter.errors() == [{"none": 0.0}]


def test_samples_are_spread_over_a_tensor_and_stay_inside_it() -> None:
    sizes = [1, 511, 4096, 4097, 10_000_000]
    for tensor, own in zip(sizes, codec_error.blocks([Tensor(str(n), n, 0) for n in sizes]), strict=True):
        assert own[0][0] == 0
        assert own[-1][1] == tensor
        assert all(a < b <= c < d for (a, b), (c, d) in itertools.pairwise(own))
    many = codec_error.blocks([Tensor(str(n), 10_000, n) for n in range(2000)])
    assert {len(own) for own in many} == {1}


# ---- layers and predictions ----------------------------------------------------------------------------------


def test_a_clock_tells_when_gradients_were_ready() -> None:
    clock = StepClock(now=10.0, waited=5.0)
    clock.ready(1, now=13.0, waited=5.5)
    clock.ready(0, now=14.0, waited=6.0)
    clock.ready(1, now=15.0, waited=6.0)  # again: the first counts
    assert clock.end(now=16.0) == Step(6.0, {1: 3.0, 0: 4.0}, 0.5)


def test_layers_hold_the_time_of_a_step_less_what_was_waited_for() -> None:
    tensors = [Tensor("front", 10, 0), Tensor("back", 20, 1), Tensor("middle", 30, 0)]
    steps = [Step(9.0, {1: 5.0, 2: 6.0, 0: 8.0}, 1.0)] * 3
    found = layers(tensors, steps)
    assert [layer.name for layer in found] == ["front", "middle", "back"]
    assert [layer.backward_seconds for layer in found] == [2.0, 1.0, 0.0]
    assert sum(layer.forward_seconds for layer in found) == pytest.approx(4.0)
    assert [layer.forward_seconds for layer in found[1:]] == [0.5, 0.0]


def job_of(model: str, bandwidth: float, workers: int = 8) -> Job:
    profile = layer_profile.find(model)
    tensors = tuple(Tensor(layer.name, layer.elements, place) for place, layer in enumerate(profile.layers))
    network = Network("peers", workers, 0, bandwidth, 50e-6)
    return Job(tensors, profile.layers, network, Schedule(), COSTS)


@pytest.mark.parametrize("codec", CANDIDATES)
def test_a_plan_of_one_codec_is_predicted_as_gradwire_plan_does(codec: str) -> None:
    job = job_of("resnet50", 1000 * MBIT)
    variant = Variant.parse(codec)
    setup = simulation.setup(
        layer_profile.find("resnet50"),
        job.network,
        variant.costs(8, COSTS, "peers"),
        job.schedule,
        COSTS,
    )
    expected = _core.simulate(setup).step_seconds
    assert job.step_seconds(Plan.uniform(codec, job.tensors)) == pytest.approx(expected)


def test_a_plan_that_mixes_codecs_lies_between_those_that_do_not() -> None:
    job = job_of("vgg16", 200 * MBIT)
    dense, lossy = (job.step_seconds(Plan.uniform(codec, job.tensors)) for codec in ("none", "nf2"))
    elements = [tensor.elements for tensor in job.tensors]
    largest = elements.index(max(elements))
    mixed = Plan(tuple("nf2" if i == largest else "none" for i in range(len(elements))))
    seconds = job.step_seconds(mixed)
    assert lossy < seconds < dense
    share = elements[largest] / sum(elements)
    assert seconds == pytest.approx(dense - share * (dense - lossy), rel=0.1)


def test_a_measured_link_gives_payload() -> None:
    network = network_of("peers", 4, 0, Link(bytes_per_second=119.375e6, latency=1e-4))
    assert network.bandwidth == pytest.approx(1e9)


# ---- choices -------------------------------------------------------------------------------------------------


def admitted(job: Job, allowed: frozenset[str] = ALL) -> list[frozenset[str]]:
    return [allowed] * len(job.tensors)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("bandwidth", RATES)
def test_a_choice_is_as_good_as_the_best_fixed_setting(model: str, bandwidth: float) -> None:
    """The best of all fixed ones by brute force in `gradwire plan`'s simulator, for budgets that admit all or some."""
    job = job_of(model, bandwidth)
    profile = layer_profile.find(model)
    for allowed in (ALL, frozenset({"none", "fp16", "int8"})):
        found = choose(job.tensors, admitted(job, allowed), job.step_seconds)
        fixed = [
            simulation.predict(profile, job.network, Variant.parse(codec), job.schedule, COSTS).step_seconds
            for codec in allowed
        ]
        assert found.seconds <= 1.1 * min(fixed)
        assert set(found.plan.codecs) <= allowed
        assert found.seconds <= 1.03 * min(found.predicted.values())


def test_it_does_not_compress_where_that_gains_nothing() -> None:
    job = job_of("resnet50", 100_000 * MBIT)
    found = choose(job.tensors, admitted(job), job.step_seconds)
    assert found.plan == Plan.uniform("none", job.tensors)
    assert "compression would gain nothing" in found.reason


def test_it_says_what_it_compresses_and_what_the_others_would_take() -> None:
    job = job_of("vgg16", 100 * MBIT)
    found = choose(job.tensors, admitted(job), job.step_seconds)
    assert found.plan.worst == "nf2"
    assert "nf2 for" in found.reason
    assert set(found.predicted) == {"none", "fp16"}
    assert f"(none {choice.format_duration(found.predicted['none'])}, fp16 " in found.reason


def test_a_tensor_gets_no_codec_that_its_errors_do_not_admit() -> None:
    job = job_of("vgg16", 100 * MBIT)
    allowed = admitted(job)
    allowed[3] = frozenset({"none", "fp16"})
    found = choose(job.tensors, allowed, job.step_seconds).plan
    assert found.codecs[3] in ("none", "fp16")
    assert found.worst == "nf2"


def test_small_tensors_that_travel_together_have_one_codec() -> None:
    tensors = (
        Tensor("a", 1000, 0, together=True),
        Tensor("b", 10_000_000, 1),
        Tensor("c", 2000, 2, together=True),
        Tensor("bias", 10, 3, free=False),
    )
    allowed = [ALL, ALL, frozenset({"none", "int8"}), frozenset({"none"})]
    for plan in choice.plans(tensors, allowed):
        assert plan.codecs[0] == plan.codecs[2]
        assert plan.codecs[2] in allowed[2]
        assert plan.codecs[3] == "none"


def seconds_of(times: Mapping[str, float]) -> Any:
    return lambda plan: times[plan.worst]


def test_what_is_in_force_stays_until_another_gains_five_percent() -> None:
    tensors = (Tensor("w", 1000, 0),)
    in_force = Plan.uniform("int8", tensors)
    times = {"none": 2.0, "fp16": 1.5, "int8": 1.0, "nf4": 0.97, "nf2": 0.98}
    assert choose(tensors, [ALL], seconds_of(times), in_force).plan == in_force
    assert choose(tensors, [ALL], seconds_of(times | {"fp16": 0.965}), in_force).plan.worst == "fp16"
    times["nf4"] = 0.9
    assert choose(tensors, [ALL], seconds_of(times), in_force).plan == Plan.uniform("nf4", tensors)
    assert choose(tensors, [ALL - {"int8", "nf4"}], seconds_of(times), in_force).plan.worst == "nf2"


def test_of_equals_the_least_lossy_is_taken() -> None:
    tensors = (Tensor("w", 1000, 0),)
    times = dict.fromkeys(CANDIDATES, 1.0) | {"none": 1.005}
    assert choose(tensors, [ALL], seconds_of(times)).plan.worst == "none"
