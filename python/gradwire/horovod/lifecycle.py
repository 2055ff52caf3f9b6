"""init() to shutdown(), and what a rank can ask about its job in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gradwire.horovod import process_sets as sets
from gradwire.horovod import session
from gradwire.horovod.array_library import ArrayLibrary
from gradwire.horovod.process_sets import ProcessSet
from gradwire.stores.default_store import default_store


def begin(
    library: ArrayLibrary, comm: Any = None, process_sets: Iterable[ProcessSet] | str | None = None
) -> None:
    """Joins the job, by the store that this process has created, or else by one that is opened. A collective of all
    ranks; no-op where it has been called, and shutdown() not since.

    Args:
        library: of the tensors that operations will be on.
        comm: Horovod's, of some of a launcher's ranks. Ranks are the launcher's here; None, or a list of all.
        process_sets: to add. Horovod's "dynamic" is always so: add_process_set() can be called any time.

    Raises:
        ValueError: comm is of other ranks; a process set that cannot be; a store without exact collectives; init() was
            called for another framework.
        gradwire.TimeoutError: not every rank appeared in time; names those missing.
    """
    if session.exists():
        session.require_library(library)
        return
    session.begin(lambda: default_store("gradwire.horovod"), library)
    everyone = range(size())
    if comm is not None and (not isinstance(comm, Sequence) or sorted(comm) not in ([], list(everyone))):
        session.end()
        raise ValueError(
            f"hvd.init: comm={comm!r} is not all ranks, 0 to {len(everyone) - 1}; start a job of those ranks, or give "
            "them as a process set"
        )
    if process_sets is not None and not isinstance(process_sets, str):
        for process_set in process_sets:
            sets.add_process_set(process_set)


def shutdown() -> None:
    """Leaves: what is under way fails on all ranks, and so does what they submit until all have called init() again.
    Waits until they have heard, which they do with their next operation or their own shutdown(). No-op where init() was
    not called.

    The process stays in its job, so that init() can follow, and leaves it at its end.
    """
    session.end()


def is_initialized() -> bool:
    """Whether init() has been called, and shutdown() not since."""
    return session.exists()


def rank() -> int:
    """This rank's number, from 0. Raises ValueError before init(), as all that follow do."""
    return session.current().topology.rank


def size() -> int:
    """How many ranks the job has."""
    return session.current().topology.size


def local_rank() -> int:
    """This rank's number among those of its host."""
    return session.current().topology.local_rank


def local_size() -> int:
    """How many ranks its host has."""
    return session.current().topology.local_size


def cross_rank() -> int:
    """This rank's number among those with its local_rank()."""
    return session.current().topology.cross_rank


def cross_size() -> int:
    """How many ranks have its local_rank()."""
    return session.current().topology.cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have as many ranks."""
    return session.current().topology.is_homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Has rank 0 note when each of its operations is negotiated and run; a file that was begun before is ended.

    Args:
        file_path: to which stop_timeline(), or shutdown(), writes it, as a trace for chrome://tracing or Perfetto.
        mark_cycles: rounds of negotiation are in it too.

    Raises: OSError: rank 0 cannot write it.
    """
    session.start_timeline(file_path, marks_cycles=mark_cycles)


def stop_timeline() -> None:
    """Writes the file that start_timeline() was given."""
    session.current().timeline.stop()


def mpi_threads_supported() -> bool:
    """False: no MPI is linked here; under mpirun ranks still reach each other, by sockets."""
    return False


def mpi_built() -> bool:
    """False; see mpi_threads_supported()."""
    return False


def mpi_enabled() -> bool:
    """False; see mpi_threads_supported()."""
    return False


def gloo_built() -> bool:
    """False: what is Gloo's in Horovod, gradwire's own transport does here."""
    return False


def gloo_enabled() -> bool:
    """False; see gloo_built()."""
    return False


def nccl_built() -> int:
    """0, as Horovod says where it has no NCCL: tensors of a GPU are summed on the host."""
    return 0


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """False; see nccl_built()."""
    return False


def rocm_built() -> bool:
    """False."""
    return False
