"""Members of a job that goes on without those that die: how ranks hear of newcomers, and meet again."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire import kv
from gradwire._core import MembershipChanged
from gradwire.horovod import session
from gradwire.horovod.objects import allgather_bytes
from gradwire.horovod.submission import call_together
from gradwire.horovod.torch.lifecycle import init, shutdown


def newcomers() -> int:
    """Returns how many wait to be let in, the same on all ranks; each may have heard of them at another time. A
    collective, where the job goes on without those that die.

    Raises: HorovodInternalError: the job's members have changed, or it has failed.
    """
    store = session.current().store
    if not store.goes_on:
        return 0
    found = allgather_bytes(b"%d" % store.engine.newcomers, "elastic newcomers")
    return max(map(int, found))


def draw_residuals() -> None:
    """Takes what servers have not sent yet into the ranks' residuals, since servers end with what the ranks leave. A
    collective, between steps.

    Raises: HorovodInternalError: the job's members have changed, or it has failed.
    """
    call_together("elastic residuals", session.current().store.engine.draw_residuals)


def require_same(lines: Iterable[str]) -> None:
    """Compares what all ranks must hold alike. A collective.

    Args:
        lines: "WHAT=VALUE" each.

    Raises:
        ValueError: names the first that differs from rank 0's; on all ranks, or, once the members of the job have
            changed, on those that differ, which leave it.
        HorovodInternalError: as draw_residuals().
    """
    text = "".join(f"{line}\n" for line in lines)
    engine = session.current().store.engine
    call_together("elastic shared", lambda: engine.agree("hvd.elastic: what all ranks share", text))


def meet_again() -> None:
    """Initialises anew: with the ranks that are left, where some have died, and with those that wait. A collective.

    Raises: gradwire.TransportError: the job has failed; says why.
    """
    ended = session.current()
    shutdown()
    store, change = ended.store, ended.coordinator.change
    while True:
        try:
            if change is not None:
                store = session.rejoined(store, change)
            elif store.goes_on:
                _let_in(store)
            init()
            return
        except MembershipChanged as another:
            store, change = kv.joined() or store, another


def _let_in(store: kv.KVStore) -> None:
    """Has all ranks leave the job's generation, if any rank knows of newcomers. Between sessions.

    Raises: MembershipChanged: they have, or one has died.
    """
    waiting = max(map(int, store.engine.all_gather("horovod newcomers", b"%d" % store.engine.newcomers)))
    if waiting == 0:
        return
    if store.rank == 0:
        store.engine.regroup(f"{waiting} workers wait to be taken in", True)
    while True:  # the scheduler answers each with MembershipChanged, or the job has failed
        store.engine.all_gather("horovod regroup", b"")


def leave(error: BaseException) -> None:
    """Tells the others that this rank ends with an error, so that they go on without it at once, if the job does."""
    if (store := kv.joined()) is not None:
        store.give_up(error)
