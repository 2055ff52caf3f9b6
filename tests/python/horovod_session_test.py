"""Horovod's session: where it begins in a job whose members change meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gradwire import kv
from gradwire._core import MembershipChanged
from gradwire.horovod import numpy_arrays, session, topology


@pytest.fixture
def stores() -> Iterator[list[kv.KVStore]]:
    """Those of two generations."""
    made = [kv.create("local"), kv.create("local")]
    yield made
    session.end()
    for store in made:
        store.close()


def test_a_death_while_a_rank_begins_is_not_its_own(
    stores: list[kv.KVStore], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    find = topology.find

    def find_among_those_that_live(store: kv.KVStore) -> topology.Topology:
        if store is stores[0]:
            raise MembershipChanged("worker 1 has died")
        return find(store)

    monkeypatch.setattr(topology, "find", find_among_those_that_live)
    monkeypatch.setattr(kv, "rejoin", lambda store: stores[1])
    session.begin(lambda: stores[0], numpy_arrays)
    assert session.current().store is stores[1]
    said = capfd.readouterr().err
    assert "worker 1 has died" in said
    assert "goes on as rank 0 of 1" in said
