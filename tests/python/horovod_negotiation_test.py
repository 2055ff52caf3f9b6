"""Negotiation: what is ready, in which order, and what ranks are told when they differ."""

from __future__ import annotations

import pytest
from gradwire.horovod.negotiation import Negotiation, Response
from gradwire.horovod.request import Announcement, Key, Request, TensorSpec


def allreduce(name: str, *shape: int, dtype: str = "float32", op: str = "sum", **more: object) -> Request:
    return Request("allreduce", name, tensors=(TensorSpec(dtype, shape),), op=op, **more)  # type: ignore[arg-type]


def names(responses: list[Response]) -> list[str]:
    return [response.key.name for response in responses]


def test_names_that_ranks_submit_in_different_orders_are_ready_in_one() -> None:
    negotiation = Negotiation(2)
    ready = negotiation.take([[allreduce("a", 3), allreduce("b", 3)], [allreduce("b", 3), allreduce("a", 3)]])
    assert names(ready) == ["b", "a"]  # the order in which the last rank asked
    assert all(response.error is None and list(response.requests) == [0, 1] for response in ready)


def test_a_name_waits_for_the_last_rank_over_rounds() -> None:
    negotiation = Negotiation(3)
    assert not negotiation.take([[allreduce("a", 3)], [], [allreduce("a", 3)]])
    assert negotiation.missing() == {Key(0, "allreduce", "a"): ([0, 2], [1])}
    assert names(negotiation.take([[], [allreduce("a", 3)], []])) == ["a"]
    assert not negotiation.missing()


def test_the_same_name_may_be_another_kind_of_operation() -> None:
    negotiation = Negotiation(2)
    barrier = Request("barrier", "a")
    assert not negotiation.take([[allreduce("a", 3)], [barrier]])
    ready = negotiation.take([[barrier], [allreduce("a", 3)]])
    assert [response.key.kind for response in ready] == ["barrier", "allreduce"]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (allreduce("a", 4), "rank 0 has float32 of shape (3,) and rank 1 has float32 of shape (4,)"),
        (allreduce("a", 3, dtype="int32"), "rank 1 has int32 of shape (3,)"),
        (allreduce("a", 3, op="max"), "rank 0 has op='sum' and rank 1 has op='max'"),
        (allreduce("a", 3, prescale=0.5), "rank 0 has prescale=1.0 and rank 1 has prescale=0.5"),
        (allreduce("a", 3, codec="2bit exact"), "rank 1 has codec='2bit exact'"),
        (Request("allreduce", "a", op="sum"), "rank 0 has 1 tensors and rank 1 has 0"),
    ],
)
def test_ranks_that_differ_get_one_text_and_go_on(other: Request, text: str) -> None:
    negotiation = Negotiation(2)
    (response,) = negotiation.take([[allreduce("a", 3)], [other]])
    assert response.error is not None
    assert text in response.error
    (again,) = negotiation.take([[allreduce("a", 3)], [allreduce("a", 3)]])
    assert again.error is None


@pytest.mark.parametrize("kind", ["allgather", "alltoall"])
def test_rows_may_differ_in_gathers_and_exchanges_and_nothing_else(kind: str) -> None:
    def request(*shape: int) -> Request:
        return Request(kind, "g", tensors=(TensorSpec("float32", shape),))  # type: ignore[arg-type]

    negotiation = Negotiation(2)
    (rows,) = negotiation.take([[request(3, 2)], [request(5, 2)]])
    assert rows.error is None
    (columns,) = negotiation.take([[request(3, 2)], [request(3, 4)]])
    assert columns.error is not None


def test_a_broadcast_needs_one_root_that_is_a_member() -> None:
    def request(root: int) -> Request:
        return Request("broadcast", "b", tensors=(TensorSpec("float32", (2,)),), root=root)

    negotiation = Negotiation(2)
    (differ,) = negotiation.take([[request(0)], [request(1)]])
    assert "root=0" in str(differ.error)
    (nobody,) = negotiation.take([[request(7)], [request(7)]])
    assert "root_rank=7 is no member" in str(nobody.error)


JOIN = Request("join", "")


