"""How operations on PyTorch's tensors are submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradwire.horovod import session
from gradwire.horovod.execution import Tensors
from gradwire.horovod.negotiation import Response
from gradwire.horovod.process_sets import ProcessSet
from gradwire.horovod.request import Kind, Request
from gradwire.horovod.submission import identity_of
from gradwire.horovod.torch import arrays, wire

Deliver = Callable[[Sequence[torch.Tensor], Response], Any]


def submit(
    kind: Kind,
    tensors: Sequence[torch.Tensor],
    deliver: Deliver,
    *,
    name: str | None,
    process_set: ProcessSet,
    in_place: bool = False,
    has_targets: bool = True,
    priority: int = 0,
    **agreed: Any,
) -> int:
    """Submits an operation on tensors. Returns the number that poll() and synchronize() take.

    Args:
        kind: of operation.
        deliver: as Tensors.deliver.
        name: None: the next of its kind.
        in_place: results are written to the tensors.
        has_targets: results have the tensors' shapes.
        priority: as Tensors.priority.
        agreed: other attributes of the request.

    Raises:
        TypeError, ValueError: what was given; or an operation of this name is under way.
        HorovodInternalError: the job has failed, or a rank has shut down.
    """
    now = session.require_library(arrays)
    identity = identity_of(kind, process_set)
    if not tensors:
        raise ValueError(f"hvd.{kind}: given no tensor; give a group of at least one")
    given = [wire.staged(kind, tensor) for tensor in tensors]
    targets = given if in_place else [torch.empty_like(tensor) for tensor in given] if has_targets else []
    request = Request(
        kind,
        name if name is not None else now.name(kind, identity),
        identity,
        tuple(arrays.spec_of(tensor) for tensor in given),
        **agreed,
    )
    return now.submit(request, Tensors(given, targets, deliver, priority))
