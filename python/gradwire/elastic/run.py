"""run: calls a training function again, from the last commit, when the job's members have changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from gradwire._core import MembershipChanged
from gradwire.elastic.state import State

Result = TypeVar("Result")


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Wraps func(state, ...): gives all ranks rank 0's state, and calls func.

    When a worker dies or new ones wait, the wrapper joins the job again with the current members. It returns to the
    last commit, gives all ranks the state of a rank that had it, and calls func again. Any other exception in func, and
    sys.exit() with an error, ends this worker; the others are notified and continue without it. With a store created
    with on_failure="abort", and with `local`, func is called once.

    Args:
        func: the training function; its first argument is the State.

    Returns: the wrapped function, which returns what func returns.

    Raises:
        gradwire.TransportError: the job itself has failed: its scheduler or a server died, or fewer workers than
            GRADWIRE_MIN_WORKERS remain. Says which.
        Others: what func raises.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Result:
        joined = True
        while True:
            try:
                if not joined:
                    state.rejoin()
                    joined = True
                state.sync()
                return func(state, *args, **kwargs)
            except MembershipChanged as change:
                state.tell(str(change))
                joined = False
            except (Exception, SystemExit) as error:
                if not isinstance(error, SystemExit) or error.code:
                    state.leave(error)
                raise

    return wrapper
