"""Nothing that is given to a store is lost, whatever it is told meanwhile: random programs, see store_programs.py.

GRADWIRE_STORE_PROGRAMS says how many the long form plays. One that fails is told with its seed and its steps.
"""

from __future__ import annotations

import os

import pytest
from python.random_programs import play_all
from python.store_programs import play, play_seeds

ORDINARY = 200


@pytest.mark.usefixtures("no_job")
@pytest.mark.parametrize("part", range(8))
def test_what_was_given_is_delivered_or_owed(part: int) -> None:
    for seed in range(part, ORDINARY, 8):
        play(seed)


@pytest.mark.soak
@pytest.mark.usefixtures("no_job")
@pytest.mark.parametrize("part", range(8))
def test_it_is_in_many_programs(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    end = ORDINARY + int(os.environ.get("GRADWIRE_STORE_PROGRAMS", "20000"))
    with capsys.disabled():  # it says how far it is
        assert play_all(range(ORDINARY + part, end, 8), play_seeds) == 0