def test_ranks_that_have_joined_are_not_waited_for_in_sums() -> None:
    negotiation = Negotiation(3)
    assert not negotiation.take([[allreduce("a", 3)], [allreduce("a", 3)], []])
    (summed,) = negotiation.take([[], [], [JOIN]])
    assert list(summed.requests) == [0, 1]
    assert summed.error is None
    assert not negotiation.take([[], [JOIN], []])
    (joined,) = negotiation.take([[JOIN], [], []])
    assert (joined.key.kind, joined.value) == ("join", 0)
    assert not negotiation.take([[allreduce("b", 3)], [], []])  # all are waited for again


@pytest.mark.parametrize("op", ["min", "max", "product"])
def test_zeros_of_a_joined_rank_would_spoil_what_is_no_sum(op: str) -> None:
    negotiation = Negotiation(2)
    (refused,) = negotiation.take([[allreduce("a", 3, op=op)], [JOIN]])
    assert "rank 1 has called join()" in str(refused.error)


def test_a_gather_fails_while_a_rank_has_joined() -> None:
    negotiation = Negotiation(2)
    gather = Request("allgather", "g", tensors=(TensorSpec("float32", (2,)),))
    (refused,) = negotiation.take([[gather], [JOIN]])
    assert "allgather 'g': rank 1 has called join()" in str(refused.error)


def rows_of(name: str) -> Request:
    specs = (TensorSpec("int64", (2, 1)), TensorSpec("float32", (2, 4)))
    return Request("allgather", f"{name}.rows", tensors=specs, dense_name=name)


def test_zeros_for_a_gradient_that_is_sparse_elsewhere_are_given_back() -> None:
    negotiation = Negotiation(3)
    unused = allreduce("w", 6, 4, is_unused=True)
    assert not negotiation.take([[unused], [], []])  # it may be dense elsewhere
    (early,) = negotiation.take([[], [rows_of("w")], []])
    (late,) = negotiation.take([[], [], [unused]])
    for response, rank in ((early, 0), (late, 2)):
        assert (response.key.kind, response.is_gathered, list(response.requests)) == (
            "allreduce",
            True,
            [rank],
        )
    (gathered,) = negotiation.take([[rows_of("w")], [], [rows_of("w")]])
    assert gathered.error is None
    assert not negotiation.missing()
    (summed,) = negotiation.take([[unused], [allreduce("w", 6, 4)], [unused]])  # dense from now on
    assert summed.error is None
    assert not summed.is_gathered


def test_a_gradient_that_is_dense_and_sparse_fails_on_all() -> None:
    negotiation = Negotiation(3)
    assert not negotiation.take([[allreduce("w", 6, 4)], [], []])
    assert not negotiation.take([[], [rows_of("w")], []])
    responses = negotiation.take([[], [], [rows_of("w")]])
    assert names(responses) == ["w", "w.rows"]
    assert all("dense on rank 0 and sparse on rank 1" in str(response.error) for response in responses)
    assert not negotiation.missing()


def test_process_sets_are_added_used_and_removed() -> None:
    negotiation = Negotiation(3)
    add = Request("add_process_set", "", ranks=(0, 2))
    (added,) = negotiation.take([[add]] * 3)
    assert added.value == 1
    (twice,) = negotiation.take([[add]] * 3)
    assert twice.value is None
    in_set = allreduce("a", 3, process_set=1)
    (summed,) = negotiation.take([[in_set], [], [in_set]])
    assert summed.members == (0, 2)
    assert not negotiation.take([[in_set], [], []])
    removed, orphan = negotiation.take([[Request("remove_process_set", "", ranks=(1,))]] * 3)
    assert removed.value is True
    assert "has been removed" in str(orphan.error)


def test_sets_of_other_ranks_on_other_ranks_are_an_error_on_all() -> None:
    one, other = (Request("add_process_set", "", ranks=ranks) for ranks in ((0,), (1,)))
    (response,) = Negotiation(2).take([[one], [other]])
    assert "ranks=(0,)" in str(response.error)


def test_an_announcement_comes_back_as_it_went() -> None:
    given = Announcement(
        [
            allreduce(
                'w\u00fcrfel "x"', 3, 4, prescale=0.1, codec="2bit:threshold=auto exact", is_unused=True
            ),
            rows_of("table"),
            Request("alltoall", "t", 2, (TensorSpec("int64", ()),), splits=(1, 0), ranks=(4,), root=3),
        ],
        leaves=True,
    )
    assert Announcement.decode(given.encode()) == given
