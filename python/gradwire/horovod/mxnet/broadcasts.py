"""broadcast: every member gets one rank's tensor."""

from __future__ import annotations

from typing import Any

from gradwire.horovod.mxnet.submission import start
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.mxnet.no_autograd import no_autograd


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives every member the tensor of one, to the bit. Has no gradient.

    Args:
        tensor: of the same shape and dtype on all ranks.
        root_rank: whose; a rank of the job, not a place in the set.
        name, priority, process_set: as in allreduce().

    Returns: a new NDArray, as allreduce(); errors too are ranks that differ in root_rank, and a root that is no member.

    Raises: as allreduce().
    """
    return _start(tensor, root_rank, name, priority, process_set, in_place=False)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As broadcast(), in place. Returns tensor."""
    return _start(tensor, root_rank, name, priority, process_set, in_place=True)


@no_autograd
def _start(
    tensor: Any,
    root_rank: int,
    name: str | None,
    priority: int,
    process_set: ProcessSet,
    *,
    in_place: bool,
) -> Any:
    return start(
        "broadcast",
        [tensor],
        name=name,
        process_set=process_set,
        in_place=in_place,
        priority=priority,
        root=int(root_rank),
    )[0]
