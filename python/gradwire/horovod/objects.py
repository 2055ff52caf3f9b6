"""Python objects from one rank to all, or from all to all.

They are pickled (by cloudpickle where it is installed, so that lambdas travel too), so whoever can say something to a
rank can run code in it: the ranks of a job trust each other, and security.md says who else is kept out. Tensors travel
by broadcast_parameters(), as they are.
"""

from __future__ import annotations

import importlib
import pickle
from typing import Any

import numpy as np

from gradwire.horovod import session
from gradwire.horovod.execution import Tensors
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.request import Request
from gradwire.horovod.submission import identity_of


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Gives every member one rank's object.

    Args:
        obj: anything that can be pickled; ignored on ranks other than the root.
        root_rank: rank of the job.
        name: name by which ranks match operations. Default: "broadcast_object".
        process_set: the ranks that take part, as in allreduce().

    Returns: obj itself on the root, a copy of it elsewhere.

    Raises: as broadcast(); on the root also what pickling raises, before anything is sent.
    """
    name = "broadcast_object" if name is None else name
    is_root = session.current().store.rank == root_rank
    data = _pickled(obj) if is_root else b""
    size = _from_root(f"{name}.size", len(data).to_bytes(8, "little"), root_rank, process_set)
    found = _from_root(
        f"{name}.bytes", data if is_root else bytes(int.from_bytes(size, "little")), root_rank, process_set
    )
    return obj if is_root else pickle.loads(found)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Gives every member the objects of all members, in rank order.

    Args:
        obj: anything that can be pickled.
        name: name by which ranks match operations. Default: "allgather_object".
        process_set: the ranks that take part, as in allreduce().

    Returns: the list of objects.
    """
    name = "allgather_object" if name is None else name
    return [pickle.loads(data) for data in allgather_bytes(_pickled(obj), name, process_set)]


def allgather_bytes(data: bytes, name: str, process_set: ProcessSet = global_process_set) -> list[bytes]:
    """Gives every member the bytes of all members, in rank order. For gradwire's own messages."""
    sizes = _from_all(f"{name}.sizes", len(data).to_bytes(8, "little"), process_set)
    gathered = _from_all(f"{name}.bytes", data, process_set)
    ends = np.cumsum(np.frombuffer(sizes, "<u8")).tolist()
    return [gathered[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def _from_root(name: str, data: bytes, root: int, process_set: ProcessSet) -> bytes:
    """Gives every member the root's bytes; all have as many."""
    now, identity = session.current(), identity_of("broadcast", process_set)
    values = now.library.from_bytes(data)
    request = Request("broadcast", name, identity, (now.library.spec_of(values),), root=int(root))
    tensors = Tensors([values], [values], lambda results, _: now.library.to_bytes(results[0]))
    found: bytes = now.ask(request, tensors)
    return found


def _from_all(name: str, data: bytes, process_set: ProcessSet) -> bytes:
    """Gives every member the bytes of all, one behind the other."""
    now, identity = session.current(), identity_of("allgather", process_set)
    values = now.library.from_bytes(data)
    request = Request("allgather", name, identity, (now.library.spec_of(values),))
    found: bytes = now.ask(
        request, Tensors([values], [], lambda results, _: now.library.to_bytes(results[0]))
    )
    return found


def _pickled(obj: Any) -> bytes:
    try:
        pickler: Any = importlib.import_module("cloudpickle")
    except ImportError:
        pickler = pickle
    data: bytes = pickler.dumps(obj)
    return data
