"""experiments/mxnet_lenet: one script of MXNet's, on its own servers and on gradwire's, ends with the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gradwire.bench.hosts import Network
from integration.mxnet_environment import require_mxnet
from python.experiment_files import load

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "mxnet_lenet"
experiment = load(FOLDER / "run.py")


def train(arm: str, network: Network) -> dict[str, Any]:
    chosen = next(each for each in experiment.ARMS if each.name == arm)
    flags = ["--num-examples", "640", "--warm-up", "1"]
    record: dict[str, Any] = experiment.train(chosen, 3, network, require_mxnet(), flags)
    return record


@pytest.mark.parametrize("codec", ["", " 2bit"])
def test_weights_are_those_of_mxnets_own_servers(codec: str) -> None:
    with Network.open(experiment.WORKERS, experiment.SERVERS, None, colocated=False) as network:
        theirs, ours = train(f"MXNet{codec}", network), train(f"gradwire{codec}", network)
    assert ours["weights"] == theirs["weights"]
    assert ours["accuracy"] == theirs["accuracy"]


def test_an_arm_that_overrides_the_codec_trains_with_it() -> None:
    with Network.open(experiment.WORKERS, experiment.SERVERS, None, colocated=False) as network:
        plain, half = train("gradwire", network), train("gradwire fp16", network)
    assert half["weights"] != plain["weights"]


def test_the_page_has_the_table_of_the_results() -> None:
    results = json.loads((FOLDER / "results.json").read_text())
    assert experiment.markdown(results) in (FOLDER / "README.md").read_text()
    assert [result["link"] for result in results] == list(experiment.LINKS)
