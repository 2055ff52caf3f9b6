"""Horovod's variables: values, defaults and what a bad one says."""

from __future__ import annotations

import pytest
from gradwire.horovod import knobs


def test_values_and_defaults() -> None:
    assert knobs.read({}) == knobs.Knobs(128 * 2**20, 0.001, None, False)
    given = {
        "HOROVOD_FUSION_THRESHOLD": "0",
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
    }
    assert knobs.read(given) == knobs.Knobs(0, 0.0025, "t.json", True)
    assert knobs.read({"HOROVOD_TIMELINE": "DYNAMIC"}).timeline is None  # start_timeline() will say


@pytest.mark.parametrize(
    ("name", "text"), [("HOROVOD_CYCLE_TIME", "fast"), ("HOROVOD_FUSION_THRESHOLD", "-1")]
)
def test_a_bad_value_is_named(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{name}={text}: expected a number"):
        knobs.read({name: text})
