"""Local and cross ranks, by hand-written hosts."""

from __future__ import annotations

from gradwire.horovod import topology


def test_ranks_of_two_hosts_that_come_in_turns() -> None:
    places = [topology.of(["a", "b", "a", "b"], rank) for rank in range(4)]
    assert [place.local_rank for place in places] == [0, 0, 1, 1]
    assert [place.cross_rank for place in places] == [0, 1, 0, 1]
    assert all((p.local_size, p.cross_size, p.is_homogeneous) == (2, 2, True) for p in places)


def test_hosts_with_unlike_numbers_of_ranks() -> None:
    places = [topology.of(["a", "a", "b"], rank) for rank in range(3)]
    assert [(p.local_rank, p.local_size) for p in places] == [(0, 2), (1, 2), (0, 1)]
    assert [(p.cross_rank, p.cross_size) for p in places] == [(0, 2), (0, 1), (1, 2)]
    assert not places[0].is_homogeneous
