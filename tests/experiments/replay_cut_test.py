"""experiments/replay: what travels is the engine's plan at full size, divided, at the homes that the plan gives it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from experiments.tiny_replay import tiny_plan
from gradwire import _core
from gradwire.plan import layer_profile
from gradwire.settings import definitions as settings
from replay import gradwire_worker, rows
from replay.cut import Cut, Key, Piece, declaration
from replay.plan import default
from replay.scale import Scale


@pytest.mark.parametrize("factor", [1, 3.5, 100, 400])
@pytest.mark.parametrize("bytes_per_element", [4, 2, 0.625])
@pytest.mark.parametrize("elements", [65_536, 262_144])
def test_a_frame_is_divided_header_and_payload(
    elements: int, bytes_per_element: float, factor: float
) -> None:
    here = Scale(factor).framed_elements(elements, bytes_per_element)
    full_bytes = elements * bytes_per_element + 112
    if full_bytes / factor > 112 + bytes_per_element:  # else its header alone is longer
        assert here * bytes_per_element + 112 == pytest.approx(full_bytes / factor, abs=bytes_per_element)
    assert 1 <= here <= elements
    assert factor > 1 or here == elements


def test_a_tensor_has_an_element_at_least() -> None:
    assert [Scale(100).elements(size) for size in (1, 49, 151, 1_000_000)] == [1, 1, 2, 10_000]


def small_cut(codec: str = "none") -> Cut:
    plan = tiny_plan(f"gradwire-{codec}-2w2s-10gbit", scale=Scale(1))
    return replace(plan.cut, groups=((10, 1000, 600_000, 70_000), (131_072,)))


def test_layers_are_fused_cut_and_placed_as_the_store_does_it() -> None:
    unit = 65_536
    assert small_cut().all_keys() == [
        Key((3,), (Piece(unit, unit, 1), Piece(70_000 - unit, 70_000 - unit, 1))),
        Key(
            (2,),
            (
                *(Piece(unit, unit, 0) for _ in range(5)),
                *(Piece(unit, unit, 1) for _ in range(4)),
                Piece(10_176, 10_176, 1),
            ),
        ),
        Key((0, 1), (Piece(1010, 1010, 0),)),  # together, on the server with fewer bytes
        Key((4,), (Piece(unit, unit, 0), Piece(unit, unit, 1))),  # the next group, as a job of its own
    ]


def test_two_bit_pieces_are_two_units_at_least() -> None:
    [back, *_] = small_cut("2bit").all_keys()
    assert [piece.full_elements for piece in back.pieces] == [70_000]


@pytest.mark.parametrize("model", layer_profile.KNOWN)
def test_every_layer_travels_whole_and_servers_own_alike(model: str) -> None:
    row = rows.parse(f"gradwire-none-8w4s-10gbit-{model}")
    plan = default(row, layer_profile.find(model))
    keys = plan.cut.all_keys()
    elements = plan.tensors
    owned = [0] * 4
    for key in keys:
        assert sum(piece.full_elements for piece in key.pieces) == sum(
            elements[layer] for layer in key.tensors
        )
        for piece in key.pieces:
            owned[piece.owner] += piece.full_elements
    assert sorted(layer for key in keys for layer in key.tensors) == list(range(len(elements)))
    assert max(owned) <= 1.1 * sum(owned) / 4


def test_ranks_begin_with_other_owners() -> None:
    plan = default(rows.parse("gradwire-none-peers8-10gbit"), layer_profile.find("vgg16"))
    keys = plan.cut.all_keys()
    [fc6] = [number for number, key in enumerate(keys) if 13 in key.tensors]
    for rank in range(8):
        turns = plan.cut.turns(rank)
        assert [sorted(turn) for turn in turns] == [list(range(len(key.pieces))) for key in keys]
        assert [keys[fc6].pieces[turn].owner for turn in turns[fc6][:2]] == [(rank + 1) % 8, (rank + 2) % 8]


def placed_by_the_store(elements: list[int], servers: int) -> list[int]:
    """Returns the server that gets each of these keys, which go whole."""
    whole = _core.PlanLimits(2**62, 1, 1, 1, 2**62, 0)
    plan = _core.plan_step(elements, servers, 0, whole)
    layers = [key.layers[0] for key in plan.keys]
    server_of = {layers[part.key]: part.server for part in plan.parts}
    return [server_of[layer] for layer in range(len(elements))]


@pytest.mark.parametrize("servers", [1, 2, 8])
@pytest.mark.parametrize("seed", range(5))
def test_keys_are_declared_so_that_each_piece_gets_its_owner(servers: int, seed: int) -> None:
    chance = random.Random(seed)
    used = range(servers) if seed else [servers - 1]  # one owner has all, and the others nothing
    elements = [chance.randint(1, 3000) for _ in range(100)]
    owners = [chance.choice(used) for _ in elements]
    declared = declaration(elements, owners, servers)
    homes = placed_by_the_store([one.elements for one in declared], servers)
    found = {one.piece: home for one, home in zip(declared, homes, strict=True) if one.piece is not None}
    assert [found[piece] for piece in range(100)] == owners
    assert len(declared) - 100 <= servers


class Store:
    """A store and its engine: everything that is pushed has its sum at once."""

    num_workers = 2

    def __init__(self) -> None:
        self.engine = self
        self.pushed: list[tuple[int, int]] = []

    def push_pull(self, key: int, grad: Any, total: Any, priority: int) -> Store:
        self.pushed.append((key, priority))
        total[:] = 2 * grad
        return self

    def wait(self, seconds: float) -> bool:
        return True


def test_tensors_that_travel_together_leave_with_the_last_and_are_awaited_once() -> None:
    store: Any = Store()
    key = gradwire_worker.PlannedKey(store, (0, 1), [5, 3], [70, 71])
    sender: Any = None  # asked only where something is missing
    for _ in range(2):
        key.wait(1.0, sender)  # nothing is under way
        assert [key.begin(), key.begin()] == [False, True]
        for piece in (1, 0):
            key.push(piece, -4)
        key.wait(1.0, sender)
        key.wait(1.0, sender)  # for the other tensor
        key.check()
    assert store.pushed == [(71, -4), (70, -4)] * 2


def test_rates_and_limits_in_bytes_are_divided() -> None:
    scale = Scale(100, credit_bytes=2**22)
    assert scale.bandwidth("10gbit") == "100000000bit"
    read = settings.read(scale.engine_settings())
    assert (read.credit_bytes, read.fusion_bytes) == (41_943, 2621)
    assert read.bigarray_bound > 102_764_544
    assert settings.read(Scale(400).engine_settings()).credit_bytes == 655  # of the default 256 KiB


def test_what_waits_in_a_socket_is_divided_though_its_buffer_has_a_least_size() -> None:
    assert Scale(100).socket_buffers() == {
        "tcp_wmem": "4096 16384 41943",
        "tcp_rmem": "4096 32768 62915",
        "tcp_notsent_lowat": "41943",
    }
    assert Scale(400).socket_buffers()["tcp_wmem"].endswith(" 32768")
    assert Scale(400).socket_buffers()["tcp_notsent_lowat"] == "10486"


@pytest.mark.parametrize("factor", [0, 0.5, -1, float("nan"), float("inf")])
def test_a_scale_that_would_enlarge_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="expected a number of at least 1"):
        Scale(factor)
