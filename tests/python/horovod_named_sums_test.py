"""NamedSums: which sums get keys of the store, on ranks as threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gradwire import kv
from gradwire.horovod import named_sums, numpy_arrays
from gradwire.horovod.named_sums import NamedSums
from gradwire.horovod.negotiation import Response
from gradwire.horovod.request import Request, TensorSpec
from python.inproc_ranks import run_ranks

RANKS = 2
FLOATS = TensorSpec("float32", (3,))


def response(name: str, *specs: TensorSpec, members: int = RANKS, **more: Any) -> Response:
    request = Request("allreduce", name, tensors=specs or (FLOATS,), **{"op": "sum", **more})
    return Response(request.key, {0: request}, tuple(range(members)))


def on_ranks(body: Callable[[NamedSums, kv.KVStore], None]) -> None:
    run_ranks(RANKS, lambda store: body(NamedSums(store, numpy_arrays), store))


def names(found: list[Response]) -> list[str]:
    return [each.request.name for each in found]


def test_an_exact_sum_has_a_key_from_its_second_time_on() -> None:
    def body(sums: NamedSums, store: kv.KVStore) -> None:
        for step in range(3):
            asked = [
                response("a"),
                response(f"step {step}"),
                response("b", FLOATS, TensorSpec("float32", ())),
            ]
            assert names(sums.taken(asked)) == ([] if step == 0 else ["a", "b"])
        given = [np.full(3, 1.5, np.float32), np.float32([store.rank]).reshape(())]
        out = [np.zeros(3, np.float32), np.zeros((), np.float32)]
        for ticket in sums.send(asked[2].request, given, out, 0, 0.5):
            store.wait_until(ticket.wait)
        np.testing.assert_array_equal(out[0], np.full(3, 1.5, np.float32))
        assert out[1] == 0.5

    on_ranks(body)


def test_a_name_has_keys_of_one_shape() -> None:
    def body(sums: NamedSums, store: kv.KVStore) -> None:
        shapes = [(3,), (4,), (4,), (3,), (3,), (4,)]
        taken = [bool(sums.taken([response("ragged", TensorSpec("float32", shape))])) for shape in shapes]
        assert taken == [False, False, True, False, False, True]

    on_ranks(body)


@pytest.mark.parametrize(
    "other",
    [
        response("x", TensorSpec("float16", (3,))),
        response("x", TensorSpec("int32", (3,))),
        response("x", FLOATS, TensorSpec("float64", (3,))),
        response("x", TensorSpec("float32", (0,))),
        response("x", members=1),
        response("x", op="max"),
        response("x", op="adasum"),
    ],
    ids=lambda other: f"{other.request.tensors[-1]}, {other.request.op} of {len(other.members)}",
)
def test_what_rounds_would_sum_otherwise_has_none(other: Response) -> None:
    def body(sums: NamedSums, store: kv.KVStore) -> None:
        assert not any(sums.taken([other]) for _ in range(3))

    on_ranks(body)


def test_a_store_whose_servers_answer_with_weights_sums_by_collectives() -> None:
    def body(sums: NamedSums, store: kv.KVStore) -> None:
        assert not sums.taken([response("x")])
        assert sums.taken([response("x")])
        store.set_optimizer("sgd", learning_rate=0.1)
        assert not sums.taken([response("x")])

    on_ranks(body)


def test_names_that_are_numbered_for_ever_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_sums, "_MOST_SEEN", 10)

    def body(sums: NamedSums, store: kv.KVStore) -> None:
        for step in range(30):
            sums.taken([response("loss"), response(f"metric.{step}")])
        assert len(sums._names.seen) == 10
        assert list(sums._names.exact) == ["loss"]
        assert not sums.taken([response("metric.3")])  # it comes as if for the first time
        assert sums.taken([response("metric.29")])

    on_ranks(body)


def test_any_name_goes() -> None:
    def body(sums: NamedSums, store: kv.KVStore) -> None:
        odd = ["a\tb", "a\nb", "a\\tb", "", "'\"", "\ud800", "ü"]
        for codec in ("", "int8 int8"):
            asked = [response(name, codec=codec) for name in odd]
            sums.taken(asked)
            assert names(sums.taken(asked)) == odd

    on_ranks(body)
