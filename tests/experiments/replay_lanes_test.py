"""experiments/replay: the lanes in which pieces wait for a codec and a server, and who sends them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "experiments"))

from replay.lanes import Job, Lanes, Sender


def passed(lanes: Lanes) -> list[tuple[float, int]]:
    """Lets time run to the end; returns when each piece had passed, and which it was."""
    found = []
    while (now := lanes.next_at()) is not None:
        found += [(round(now, 6), job.piece) for job in lanes.advance(now)]
    return found


def test_free_stages_let_the_front_layer_go_first() -> None:
    lanes = Lanes(servers=1)
    for piece, urgency in enumerate([2, 0, 1, 0]):
        lanes.add(Job(0, urgency, piece, 0, 1.0, 0.0, 0.0))
    assert [job.piece for job in lanes.advance(1.0)] == [1, 3, 2, 0]
    assert lanes.next_at() is None


def test_a_piece_waits_for_the_codec_and_then_for_its_server() -> None:
    lanes = Lanes(servers=2)
    for piece, server in enumerate([0, 0, 1]):
        lanes.add(Job(0, 0, piece, server, 1.0, codec_seconds=1.0, server_seconds=10.0))
    assert lanes.advance(1.0) == []
    assert passed(lanes) == [(12.0, 0), (14.0, 2), (22.0, 1)]


def test_an_urgent_piece_overtakes_those_that_wait_for_the_codec() -> None:
    lanes = Lanes(servers=1)
    for piece in range(3):
        lanes.add(Job(0, 5, piece, 0, 0.0, 1.0, 0.0))
    assert lanes.advance(0.0) == []  # the first is with the codec now
    lanes.add(Job(0, 0, 9, 0, 0.5, 1.0, 0.0))
    assert [piece for _, piece in passed(lanes)] == [0, 9, 1, 2]


@pytest.mark.parametrize(("codec", "server"), [(0.7, 0.2), (0.2, 0.7), (0.5, 0.5), (0.0, 0.4)])
def test_the_order_of_stages_does_not_change_when_pieces_leave(codec: float, server: float) -> None:
    one, other = Lanes(1), Lanes(1)
    for piece, ready in enumerate([0.0, 0.1, 0.1, 1.9, 2.0, 5.0]):
        one.add(Job(0, piece, piece, 0, ready, codec, server))
        other.add(Job(0, piece, piece, 0, ready, server, codec))
    assert passed(one) == passed(other)


def test_a_sender_that_cannot_push_says_so_to_who_adds() -> None:
    def push(job: Job) -> None:
        raise RuntimeError(f"no room for piece {job.piece}")

    sender = Sender(1, push)
    sender.add([Job(0, 0, 7, 0, 0.0, 0.0, 0.0)])
    sender._thread.join(300)
    with pytest.raises(RuntimeError, match="no room for piece 7"):
        sender.add([])
