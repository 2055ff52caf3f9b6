"""`gradwire tune`: what it believes and keeps, on response surfaces that are known; see integration/ for real jobs."""

from __future__ import annotations

import io
import itertools
import json
import math
import random
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from gradwire.autotune import command, page, step_times
from gradwire.autotune import search_space as boxes
from gradwire.autotune.duel import REPEATS, Duel, fight
from gradwire.autotune.race import race
from gradwire.autotune.search import FEWEST_TRIALS, Interrupted, Search
from gradwire.autotune.search_space import Box, Knob, Setting
from gradwire.autotune.summary import Outcome, Trial
from gradwire.settings import definitions as settings
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rich.console import Console

Surface = Callable[[Setting], float]
BOX = boxes.of_this_machine(cores=8)
SMALL = Box((Knob("streams", (1, 2, 4), 1, "count"), Knob("fusion_bytes", (0, 262144), 262144, "bytes")))


def everything(box: Box) -> list[Setting]:
    return list(itertools.product(*(knob.values for knob in box.knobs)))


# The box


@given(cores=st.integers(1, 512))
def test_the_defaults_are_in_the_box_of_any_machine(cores: int) -> None:
    box = boxes.of_this_machine(cores=cores)
    assert box.default in box
    assert box.changes(box.default) == {}
    assert box.default == box.of({})
    for knob in box.knobs:
        assert knob.default == getattr(settings.Settings(), knob.name)


@given(data=st.data(), cores=st.integers(1, 64))
def test_neighbours_differ_in_one_knob_and_find_back(data: st.DataObject, cores: int) -> None:
    box = boxes.of_this_machine(cores=cores)
    setting = data.draw(st.tuples(*(st.sampled_from(knob.values) for knob in box.knobs)))
    index = data.draw(st.integers(0, len(box.knobs) - 1))
    by = data.draw(st.sampled_from((-1, 1)))
    there = box.neighbour(setting, index, by)
    if there is None:
        assert setting[index] == box.knobs[index].values[0 if by < 0 else -1]
        return
    assert there in box
    assert [i for i, (a, b) in enumerate(zip(setting, there, strict=True)) if a != b] == [index]
    assert box.neighbour(there, index, -by) == setting


@given(data=st.data())
def test_a_job_reads_from_its_environment_what_was_chosen(data: st.DataObject) -> None:
    setting = data.draw(st.tuples(*(st.sampled_from(knob.values) for knob in BOX.knobs)))
    read = settings.read(BOX.environment(setting))
    assert tuple(getattr(read, knob.name) for knob in BOX.knobs) == setting
    assert BOX.of(BOX.changes(setting)) == setting


def test_codec_threads_have_the_engines_own_choice_in_its_place() -> None:
    assert boxes._thread_counts(2) == (0, 2)
    assert boxes._thread_counts(8) == (1, 2, 0, 8)
    assert boxes._thread_counts(6) == (1, 2, 0, 4)


def test_what_somebody_has_set_is_not_searched() -> None:
    assert "streams" not in boxes.of_this_machine({"streams"}).record()
    with pytest.raises(ValueError, match=r"credit_bytes, .* are set in the environment"):
        boxes.of_this_machine({knob.name for knob in BOX.knobs})


def test_what_is_not_in_the_box_is_refused() -> None:
    with pytest.raises(ValueError, match="is not in the box"):
        BOX.of({"streams": 3})
    with pytest.raises(ValueError, match="is not in the box"):
        BOX.of({"num_workers": 2})
    with pytest.raises(ValueError, match="expected each once, and the default 3 among them"):
        Knob("streams", (1, 2), 3, "count")


# Races


def test_a_race_goes_to_the_fastest() -> None:
    assert race((0,), [(1,), (2,)], lambda setting: {0: 1.0, 1: 0.9, 2: 0.8}[setting[0]]) == (2,)
    assert race((0,), [(1,), (2,)], lambda setting: {0: 1.0, 1: 1.1, 2: 1.2}[setting[0]]) == (0,)


