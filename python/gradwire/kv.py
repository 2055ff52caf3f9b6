"""Key-value stores: MXNet's kvstore interface, with compression in every call.

Example:
    kv = gradwire.kv.create("allreduce")
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.init(3, weight)
    kv.push(3, grad, priority=-1)
    kv.pull(3, out=total)      # without an optimizer: the sum of this round's pushes

`broadcast(name, tensor, root_rank)` and `push_pull(name, tensor, output)` have the names of MXNet's RFC 16795. A store
that gradwire did not make needs only these: see `register`.

Values are arrays of NumPy or PyTorch, of float32, float16, bfloat16, float64, complex64 or complex128. Contiguous
arrays of the first three are sent from and received into their own memory. PyTorch's may be on a CUDA device. They are
then encoded and decoded there, on the current stream, and only payloads cross to the host. If the codec cannot run on
the device, floats cross to the host, and a message on stderr says so once.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import gc
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np

from gradwire import _core
from gradwire.settings import definitions as settings
from gradwire.settings import launch_environment
from gradwire.settings.suggestions import nearest
from gradwire.stores import auto_placement, backend, connect, rendezvous, uncaught_error, worker
from gradwire.stores.backend import AbstractKVStore, register
from gradwire.stores.checkpoint import Restored
from gradwire.stores.rendezvous import KnownAddress, Place
from gradwire.stores.store import KVStore
from gradwire.stores.torch_group import Group
from gradwire.timeline.recorder import folder_of_job

__all__ = [
    "AbstractKVStore",
    "KVStore",
    "Restored",
    "create",
    "join",
    "joined",
    "register",
    "rejoin",
    "stores",
]

OwnName = Literal[
    "local",
    "local_update_cpu",
    "local_allreduce_cpu",
    "device",
    "local_allreduce_device",
    "dist",
    "dist_sync",
    "dist_sync_device",
    "dist_device_sync",
    "dist_async",
    "dist_async_device",
    "dist_device_async",
    "p3",
    "byteps",
    "allreduce",
    "horovod",
    "dist_sync_mpi",
    "allreduce_mpi",
    "nccl",
]

OnFailure = Literal["abort", "continue"]

_open: weakref.WeakSet[KVStore] = weakref.WeakSet()  # those that create() and join() have made
_joined: KVStore | None = None  # the one by which this process is in its job, whoever drops it


def stores() -> list[str]:
    """Lists the names of all stores that create() knows: gradwire's own, then registered ones."""
    return [*connect.names(), *backend.names()]


@overload
def create(
    name: OwnName = "local", *, staleness: int | None = None, on_failure: OnFailure | None = None
) -> KVStore: ...


@overload
def create(name: str, *, staleness: int | None = None, on_failure: OnFailure | None = None) -> Any: ...


