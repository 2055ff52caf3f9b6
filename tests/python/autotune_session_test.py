"""`gradwire tune`: a session from its first launch to its outcome, with jobs that are only said to have run; and where
the simulator has it begin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from gradwire.ab.experiment import Conditions
from gradwire.autotune import launches, start
from gradwire.autotune import search_space as boxes
from gradwire.autotune.launches import Job, Launch, Launcher, LaunchFailed, steps_for
from gradwire.autotune.search import Interrupted
from gradwire.autotune.search_space import Setting
from gradwire.autotune.session import Session
from gradwire.autotune.step_times import StepTimes
from gradwire.compress import Compression
from gradwire.plan import layer_profile, simulation

JOB = Job(("train",), 2, 0, None)
BOX = boxes.of_this_machine(cores=4)


class Said(Launcher):
    """Launches nothing: steps take what `seconds` says of a setting."""

    seconds: Callable[[Setting], float]
    store: str | None = "allreduce"
    unlike: str | None = None
    asked: list[int]

    def launch(self, setting: Setting, steps: int) -> Launch:
        self.asked.append(steps)
        taken = self.seconds(setting)
        return Launch(
            setting, StepTimes((taken,) * steps, self.store, "none", self.unlike), 3.0 + steps * taken
        )


class Notebook:
    """Notes what a session tells."""

    def __init__(self) -> None:
        self.expected: tuple[int, float, int] | None = None
        self.texts: list[str] = []
        self.stages: list[str] = []

    def expects(self, launches: int, seconds: float, steps: int) -> None:
        self.expected = (launches, seconds, steps)

    def says(self, text: str) -> None:
        self.texts.append(text)

    def started(self, stage: str, setting: Setting) -> None:
        self.stages.append(stage)

    def finished(self, trial: Any) -> None:
        assert trial.stage == self.stages[-1]


def session(
    seconds: Callable[[Setting], float], steps: int | None = None, store: str | None = "allreduce"
) -> Session:
    launcher = Said(JOB, BOX, Conditions())
    launcher.seconds, launcher.store, launcher.asked = seconds, store, []
    return Session(launcher, 60, steps, Notebook())  # type: ignore[arg-type]


def two_streams(setting: Setting) -> float:
    return 0.4 if BOX.changes(setting).get("streams") == 2 else 0.5


def test_it_tells_beforehand_how_long_it_will_take() -> None:
    one = session(two_streams)
    outcome = one.run()
    book: Any = one.watcher
    assert book.expected == (60, 3.0 + 10 * 0.5, 10)  # 5 s of steps that take 0.5 s
    assert one.launcher.timeout == 60.0
    assert book.texts == ["beginning at the defaults: without --bandwidth the link is not known"]
    assert book.stages[0] == "first"
    assert book.stages[-14:] == ["duel"] * 14
    assert outcome.record()["settings"] == {"streams": 2}
    assert len(outcome.trials) == len(book.stages)


def test_short_steps_are_timed_more_often_and_a_number_that_was_asked_for_holds() -> None:
    quick = session(lambda setting: 0.02)
    quick.run()
    assert quick.launcher.asked[:2] == [10, 40]  # type: ignore[attr-defined]
    asked = session(two_streams, steps=7)
    asked.run()
    assert set(asked.launcher.asked) == {7}  # type: ignore[attr-defined]
    assert [steps_for(seconds) for seconds in (0.001, 0.25, 9.0)] == [40, 20, 10]


@pytest.mark.parametrize("store", [None, "local", "device"])
def test_a_job_that_sends_nothing_is_refused(store: str | None) -> None:
    with pytest.raises(ValueError, match="sends nothing that settings could speed up"):
        session(two_streams, store=store).run()


def test_a_job_whose_steps_are_not_alike_is_refused() -> None:
    one = session(two_streams)
    one.launcher.unlike = "LocalStepOptimizer"  # type: ignore[attr-defined]
    with pytest.raises(
        ValueError, match="trains with LocalStepOptimizer, so some of its steps send far more"
    ):
        one.run()


@pytest.mark.parametrize("stop", [Interrupted, KeyboardInterrupt])
@pytest.mark.parametrize("after", [0, 1, 5, 40])
def test_ctrl_c_keeps_the_launches_that_there_were(stop: type[BaseException], after: int) -> None:
    def seconds(setting: Setting) -> float:
        if len(one.done) == after:
            raise stop
        return two_streams(setting) * (1 + 0.05 * (len(one.done) % 3))  # no setting wins seven pairs of these

    one = session(seconds)
    outcome = one.run()
    assert outcome.search.is_interrupted
    assert len(outcome.trials) == after
    assert outcome.record()["settings"] == {}
    assert outcome.verdict.startswith(f"Interrupted after {after} launches: the defaults stay")


def test_a_job_that_fails_at_first_is_an_error_and_later_ends_the_search() -> None:
    def seconds(setting: Setting) -> float:
        if len(one.done) == fails_at:
            raise LaunchFailed("tune: worker 1 ended with exit code 3", 3, ())
        return two_streams(setting)

    fails_at = 0
    one = session(seconds)
    with pytest.raises(LaunchFailed):
        one.run()
    fails_at = 4
    one = session(seconds)
    outcome = one.run()
    assert len(outcome.trials) == 4
    assert "the search ended early" in outcome.record()["notes"][0]
    assert one.watcher.texts[-1] == f"NOTE: {outcome.notes[0]}"  # type: ignore[attr-defined]


# Where it begins


def test_what_the_simulator_refuses_costs_its_advice_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[Setting]:
        raise ValueError("simulation: 0 bytes a second")

    monkeypatch.setattr(start, "starts", refuse)
    one = session(two_streams)
    assert BOX.changes(one.run().search.found) == {"streams": 2}
    assert "beginning at the defaults: simulation: 0 bytes a second" in one.watcher.texts  # type: ignore[attr-defined]


def test_a_setting_under_which_nothing_can_be_started_costs_itself_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("Too many open files")

    monkeypatch.setattr(launches, "run_job", refuse)
    launcher = Launcher(JOB, BOX, Conditions())
    other = BOX.of({"streams": 2})
    launch = launcher.launch(other, 10)
    assert (launch.times, launch.failure) == (None, "Too many open files")
    with pytest.raises(LaunchFailed, match="tune: Too many open files"):
        launcher.launch(BOX.default, 10)


def test_the_simulator_needs_to_know_the_link_the_store_and_the_codec() -> None:
    job = replace(JOB, bandwidth="1gbit")
    peers = start.network_of(job, "allreduce")
    assert (peers.placement, peers.workers, peers.servers, peers.bandwidth) == ("peers", 2, 0, 1e9)
    servers = start.network_of(replace(job, servers=None), "dist_sync")
    assert (servers.placement, servers.servers) == ("servers", 2)
    for given, store in ((JOB, "allreduce"), (job, "nccl"), (job, "allreduce_mpi"), (job, None)):
        with pytest.raises(start.NoStart):
            start.network_of(given, store)
    assert str(start.variant_of("2bit:threshold=auto,reply=exact")) == "2bit"
    assert str(start.variant_of("2bit:threshold=0.5,reply=2bit")) == "2bit:reply=2bit"
    assert str(start.variant_of("none")) == str(start.variant_of(None)) == "none"
    for given in ("topk", "int8", "none"):
        assert str(start.variant_of(str(Compression.parse(given)))) == given
    for given in ("topk:ratio=0.1", "fp16:reply=fp32", "2bit:reply=fp32"):
        with pytest.raises(start.NoStart, match=r"simulated as|is not planned"):
            start.variant_of(str(Compression.parse(given)))


def test_it_begins_at_the_best_of_the_box_in_the_simulator_or_at_the_defaults() -> None:
    layers = layer_profile.find("vgg16")
    variant = start.variant_of("none")
    slow = simulation.Network("servers", 2, 1, 1e9, 50e-6)
    small = boxes.Box(tuple(knob for knob in BOX.knobs if knob.name == "credit_bytes"))
    for box in (BOX, small):
        found = start.best_of(layers, box, slow, variant)
        assert all(setting in box for setting in found)
        assert box.default not in found
    alone = boxes.Box(tuple(knob for knob in BOX.knobs if knob.name == "streams"))
    assert start.best_of(layers, alone, slow, variant) == []  # the simulator knows no streams


def test_it_begins_with_smaller_parts_where_the_first_layer_waits_behind_others() -> None:
    """ResNet-50 on 8 workers and 2 servers at 10 Gbit: 96 % of the bound by default, 99 % at best."""
    network = simulation.Network("servers", 8, 2, 10e9, 50e-6)
    (found,) = start.best_of(layer_profile.find("resnet50"), BOX, network, start.variant_of("none"))
    changes = BOX.changes(found)
    assert changes["partition_bytes"] < 2**20
    assert changes.get("credit_bytes", 2**18) <= 2**18
    assert not {"streams", "codec_threads"} & changes.keys()
