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
    """Wraps func(state, ...): gives all ranks the state of one and calls it. Where an operation fails in it
    (HorovodInternalError, which every rank gets), goes back to the last commit, initialises anew and calls it again: in
    a job that goes on without those that die, with those that are left and those that have come.

    What else func, or a reset callback, raises ends this rank, and so does sys.exit() with an error; in such a job the
    others hear of it, and go on without it.

    Raises:
        HorovodInternalError, gradwire.TransportError: the job itself has failed, since a rank has died in one that does
            not go on, or too few are left, or a server or the scheduler has died: start a new one.
        RuntimeError: nobody is left who has been trained: likewise.
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
