"""experiments/autotune: what its table says of a record, and that its command line is one of `gradwire tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from python.experiment_files import load

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "autotune"

run: Any = load(FOLDER / "run.py")


def record(won: bool) -> dict[str, Any]:
    pairs = [[1.0, 0.8], [1.2, 0.9], [1.1, 0.7]]
    return {
        "row": "25m none peers",
        "ranks": 2,
        "bandwidth": "1gbit",
        "settings": {"partition_bytes": 4_194_304, "streams": 2} if won else {},
        "speed": {"mean": 1.4, "low": 1.2, "high": 1.6, "count": 3} if won else None,
        "duels": [{"settings": {"streams": 2}, "won": won, "pairs": pairs}],
        "trials": [
            {"settings": {}, "step_seconds": 2.0},
            {"settings": {"streams": 2}, "step_seconds": None},
            {"settings": {}, "step_seconds": 4.0},
        ],
        "load_before_and_after": [0.1, 2.0],
    }


def test_the_table_has_the_pairs_medians_of_a_setting_that_has_won() -> None:
    line = run.markdown([record(won=True)]).splitlines()[-1]
    assert line == (
        "| 25m none peers | partition_bytes 4.19 MB, streams 2 | 1.1 s | 800 ms | 1.400 (1.200-1.600) | 3 | 0.1-2.0 |"
    )


def test_the_table_has_the_defaults_where_none_has_won() -> None:
    line = run.markdown([record(won=False)]).splitlines()[-1]
    assert line == "| 25m none peers | defaults stay | 3 s |  | 1 | 3 | 0.1-2.0 |"


def test_the_page_has_the_table_of_the_results() -> None:
    table = run.markdown(json.loads((FOLDER / "results.json").read_text()))
    assert table in (FOLDER / "README.md").read_text()


def test_only_what_has_won_is_drawn(tmp_path: Path) -> None:
    run.write_chart(tmp_path / "none.svg", [record(won=False)])
    assert not (tmp_path / "none.svg").exists()
    run.write_chart(tmp_path / "one.svg", [record(won=True), record(won=False)])
    text = (tmp_path / "one.svg").read_text()
    assert text.count("tuned") == text.count("defaults") > 0


def test_its_command_is_one_of_gradwire_tune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gradwire import cli
    from gradwire.autotune import command

    def noted(job: Any, trials: int, steps: Any, console: Any) -> Any:
        asked.append((job, trials, steps))
        raise KeyboardInterrupt

    asked: list[Any] = []
    monkeypatch.setattr(command, "_run", noted)
    words = run.command(run.ROWS["25m none servers"], 33, tmp_path, tmp_path / "tuned.json")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        cli.main(words[3:])
    job, trials, steps = asked[0]
    assert (job.workers, job.servers, job.bandwidth, trials, steps) == (2, 2, "1gbit", 33, None)
    assert job.command[2:] == ("25m", "none")
