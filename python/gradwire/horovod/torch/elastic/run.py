"""run: begins a training function again where an operation of all ranks has failed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from gradwire.horovod import session
from gradwire.horovod.errors import HorovodInternalError, HostsUpdatedInterrupt
from gradwire.horovod.torch.elastic.state import TorchState
from gradwire.horovod.torch.lifecycle import init, shutdown

Result = TypeVar("Result")


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Wraps func(state, ...): gives all ranks rank 0's state and calls it. Where an operation fails in it
    (HorovodInternalError, which every rank gets), goes back to the last commit, initialises anew and calls it again.

    Raises:
        HorovodInternalError: the job itself has failed, since a rank has died: start a new one.
        Others: what func raises.
    """

    @functools.wraps(func)
    def wrapper(state: TorchState, *args: Any, **kwargs: Any) -> Result:
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError:
                if session.current().coordinator.job_has_failed:
                    raise
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as changed:
                skip_sync = changed.skip_sync
            shutdown()
            init()
            state.on_reset()

    return wrapper
