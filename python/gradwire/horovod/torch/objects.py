"""Python objects from one rank to all, or from all to all.

They are pickled (by cloudpickle where it is installed, so that lambdas travel too): the ranks of a job trust each
other. Tensors that are to arrive as they are, and no code, travel by broadcast_parameters().
"""

from __future__ import annotations

import importlib
import pickle
from typing import Any

import torch

from gradwire.horovod import session
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.torch.broadcasts import broadcast_
from gradwire.horovod.torch.gathers import allgather


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Gives every member one rank's object.

    Args:
        obj: anything that can be pickled; of other ranks than the root it does not matter.
        root_rank: a rank of the job.
        name, process_set: as in allreduce(). Default of name: broadcast_object.

    Returns: obj itself on the root, elsewhere a copy of the root's.

    Raises: as broadcast(); on the root what cannot be pickled (before anything is sent).
    """
    name = "broadcast_object" if name is None else name
    is_root = session.current().store.rank == root_rank
    data = _octets(obj) if is_root else torch.empty(0, dtype=torch.uint8)
    size = broadcast_(torch.tensor([data.numel()]), root_rank, f"{name}.size", process_set)
    if not is_root:
        data = torch.empty(int(size), dtype=torch.uint8)
    broadcast_(data, root_rank, f"{name}.bytes", process_set)
    return obj if is_root else pickle.loads(data.numpy().tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Gives every member the objects of all, in rank order.

    Args:
        obj: anything that can be pickled.
        name, process_set: as in allreduce(). Default of name: allgather_object.
    """
    name = "allgather_object" if name is None else name
    data = _octets(obj)
    sizes = allgather(torch.tensor([data.numel()]), f"{name}.sizes", process_set)
    gathered = allgather(data, f"{name}.bytes", process_set)
    parts = gathered.split(sizes.tolist())  # type: ignore[no-untyped-call]
    return [pickle.loads(part.numpy().tobytes()) for part in parts]


def _octets(obj: Any) -> torch.Tensor:
    try:
        pickler: Any = importlib.import_module("cloudpickle")
    except ImportError:
        pickler = pickle
    return torch.frombuffer(bytearray(pickler.dumps(obj)), dtype=torch.uint8)