def create(name: str = "local", *, staleness: int | None = None, on_failure: OnFailure | None = None) -> Any:
    """Opens a store. All but `local` and `device` join the job that the environment describes (see `gradwire run`).

    | name | sums | start with |
    |---|---|---|
    | `local`, `device`, `local_*` | in this process; `local_*` are MXNet's names | anything |
    | `dist`, `dist_sync*`, `byteps` | on parameter servers | `gradwire run` |
    | `p3` | on parameter servers, in slices of 256 KiB that urgent slices overtake | `gradwire run` |
    | `dist_async*`, `dist_device_async` | not at all: servers apply each push when it arrives | `gradwire run` |
    | `allreduce`, `horovod` | on workers: each owns a share of every gradient | `gradwire run`, `torchrun` |
    | `dist_sync_mpi` | as `allreduce`, over MPI's messages | `mpirun` |
    | `allreduce_mpi` | MPI | `mpirun` |
    | `nccl` | NCCL, on a GPU of each worker's own | `gradwire run`, `torchrun` |

    **dist_async, dist_async_device, dist_device_async.** Servers apply each push when it arrives, one partition
    (GRADWIRE_PARTITION_BYTES) at a time, whatever the other workers do. Call set_optimizer() first. pull() returns the
    current weight; pushpull() returns the weight with this push applied. With a staleness bound, a worker that is ahead
    by more steps waits for the slowest; stats() counts how stale pushes were. In tables (gradwire.sparse) each row is
    applied at once, and row_sparse_pull() and pushpull() wait.

    **allreduce, horovod, nccl.** They join by GRADWIRE_* variables; or by MASTER_ADDR, MASTER_PORT, RANK and
    WORLD_SIZE, as torchrun sets them; or by torch's process group if the environment has no ranks. In `nccl`, arrays
    are still passed on the CPU.

    **allreduce_mpi, nccl.** Every worker must push the same keys in the same order.

    **MPI.** Start with mpirun `--bind-to none`, or the threads of a rank share one core. Other users of MPI in the
    process (mpi4py) must initialise it with MPI_THREAD_MULTIPLE. After a failure, nobody finalises MPI, and mpirun ends
    the job.

    **GRADWIRE_HIERARCHY=host.** The workers of a host sum first, uncompressed, and one of them sends. Compression
    applies to the host's sum. `allreduce_mpi` and `nccl` reject this setting.

    **GRADWIRE_PLACEMENT=auto** (`gradwire run --placement auto`). Workers measure their link, and rank 0 chooses
    between peers, servers and the library that sums, from GRADWIRE_PAYLOAD_BYTES. It logs the reason to stderr. The
    name then only says whether ranks reach each other by MPI (`*_mpi`) or by sockets.

    **on_failure="continue".** The job goes on without workers that die. Calls in progress fail on all ranks with
    MembershipChanged, and the surviving workers join again; gradwire.elastic.run() does that, and restores the last
    committed state on all. A worker that creates a store of a running job waits until it is admitted. If it dies
    meanwhile, the others are not affected. Servers do not keep weights through that, so set_optimizer() raises an
    error.

    A store that was registered (see `register`) is an instance of its class, made without arguments. While
    `gradwire plan -- CMD` profiles a script, every store is `local`. In a process whose role is server or scheduler
    (DMLC_ROLE or GRADWIRE_ROLE), create() serves the job to its end and then exits, as MXNet's scripts expect.

    Args:
        name: one of `stores()`. Default: "local".
        staleness: steps (pushes of a key) that a worker may be ahead of the slowest, for `dist_async*`; the same on all
            ranks. Default: the setting GRADWIRE_STALENESS_BOUND, which is no bound.
        on_failure: what the job does when a worker dies: "abort" ends it on all ranks; "continue" as above. It must
            match the scheduler's, which `gradwire run --on-failure` starts. Default: the setting GRADWIRE_ON_FAILURE,
            which is abort.

    Returns: a KVStore, or the registered class's AbstractKVStore. A store that has joined a job stays open until
    close() or
        the end of the process, even without a reference to it.

    Raises:
        TypeError: name is not a string.
        ValueError: an unknown name (the nearest valid one is named); missing or bad settings; a staleness that is
            negative or for a store that sums; on_failure="continue" for a registered store; this process has joined a
            job already.
        gradwire.TimeoutError: not every rank joined in time; names the missing ones.
        gradwire.TransportError: MPI or NCCL cannot be used here; says why, and what else can.
    """
    if not isinstance(name, str):
        raise TypeError(f"kv.create: name is {name!r}, expected a string such as 'dist_sync'")
    kind = name.lower()
    foreign = None if kind in connect.names() else _foreign(name)
    if staleness is not None:
        _check_staleness(name, staleness)
    if on_failure is not None:
        _check_on_failure(name, on_failure)
    if foreign is not None and on_failure == "continue":
        raise ValueError(
            f"kv.create({name!r}): on_failure='continue' was given, which a store of another maker knows nothing of; "
            "leave it out, or use 'allreduce' or 'dist_sync'"
        )
    if foreign is not None:
        return foreign()
    is_local = connect.is_local(kind)
    if not is_local and (other := joined()) is not None:
        raise ValueError(
            f"kv.create({name!r}): this process has joined its job already, by the store {other.type!r}; use that "
            "one everywhere (a process is one worker)"
        )
    settings.warn_unknown_variables()
    given = settings.read()
    values = of_group = rendezvous.with_ranks_of_the_group(given)
    if staleness is not None:
        values = dataclasses.replace(values, staleness_bound=int(staleness))
    if on_failure is not None:
        values = dataclasses.replace(values, on_failure=on_failure)
    if values.role != "worker":
        connect.serve(values)
    if values.step_profile is not None:  # the script's layers are timed, alone
        kind, is_local = "local", True
    chooses = values.placement == "auto" and not is_local
    with _measured(values, is_local) as begin:
        found = (auto_placement if chooses else connect).open_engine(kind, values)
        store = KVStore(found.store, found.engine, values)
        store.since = found.since
        _enlist(store)
        begin(store)
    if not is_local:
        store.report_joined()
    if not is_local and store.rank == 0:
        launch_environment.tell(store.type, store.num_workers, has_ranks_of_a_group=of_group is not given)
    return store


