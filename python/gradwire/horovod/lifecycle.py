"""init() to shutdown(), and what a rank can ask about its job."""

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
    """Joins the job. A collective of all ranks.

    It uses the store that this process has created, else it opens one: `dist_sync` if the job has servers, `allreduce`
    if not. Does nothing if init() was called already, and shutdown() has not been called since.

    Args:
        library: the array library of the tensors.
        comm: None, or a list of all ranks. Horovod also takes some of a launcher's ranks; here ranks are the
            launcher's. Default: None.
        process_sets: process sets to add. As with Horovod's "dynamic", add_process_set() may be called at any time.
            Default: None.

    Raises:
        ValueError: comm has other ranks; a process set that is not possible; a store without exact collectives; init()
            was called for another framework.
        gradwire.TimeoutError: not every rank joined in time; names the missing ones.
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
    """Leaves the session. Operations in progress fail on all ranks, and so do new ones, until all have called init()
    again.

    It waits until the other ranks have noticed, in their next operation or their own shutdown(). Does nothing if init()
    was not called. The process stays in its job, so that init() can follow, and leaves the job when it exits.
    """
    session.end()


def is_initialized() -> bool:
    """Returns True if init() was called, and shutdown() was not since."""
    return session.exists()


def rank() -> int:
    """Returns this rank's number, from 0. Raises ValueError before init()."""
    return session.current().topology.rank


def size() -> int:
    """Returns the number of ranks of the job. Raises ValueError before init()."""
    return session.current().topology.size


def local_rank() -> int:
    """Returns this rank's number among those of its host, from 0. Raises ValueError before init()."""
    return session.current().topology.local_rank


def local_size() -> int:
    """Returns the number of ranks on this host. Raises ValueError before init()."""
    return session.current().topology.local_size


def cross_rank() -> int:
    """Returns this rank's number among the ranks with its local_rank(). Raises ValueError before init()."""
    return session.current().topology.cross_rank


def cross_size() -> int:
    """Returns how many ranks have its local_rank(). Raises ValueError before init()."""
    return session.current().topology.cross_size


def is_homogeneous() -> bool:
    """Returns True if all hosts have equally many ranks. Raises ValueError before init()."""
    return session.current().topology.is_homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Makes rank 0 record when each of its operations is negotiated and run. Ends an earlier recording.

    Args:
        file_path: file that is written while the job runs: a trace for chrome://tracing or Perfetto.
        mark_cycles: also record rounds of negotiation. Default: False.

    Raises: OSError: rank 0 cannot write the file.
    """
    session.start_timeline(file_path, marks_cycles=mark_cycles)


def stop_timeline() -> None:
    """Ends the file that start_timeline() was given."""
    session.current().timeline.stop()


def mpi_threads_supported() -> bool:
    """Returns False: no MPI is linked here. Under mpirun, ranks reach each other by sockets."""
    return False


def mpi_built() -> bool:
    """Returns False; see mpi_threads_supported()."""
    return False


def mpi_enabled() -> bool:
    """Returns False; see mpi_threads_supported()."""
    return False


def gloo_built() -> bool:
    """Returns False: gradwire's own transport takes the place of Gloo."""
    return False


def gloo_enabled() -> bool:
    """Returns False; see gloo_built()."""
    return False


def nccl_built() -> int:
    """Returns 0, as Horovod without NCCL does: tensors on a GPU are summed on the host."""
    return 0


def ddl_built() -> bool:
    """Returns False."""
    return False


def ccl_built() -> bool:
    """Returns False."""
    return False


def cuda_built() -> bool:
    """Returns False; see nccl_built()."""
    return False


def rocm_built() -> bool:
    """Returns False."""
    return False
