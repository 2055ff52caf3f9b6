"""What is wrong with one rank's call of a collective is an error on all ranks, or the others would wait for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire import _core


# What a call can raise on one rank alone: by its arguments, or in code of theirs, such as PyTorch's RuntimeError of a
# tensor that it cannot read. A job's own errors are others.
_OF_THE_CALL = (
    *(TypeError, ValueError, RuntimeError, AttributeError, LookupError),
    *(ArithmeticError, BufferError, MemoryError),
)


@contextlib.contextmanager
def told_to_all(engine: _core.Engine, name: str) -> Iterator[None]:
    """Has an error of the call that is raised inside be a ValueError, of the same words, on all ranks that make the
    call; a TypeError stays one on the rank that has it. What can fail on one rank belongs inside.

    Once the members of a job have changed it is this rank's alone: the job can go on without it.

    Args:
        engine: of the job.
        name: of the exchange that the call begins with.
    """
    try:
        yield
    except _OF_THE_CALL as error:
        try:
            engine.refuse(name, str(error) or type(error).__name__)
        except ValueError as on_all:
            if not isinstance(error, TypeError | ValueError):
                raise on_all from error
        except RuntimeError:  # a closed store
            pass
        raise