def join(roll_call: str, rank: int, num_workers: int) -> KVStore:
    """Joins a job that the environment does not describe, as create("allreduce") does.

    Args:
        roll_call: address on which rank 0 serves the rendezvous, the same on all ranks: tcp://host:port with a free
            port.
        rank: rank of this worker, from 0.
        num_workers: number of workers.

    Raises:
        ValueError: this process has joined a job already.
        gradwire.TimeoutError: not every rank joined in time; names the missing ones.
    """
    if (other := joined()) is not None:
        raise ValueError(f"kv.join: this process has joined its job already, by the store {other.type!r}")
    if settings.read().step_profile is not None:
        return create("local")
    return _join_at(KnownAddress(roll_call), settings.read(), rank, num_workers)


def join_group(group: Group, *, timeout: float | None = None) -> KVStore:
    """Joins the job whose workers are the ranks of a torch process group, as create("allreduce") does.

    Args:
        group: the process group.
        timeout: seconds for which this rank waits for the others to join, and for a round, where
            GRADWIRE_RENDEZVOUS_TIMEOUT and GRADWIRE_SLOW_ABORT are not set. Default: as these.

    Raises:
        ValueError: this process has joined a job already; or the group has no store through which ranks find each
            other.
        gradwire.TimeoutError: not every rank joined in time; names the missing ones.
    """
    if (other := joined()) is not None:
        raise ValueError(
            f"kv.join_group: this process has joined its job already, by the store {other.type!r}"
        )
    here = settings.read()
    if here.step_profile is not None:
        return create("local")
    place = rendezvous.of_group(group, here)
    if place is None:
        raise ValueError(
            "kv.join_group: the backend of this process group has no store through which ranks could find each other; "
            "set GRADWIRE_MASTER=tcp://HOST:PORT, alike on all ranks, to a free port of rank 0's host"
        )
    here = _with_timeout(here, timeout)
    if here.timeline is not None and group.ranks:
        here = dataclasses.replace(here, timeline=folder_of_job(here.timeline, group.ranks[0]))
    return _join_at(place, here, group.rank, group.size, group.world_rank)


def _with_timeout(here: settings.Settings, timeout: float | None) -> settings.Settings:
    """Returns the settings with a process group's timeout, in seconds, where the user has given none of these."""
    if timeout is None:
        return here
    names = [name for name in ("rendezvous_timeout", "slow_abort") if not settings.is_given(name)]
    return dataclasses.replace(here, **dict.fromkeys(names, timeout))  # type: ignore[arg-type]


