"""run: calls a training function again, from the last commit, when the job's members have changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from gradwire._core import MembershipChanged
from gradwire.elastic.state import State

Result = TypeVar("Result")


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Wraps func(state, ...): gives all ranks the state of rank 0 and calls it. When a worker dies in it, or others
    come, joins the job again with those that are left and those that have come, goes back to the last commit, gives all
    ranks the state of one that had it, and calls func again.

    What else func raises ends this worker, and so does sys.exit() with an error: the others hear of it and go on
    without it. In a store that was created with
    on_failure="abort", and in `local`, func is called once.

    Raises:
        gradwire.TransportError: the job itself has failed: its scheduler or a server has died, or fewer workers are
            left than GRADWIRE_MIN_WORKERS. Says which.
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
