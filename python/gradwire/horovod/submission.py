"""Operations of all frameworks: process sets, poll(), synchronize(), join() and barrier()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradwire.horovod import session
from gradwire.horovod.handle import Handle
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.request import Request


def identity_of(verb: str, process_set: ProcessSet) -> int:
    """Returns the id of a process set that this rank is a member of.

    Raises: ValueError: it is not a member, or the set has not been added.
    """
    if process_set.process_set_id is None:
        raise ValueError(
            f"hvd.{verb}: {process_set} has not been added; call hvd.add_process_set() on all ranks"
        )
    if not process_set.included():
        raise ValueError(
            f"hvd.{verb}: rank {session.current().store.rank} is no member of {process_set}; members alone call it"
        )
    return process_set.process_set_id


def poll(handle: int) -> bool:
    """Returns True if synchronize() would return at once.

    Raises: ValueError: there is no such handle, or it has been synchronized.
    """
    return _handle(handle).done()


def synchronize(handle: int) -> Any:
    """Waits for an operation. After a Ctrl-C it can be called again.

    Returns: the result: a tensor, or what the operation's own function returns.

    Raises:
        ValueError: there is no such handle, or it has been synchronized.
        HorovodInternalError: the operation has failed, on all ranks; says why.
    """
    now, waited_for = session.current(), _handle(handle)
    try:
        result = waited_for.wait(now.store)
    except KeyboardInterrupt:  # it is under way, and may be waited for again
        raise
    except BaseException:
        now.handles.pop(handle, None)
        raise
    now.handles.pop(handle, None)
    return result


def _handle(number: int) -> Handle:
    if (found := session.current().handles.get(number)) is None:
        raise ValueError(
            f"hvd: {number!r} is no handle of an operation that is under way; use each handle once, between init() and "
            "shutdown()"
        )
    return found


def join(device: int = -1) -> int:
    """Tells the others that this rank has no data left. Their allreduces continue as if it gave zeros, until all have
    joined.

    Meanwhile every other operation but barrier() fails, on the ranks that call it.

    Args:
        device: not used. Default: -1.

    Returns: the rank that joined last, the same on all ranks.
    """
    return session.current().join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every member of the set has called it. Operations that were submitted before may still be in
    progress.
    """
    now = session.current()
    identity = identity_of("barrier", process_set)
    now.ask(Request("barrier", now.name("barrier", identity), identity))


def call_together(name: str, function: Callable[[], Any]) -> Any:
    """Runs a function that calls collectives of the store, on all ranks at the same place among their operations.

    Raises: what the function raises.
    """
    return session.current().ask(Request("call", name), function)