def test_a_race_needs_more_than_noise() -> None:
    assert race((0,), [(1,)], lambda setting: {0: 1.0, 1: 0.997}[setting[0]]) == (0,)


def test_a_race_interleaves_and_turns_the_order() -> None:
    calls: list[int] = []

    def measure(setting: Setting) -> float:
        calls.append(setting[0])
        return {0: 1.0, 1: 0.98, 2: 1.2}[setting[0]]

    assert race((0,), [(1,), (2,)], measure) == (1,)
    assert calls == [0, 1, 2, 1, 0, 0, 1]  # 2 was out after the first round


def test_who_cannot_run_loses_and_is_overtaken() -> None:
    def of(*seconds: float) -> Callable[[Setting], float]:
        return lambda setting: seconds[setting[0]]

    assert race((0,), [(1,)], of(1.0, math.inf)) == (0,)
    assert race((0,), [(1,)], of(math.inf, 1.0)) == (1,)
    assert race((0,), [(1,)], of(math.inf, math.inf)) == (0,)


# Duels


def test_a_duel_is_seven_pairs_and_who_goes_first_alternates() -> None:
    calls: list[Setting] = []

    def measure(setting: Setting) -> float:
        calls.append(setting)
        return {0: 1.0, 1: 0.999}[setting[0]]

    duel = Duel((1,))
    fight(duel, (0,), measure)
    assert duel.is_won
    assert duel.pairs == [(1.0, 0.999)] * REPEATS
    assert calls == [(0,), (1,), (1,), (0,)] * 3 + [(0,), (1,)]
    assert duel.speed.mean == pytest.approx(1 / 0.999)


@pytest.mark.parametrize("lost", range(REPEATS))
def test_a_duel_is_lost_by_one_pair(lost: int) -> None:
    own = iter([0.9] * lost + [1.0])
    duel = Duel((1,))
    fight(duel, (0,), lambda setting: 1.0 if setting == (0,) else next(own))
    assert duel.is_lost
    assert not duel.is_won
    assert len(duel.pairs) == lost + 1


def test_a_duel_that_was_not_ended_is_not_won() -> None:
    assert not Duel((1,), [(1.0, 0.5)] * (REPEATS - 1)).is_won


# The search


def surface(seed: int, box: Box = BOX) -> Surface:
    """A step that is shortest somewhere in the box, and longer the further from there, by other weights for each
    knob; the first two depend on each other."""
    luck = random.Random(seed)
    best = [luck.uniform(-0.5, len(knob.values) - 0.5) for knob in box.knobs]
    weights = [luck.choice((0.0, 0.01, 0.03, 0.08, 0.2)) for _ in box.knobs]
    twist = luck.uniform(-0.25, 0.25) * math.sqrt(weights[0] * weights[1])

    def seconds(setting: Setting) -> float:
        far = [k.values.index(v) - b for k, v, b in zip(box.knobs, setting, best, strict=True)]
        away = sum(weight * abs(x) ** 1.5 for weight, x in zip(weights, far, strict=True))
        return 0.3 * (1 + max(0.0, away + twist * far[0] * far[1]))

    return seconds


def noisy(seconds: Surface, share: float, seed: int) -> Surface:
    luck = random.Random(seed)
    return lambda setting: seconds(setting) * math.exp(luck.gauss(0, share))


@pytest.mark.parametrize("seed", range(30))
def test_the_search_comes_within_two_per_cent_of_the_best(seed: int) -> None:
    true = surface(seed)
    search = Search(BOX, trials=120)
    search.run(noisy(true, 0.01, seed))
    assert true(search.found) <= 1.02 * min(map(true, everything(BOX)))


def test_the_search_finds_the_best_where_nothing_is_noisy() -> None:
    for seed in range(20):
        true = surface(seed)
        search = Search(BOX, trials=200)
        search.run(true)
        assert true(search.found) <= 1.01 * min(map(true, everything(BOX)))