def _join_at(
    place: Place, given: settings.Settings, rank: int, num_workers: int, measured_rank: int | None = None
) -> KVStore:
    settings.warn_unknown_variables()
    here = dataclasses.replace(
        given, master=None, scheduler=None, rank=rank, num_workers=num_workers, num_servers=0
    )
    with _measured(here, is_local=False) as begin:
        store = KVStore("allreduce", connect.open_peers(here, place), here)
        _enlist(store)
        if measured_rank is not None:
            store.measured_rank = measured_rank
        begin(store)
    store.report_joined()
    return store


def _measured(
    values: settings.Settings, is_local: bool
) -> contextlib.AbstractContextManager[Callable[[KVStore], None]]:
    """Opens what GRADWIRE_METRICS asks for before a store joins its job, and gives what begins to measure the store."""
    if values.metrics is None:
        return contextlib.nullcontext(lambda store: None)
    from gradwire import metrics  # with an HTTP server: a tenth of the time that `import gradwire.kv` takes

    return metrics.of_settings(values, is_local=is_local)


def rejoin(store: KVStore) -> KVStore:
    """Leaves a job whose members have changed, and joins it again. gradwire.elastic.run() calls it.

    Closes the store and returns a new one, without the keys and codecs of the old one.

    Raises: gradwire.TransportError: the job has failed; says why.
    """
    generation = store.generation
    with contextlib.suppress(_core.TransportError, _core.TimeoutError):  # of what was under way
        store.close()
    gc.collect()  # stores of earlier generations are in cycles, and each holds memory and a descriptor
    with _measured(store._settings, is_local=False) as begin:
        found = connect.open_engine(store.type, store._settings)
        again = KVStore(store.type, found.engine, store._settings)
        was_missed = found.since > generation + 1  # the others went on meanwhile: it comes as a new one does
        again.since = found.since if was_missed else store.since
        _enlist(again)
        begin(again)
    again.report_joined()
    return again


def _check_on_failure(name: str, on_failure: Any) -> None:
    if on_failure not in ("abort", "continue"):
        raise ValueError(f"kv.create({name!r}): on_failure={on_failure!r}, expected 'abort' or 'continue'")


def _check_staleness(name: str, staleness: Any) -> None:
    if not isinstance(staleness, int | np.integer) or isinstance(staleness, bool) or staleness < 0:
        raise ValueError(f"kv.create({name!r}): staleness={staleness!r}, expected a whole number, 0 or more")
    if staleness > settings.LARGEST:
        raise ValueError(f"kv.create({name!r}): staleness={staleness}, expected at most {settings.LARGEST}")
    kind = name.lower()
    if not connect.applies_at_once(kind):
        at_once = ", ".join(store for store in connect.names() if connect.applies_at_once(store))
        raise ValueError(
            f"kv.create({name!r}): staleness={staleness} was given, and in this store no worker is ahead of another; "
            f"leave it out, or use one of {at_once}"
        )


def _foreign(name: str) -> type[AbstractKVStore]:
    if (kind := backend.find(name.lower())) is not None:
        return kind
    near = nearest(name.lower(), stores())
    meant = f"did you mean {near!r}? " if near else ""
    raise ValueError(f"kv.create: unknown store {name!r}; {meant}valid are {', '.join(stores())}")


def joined() -> KVStore | None:
    """Returns the open store by which this process has joined a job; None if there are only local ones."""
    return _joined if _joined is not None and _joined.is_open else None


def _enlist(store: KVStore) -> None:
    global _joined
    store.is_open = True
    _open.add(store)
    if not store._is_local:
        _joined = store
        uncaught_error.watch_exits()  # close() asks, at exit


def _close_all() -> None:
    """Closes stores that a script left open, and waits for the workers that this process serves.

    If that fails, as a last step that close() ends may, the process fails: the script cannot have noticed.
    """
    try:
        with contextlib.ExitStack() as closing:  # all of them, also where one fails
            for store in list(_open):
                if store.is_open:
                    closing.callback(store.close)
        worker.outlast_all()
    except BaseException:
        traceback.print_exc()
        if uncaught_error.ended_the_script():  # with an exit code of its own
            return
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # the code of an exit that has begun cannot be changed otherwise


atexit.register(_close_all)
