"""experiments/elastic: the table in its page is that of its results; and the learning rate that its arms differ in."""

from __future__ import annotations

import importlib
from argparse import Namespace
from pathlib import Path

import pytest
from python.experiment_files import imported, load

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
FOLDER = EXPERIMENTS / "elastic"


def test_the_page_has_the_table_of_the_results() -> None:
    run = load(FOLDER / "run.py")
    assert run.table(run.read(FOLDER / "results.csv")) in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize(("scale", "expected"), [(True, 0.75 * 0.05), (False, 0.05)])
def test_the_learning_rate_goes_with_the_workers(scale: bool, expected: float) -> None:
    args = Namespace(lr=0.1, lr_schedule="cosine", warmup_steps=1, num_epochs=8, scale_lr=scale)
    with imported(EXPERIMENTS, ["training"]):
        elastic = importlib.import_module("training.elastic")
        assert elastic.rate(args, epochs=4.0, workers=3 / 4) == pytest.approx(expected)