@hypothesis_settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 2**32),
    trials=st.integers(FEWEST_TRIALS, 150),
    share=st.sampled_from((0.0, 0.05, 1.0)),
)
def test_nothing_is_kept_that_has_not_won_seven_pairs(seed: int, trials: int, share: float) -> None:
    """Whatever is measured, pure noise included, and however few launches there are."""
    measured: list[tuple[Setting, float]] = []
    measure = noisy(surface(seed), share, seed)

    def noted(setting: Setting) -> float:
        assert setting in BOX
        measured.append((setting, measure(setting)))
        return measured[-1][1]

    search = Search(BOX, trials)
    search.run(noted)
    assert len(measured) <= trials
    if search.found == BOX.default:
        assert search.won is None
        return
    last = measured[-2 * REPEATS :]
    assert Counter(setting for setting, _ in last) == {BOX.default: REPEATS, search.found: REPEATS}
    for pair in zip(last[::2], last[1::2], strict=True):
        seconds = dict(pair)
        assert seconds[search.found] < seconds[BOX.default]


def test_defaults_stay_where_nothing_is_faster() -> None:
    def seconds(setting: Setting) -> float:
        return 1.0 if setting == BOX.default else 1.1

    search = Search(BOX, 100)
    search.run(noisy(seconds, 0.01, 1))
    assert search.found == BOX.default
    assert search.path == [BOX.default]
    assert search.duels == []


def test_luck_alone_rarely_wins() -> None:
    """A flat surface: 3 duels at most, each won once in 128 times."""
    kept = 0
    for seed in range(100):
        search = Search(BOX, 100)
        search.run(noisy(lambda setting: 1.0, 0.05, seed))
        kept += search.won is not None
    assert kept <= 7  # 2.3 are expected; as many as 8 come once in 500 times


def test_defaults_stay_where_nothing_else_can_run() -> None:
    search = Search(BOX, 100)
    search.run(lambda setting: 1.0 if setting == BOX.default else math.inf)
    assert search.found == BOX.default


@given(after=st.integers(0, 120), seed=st.integers(0, 50))
@hypothesis_settings(deadline=None)
def test_an_interruption_keeps_what_was_proved_and_nothing_else(after: int, seed: int) -> None:
    calls = itertools.count()
    true = surface(seed)

    def measure(setting: Setting) -> float:
        if next(calls) == after:
            raise Interrupted
        return true(setting)

    search = Search(BOX, 100)
    search.run(measure)
    if search.is_interrupted:
        assert search.found == BOX.default
    else:
        assert next(calls) <= after


def test_where_the_simulator_says_to_begin_is_tried_first() -> None:
    spot = BOX.of({"partition_bytes": 16 * 2**20, "credit_bytes": 2**18, "streams": 4})

    def seconds(setting: Setting) -> float:
        return {BOX.default: 1.0, spot: 0.5}.get(setting, 2.0)  # nothing leads there

    alone, told = Search(BOX, 60), Search(BOX, 60)
    alone.run(seconds)
    told.run(seconds, [spot])
    assert alone.found == BOX.default
    assert told.found == spot
    wrong = Search(BOX, 60)
    wrong.run(seconds, [BOX.of({"streams": 2})])
    assert wrong.found == BOX.default


def test_too_few_trials_prove_nothing() -> None:
    with pytest.raises(ValueError, match=f"--trials 19: expected {FEWEST_TRIALS} or more, of which 14"):
        Search(BOX, 19)


# What is written of it


def outcome(box: Box, seconds: Surface, trials: int = 40) -> Outcome:
    done = [Trial("first", box.default, seconds(box.default), 2.0)]
    search = Search(box, trials)

    def measure(setting: Setting) -> float:
        taken = seconds(setting)
        failure = "worker 1 ended with exit code 3" if taken == math.inf else None
        stage = "duel" if search.duels else "search"
        done.append(Trial(stage, setting, None if failure else taken, 2.0, failure))
        return taken

    search.run(measure)
    return Outcome(search, tuple(done), ("a note <b>",))


def two_streams_are_faster(setting: Setting) -> float:
    return {1: 1.0, 2: 0.8, 4: math.inf}[setting[0]] + (0.1 if setting[1] == 0 else 0.0)


