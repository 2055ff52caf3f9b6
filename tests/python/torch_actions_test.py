"""What people do to a model between steps, in random programs, by two ranks and by one process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import pytest
import torch
from python.random_programs import play_all
from python.torch_actions import make_program, run_programs

SOAK = int(os.environ.get("GRADWIRE_ACTION_PROGRAMS", "10000"))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_no_program_makes_a_difference(first: int) -> None:
    assert run_programs([make_program(seed) for seed in range(first, first + 50)]) == 50


@pytest.mark.soak
def test_no_program_of_many_makes_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():  # it says how far it is
        assert play_all(range(200, SOAK), lambda seeds: run_programs(map(make_program, seeds))) == 0
