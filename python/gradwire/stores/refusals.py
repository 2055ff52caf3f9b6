"""What is wrong with one rank's call of a collective is an error on all ranks, or the others would wait for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire import _core


@contextlib.contextmanager
def told_to_all(engine: _core.Engine, name: str) -> Iterator[None]:
    """Has the ValueError, TypeError or RuntimeError (PyTorch's, of a tensor that it cannot read) that is raised inside
    be a ValueError, of the same words, on all ranks that make the call. What can fail on one rank belongs inside.

    Once the members of a job have changed it is this rank's alone: the job can go on without it.

    Args:
        engine: of the job.
        name: of the exchange that the call begins with.
    """
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        try:
            engine.refuse(name, str(error))
        except ValueError as on_all:
            if isinstance(error, RuntimeError):
                raise on_all from error
        except RuntimeError:  # a closed store
            pass
        raise
