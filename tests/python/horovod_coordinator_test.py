"""Coordinator: ranks as threads of this process, each with a coordinator of its own, over a real job in memory."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from gradwire import kv
from gradwire.horovod.coordinator import Coordinator
from gradwire.horovod.errors import HorovodInternalError
from gradwire.horovod.handle import Handle
from gradwire.horovod.negotiation import Response
from gradwire.horovod.request import Key, Request, TensorSpec
from gradwire.horovod.timeline import Timeline
from python.inproc_ranks import DEADLINE, await_event, run_ranks


class Order:
    """An executor that notes in which order operations come, and gathers that from all ranks: a collective each."""

    def __init__(self, store: kv.KVStore) -> None:
        self._store = store
        self.keys: list[Key] = []

    def execute(self, responses: Sequence[Response], handles: Mapping[Key, Handle]) -> None:
        for response in responses:
            self.keys.append(response.key)
            everyone = self._store.engine.all_gather("executed", str(response.key).encode())
            assert len(set(everyone)) == 1
            if (handle := handles.get(response.key)) is not None:
                value = response.value
                handle.complete(lambda value=value: value)


class Rank:
    """A rank's coordinator and what it has run."""

    def __init__(self, store: kv.KVStore) -> None:
        self.store, self.number, self.order = store, store.rank, Order(store)
        self.coordinator = Coordinator(store, self.order, Timeline(), cycle_seconds=0.001)

    def submit(self, name: str, **more: Any) -> Handle:
        spec = more.pop("spec", TensorSpec("float32", (2,)))
        return self.coordinator.submit(Request("allreduce", name, tensors=(spec,), op="sum", **more))

    def ask(self, request: Request) -> Any:
        return self.coordinator.submit(request).wait(self.store)


def on_ranks(count: int, body: Any) -> None:
    def as_rank(store: kv.KVStore) -> None:
        rank = Rank(store)
        body(rank)
        rank.coordinator.shut_down()

    run_ranks(count, as_rank)


def test_operations_run_in_one_order_whatever_the_order_of_submission() -> None:
    orders: dict[int, list[Key]] = {}

    def body(rank: Rank) -> None:
        names = [f"t{i}" for i in range(20)]
        for name in names[:: -1 if rank.number else 1]:
            rank.submit(name)
        rank.ask(Request("barrier", "end"))
        orders[rank.number] = rank.order.keys

    on_ranks(3, body)
    assert len(orders[0]) == 21
    assert orders[0] == orders[1] == orders[2]


def test_a_name_that_is_under_way_cannot_be_submitted_again_until_it_has_ended() -> None:
    submitted = threading.Event()

    def body(rank: Rank) -> None:
        if rank.number == 0:
            handle = rank.submit("x")
            with pytest.raises(ValueError, match="allreduce 'x' was submitted before"):
                rank.submit("x")
            submitted.set()
        else:
            await_event(submitted, "rank 0's submission")
            handle = rank.submit("x")
        handle.wait(rank.store)
        rank.submit("x").wait(rank.store)

    on_ranks(2, body)


def test_a_barrier_passes_while_another_name_waits() -> None:
    seen = threading.Event()

    def body(rank: Rank) -> None:
        early = rank.submit("late") if rank.number == 0 else None
        rank.ask(Request("barrier", "1"))
        if early is not None:
            assert not early.done()
            seen.set()
        else:
            await_event(seen, "rank 0's look")
        late = early or rank.submit("late")
        late.wait(rank.store)

    on_ranks(2, body)


def test_members_of_a_set_do_not_wait_for_a_rank_that_is_silent() -> None:
    done = threading.Event()

    def body(rank: Rank) -> None:
        identity = rank.ask(Request("add_process_set", "", ranks=(0, 1)))
        if rank.number < 2:
            rank.submit("among two", process_set=identity).wait(rank.store)
            done.set()
        else:
            await_event(done, "the operation of ranks 0 and 1")

    on_ranks(3, body)


def test_ranks_that_differ_get_the_same_error_and_go_on() -> None:
    def body(rank: Rank) -> None:
        differs = rank.submit("x", spec=TensorSpec("float32", (2 + rank.number,)))
        with pytest.raises(HorovodInternalError, match="rank 0 has float32 of shape"):
            differs.wait(rank.store)
        rank.submit("x").wait(rank.store)

    on_ranks(2, body)


def test_what_waits_when_a_rank_shuts_down_fails_by_its_name() -> None:
    def body(rank: Rank) -> None:
        if rank.number == 1:
            return  # shuts down
        with pytest.raises(HorovodInternalError, match="rank 1 has shut down"):
            rank.submit("x").wait(rank.store)
        with pytest.raises(HorovodInternalError, match="rank 1 has shut down"):
            rank.submit("y")

    on_ranks(2, body)