def test_the_record_is_a_settings_file(tmp_path: Path) -> None:
    found = outcome(SMALL, two_streams_are_faster)
    record = found.record()
    assert record["settings"] == {"streams": 2}
    assert record["speed"]["mean"] == pytest.approx(1.25)
    assert record["verdict"].startswith(
        "streams 2: 1.25 [1.25, 1.25] times as fast as the defaults, in each of 7"
    )
    assert record["trials"][0] == {
        "stage": "first",
        "settings": {},
        "step_seconds": 1.0,
        "wall_seconds": 2.0,
        "failure": None,
    }
    assert [row["failure"] for row in record["trials"] if row["settings"] == {"streams": 4}] == [
        "worker 1 ended with exit code 3"
    ]
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps(record, allow_nan=False))
    assert settings.read({"GRADWIRE_SETTINGS": str(path)}).streams == 2


def test_defaults_that_stay_are_a_settings_file_too(tmp_path: Path) -> None:
    found = outcome(SMALL, lambda setting: 1.0)
    assert found.record()["settings"] == {}
    assert found.verdict == "The defaults stay: none of 2 other settings was faster."
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps(found.record(), allow_nan=False))
    assert settings.read({"GRADWIRE_SETTINGS": str(path)}) == settings.Settings(settings=str(path))


def test_an_interrupted_outcome_names_the_best_that_is_not_proved() -> None:
    search = Search(SMALL, 40, path=[(1, 262144), (2, 262144)], is_interrupted=True)
    text = Outcome(search, ()).verdict
    assert text == (
        "Interrupted after 0 launches: the defaults stay, for streams 2, the best so far, has not won 7 pairs of "
        "launches."
    )


@pytest.mark.parametrize("file", ["tuned.json", "my tuned $1.json"])
def test_how_to_use_it_can_be_pasted(file: str) -> None:
    console = Console(file=io.StringIO(), width=20)
    command._show(outcome(SMALL, two_streams_are_faster), file, console)
    last = console.file.getvalue().splitlines()[-1]  # type: ignore[attr-defined]
    assert shlex.split(last) == ["use", "it:", "gradwire", "run", "--settings", file, "..."]


def test_the_page_has_every_launch_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    found = outcome(SMALL, two_streams_are_faster)
    path = page.write_page(tmp_path / "report", found, {"command": "gradwire tune <x>"}, found.record())
    text = path.read_text()
    assert "streams 2 against the defaults: won" in text
    assert text.count("<tr>") == 2 + REPEATS + len(found.trials)
    assert "worker 1 ended with exit code 3" in text
    assert "a note &lt;b&gt;" in text
    assert not re.search(r"https?:|src=|@import|url\(", text)


# The clock


def test_the_middle_mean_by_hand() -> None:
    assert step_times.middle_mean([5.0]) == 5.0
    assert step_times.middle_mean([1.0, 2.0, 3.0, 100.0]) == 2.5
    assert step_times.middle_mean([1.0, 3.0] * 4) == 2.0  # steps of two kinds in turns count both


def test_the_slowest_worker_of_each_step_counts(tmp_path: Path) -> None:
    for rank, seconds in enumerate(([0.1, 0.4], [0.3, 0.2])):
        record = {"seconds": seconds, "store": "dist_sync", "compression": "none", "unlike": None}
        step_times.file_of(tmp_path, rank).write_text(json.dumps(record))
    found = step_times.read(tmp_path, 2)
    assert found == step_times.StepTimes((0.3, 0.4), "dist_sync", "none")
    assert step_times.read(tmp_path, 3) is None


def test_steps_that_warm_up_do_not_count(tmp_path: Path) -> None:
    timer = step_times.StepTimer(tmp_path, 0, 1, steps=2)
    ends = [float(n) for n in range(step_times.WARM_UP)]
    timer.write([*ends, ends[-1] + 10, ends[-1] + 30], optimizer=None)
    found = step_times.read(tmp_path, 1)
    assert found is not None
    assert found.seconds == (10.0, 20.0)
