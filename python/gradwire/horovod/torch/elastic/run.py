"""run: begins a training function again where an operation of all ranks has failed, or the ranks have changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from gradwire._core import MembershipChanged
from gradwire.horovod import session
from gradwire.horovod.errors import HorovodInternalError, HostsUpdatedInterrupt
from gradwire.horovod.torch.elastic import membership
from gradwire.horovod.torch.elastic.state import TorchState

Result = TypeVar("Result")


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Wraps func(state, ...): gives all ranks the state of one, and calls func.

    If an operation fails in it (HorovodInternalError, which every rank gets), the wrapper returns to the last commit,
    initialises again and calls func again. In a job with --on-failure continue, it does so with the current ranks. Any
    other exception in func or in a reset callback, and sys.exit() with an error, ends this rank. In such a job, the
    others are notified and continue without it.

    Args:
        func: the training function; its first argument is the state.

    Returns: the wrapped function, which returns what func returns.

    Raises:
        HorovodInternalError, gradwire.TransportError: the job itself has failed, because a rank died and the job does
        not
            continue without it, too few ranks remain, or a server or the scheduler died: start a new job.
        RuntimeError: no rank that took part in the training is left: start a new job.
        Others: what func raises.
    """

    @functools.wraps(func)
    def wrapper(state: TorchState, *args: Any, **kwargs: Any) -> Result:
        interruption: HorovodInternalError | HostsUpdatedInterrupt | None = None
        while True:
            try:
                if interruption is not None:
                    _begin_anew(state, interruption)
                if not (isinstance(interruption, HostsUpdatedInterrupt) and interruption.skip_sync):
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as failure:
                if _ends_the_job(failure):
                    raise
                interruption = failure
            except HostsUpdatedInterrupt as changed:
                interruption = changed
            except (Exception, SystemExit) as error:
                if not isinstance(error, SystemExit) or error.code:
                    membership.leave(error)
                raise

    return wrapper


def _ends_the_job(failure: HorovodInternalError) -> bool:
    """Whether no other generation can follow. Of a sum that was under way the coordinator may not have heard yet."""
    cause = failure.__cause__
    is_lost = isinstance(cause, ConnectionError | TimeoutError) and not isinstance(cause, MembershipChanged)
    return is_lost or session.current().coordinator.job_has_failed


def _begin_anew(state: TorchState, interruption: HorovodInternalError | HostsUpdatedInterrupt) -> None:
    if isinstance(interruption, HorovodInternalError):
        state.restore()
    membership.meet_again()
    state.on_reset()