def test_an_executor_that_fails_on_one_rank_ends_the_job_on_all() -> None:
    class Fails(Order):
        def execute(self, responses: Sequence[Response], handles: Mapping[Key, Handle]) -> None:
            raise MemoryError("no memory for it")

    def as_rank(store: kv.KVStore) -> None:
        executor = Fails(store) if store.rank == 1 else Order(store)
        coordinator = Coordinator(store, executor, Timeline(), cycle_seconds=0.001)
        request = Request("allreduce", "x", tensors=(TensorSpec("float32", (2,)),), op="sum")
        with pytest.raises(
            HorovodInternalError, match="no memory" if store.rank == 1 else "worker 1 has left"
        ):
            coordinator.submit(request).wait(store)
        assert coordinator.job_has_failed

    run_ranks(2, as_rank)


def test_a_rank_that_others_wait_for_too_long_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADWIRE_SLOW_WARNING", "50ms")
    monkeypatch.setenv("GRADWIRE_SLOW_ABORT", "500ms")

    said: list[str] = []

    def as_rank(store: kv.KVStore) -> None:
        rank = Rank(store)
        with pytest.raises(HorovodInternalError) as failed:
            rank.submit(f"only on {rank.number}").wait(store)
        said.append(str(failed.value))
        assert rank.coordinator.job_has_failed

    run_ranks(2, as_rank)
    named = [re.search(r"ranks \[\d\] have submitted it, ranks \[\d\] have not", text) for text in said]
    # Who gives up first leaves the job, of which the other may hear in the round that it is in.
    assert any(named), said
    assert all(name or "has left the job" in text for name, text in zip(named, said, strict=True)), said
    assert "allreduce 'only on 0' has waited" in capsys.readouterr().err


def test_a_rank_that_submits_nothing_is_told_of_while_the_others_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADWIRE_SLOW_WARNING", "50ms")
    said: list[str] = []

    def body(rank: Rank) -> None:
        if rank.number == 1:
            until = time.monotonic() + DEADLINE
            while "has waited" not in "".join(said):
                assert time.monotonic() < until, "no warning"
                time.sleep(0.02)
                said.append(capsys.readouterr().err)
        rank.submit("x").wait(rank.store)

    on_ranks(2, body)
    assert "worker 0: allreduce 'x' has waited" in "".join(said)
    assert "rank 0 has submitted it, and another rank submits nothing at all" in "".join(said)


class Travels:
    """A ticket of a sum that all ranks have begun, and that is over when told."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self.end, self.wait = self._over.set, self._over.wait

    @property
    def done(self) -> bool:
        return self._over.is_set()


@pytest.mark.parametrize("leave", [Coordinator.shut_down, Coordinator.leave])
def test_who_leaves_waits_for_what_all_have_begun(leave: Callable[[Coordinator], None]) -> None:
    class Sends(Order):
        def execute(self, responses: Sequence[Response], handles: Mapping[Key, Handle]) -> None:
            for handle in handles.values():
                handle.complete(lambda: None, [ticket])  # type: ignore[list-item]
                sent.set()

    ticket, sent, left = Travels(), threading.Event(), threading.Event()

    def as_rank(store: kv.KVStore) -> None:
        coordinator = Coordinator(store, Sends(store), Timeline(), cycle_seconds=0.001)
        coordinator.submit(Request("allreduce", "x", tensors=(TensorSpec("float32", (2,)),), op="sum"))
        await_event(sent, "the sum to be under way")
        leaving = threading.Thread(target=lambda: (leave(coordinator), left.set()))
        leaving.start()
        assert not left.wait(0.3)
        ticket.end()
        await_event(left, "the end")
        leaving.join(DEADLINE)

    run_ranks(1, as_rank)


def test_no_round_is_entered_once_the_process_is_ending() -> None:
    rounds: list[str] = []

    class Counted(Timeline):
        def cycle_begins(self) -> None:
            rounds.append("begun")

    class Slow(Coordinator):
        """Is between its reason for a round and the round while the process ends."""

        def __init__(self, store: kv.KVStore) -> None:
            self.has_a_reason, self.is_leaving = threading.Event(), threading.Event()
            super().__init__(store, Order(store), Counted(), cycle_seconds=0.001)

        def _await_reason(self) -> bool:
            reason = super()._await_reason()
            self.has_a_reason.set()
            await_event(self.is_leaving, "leave()")
            return reason

        def leave(self) -> None:
            leaving = threading.Thread(target=super().leave)
            leaving.start()
            with pytest.raises(HorovodInternalError, match="is ending"):
                self._submit_until_refused()
            self.is_leaving.set()
            leaving.join(DEADLINE)
            assert not leaving.is_alive()

        def _submit_until_refused(self) -> None:
            for number in itertools.count():
                self.submit(Request("barrier", str(number)))

    def as_rank(store: kv.KVStore) -> None:
        coordinator = Slow(store)
        coordinator.submit(Request("barrier", "never"))
        await_event(coordinator.has_a_reason, "the reason for a round")
        coordinator.leave()

    run_ranks(1, as_rank)
    assert not rounds
