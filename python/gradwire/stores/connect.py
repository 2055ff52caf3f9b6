"""How a process joins its job: the engine of each store, by what the settings say.

`_STORES` is the one table of stores; `open_engine` is what kv.create() stands on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gradwire import _core
from gradwire.settings import definitions as settings
from gradwire.settings import encryption, endpoints
from gradwire.settings.cores import default_codec_threads
from gradwire.stores import agreed_settings, mpi, nccl, rendezvous
from gradwire.stores.log import Log
from gradwire.stores.rendezvous import Meeting, Place

__all__ = [
    "Joined",
    "applies_at_once",
    "ends_as_one",
    "goes_on",
    "is_local",
    "names",
    "open_engine",
    "open_peers",
    "serve",
    "sums_in_one_order",
]

_member = ""  # this process's name in a job that goes on, which it keeps when it joins again

_P3_SLICE_BYTES = 2**18  # one codec unit of floats: the smallest part that a tensor can be cut into


def _name_this_process() -> None:
    global _member
    _member = secrets.token_hex(8)


_name_this_process()
os.register_at_fork(after_in_child=_name_this_process)  # multiprocessing's ranks have imported this before


def names() -> list[str]:
    """Names every store of gradwire's own."""
    return list(_STORES)


def is_local(name: str) -> bool:
    """Tells whether a store is of this process alone."""
    return _STORES[name] is _open_local


def sums_in_one_order(name: str) -> bool:
    """Tells whether a library sums in a store, so that every rank must push the same keys in the same order."""
    return _STORES[name] in (_join_nccl, _join_mpi_native)


def ends_as_one(name: str) -> bool:
    """Tells whether a store is over MPI, which no process may leave before all others do."""
    return _STORES[name] in (_join_mpi_peers, _join_mpi_native)


def applies_at_once(name: str) -> bool:
    """Tells whether servers apply each push when it arrives, so that there are weights and no sums."""
    return _STORES.get(name) is _join_servers_at_once


def goes_on(name: str, values: settings.Settings) -> bool:
    """Tells whether a store's job goes on without workers that die."""
    return values.on_failure == "continue" and not is_local(name)


class Joined(NamedTuple):
    """A worker's engine, and the store that it is of. since: the generation of the job with which it came, which may be
    an earlier one than the engine's."""

    store: str
    engine: _core.Engine
    since: int


def open_engine(name: str, values: settings.Settings) -> Joined:
    """Joins the job that the settings describe as a store's worker; again where another dies before all have met.

    Raises: as kv.create().
    """
    _require_what_goes_with(values, name)
    missed = 0
    while True:
        try:
            engine = _STORES[name](values, name)
        except _core.MembershipChanged:  # nothing of the user's is in that generation yet
            missed += 1
        else:
            return Joined(name, engine, engine.generation - missed)


def _require_what_goes_with(values: settings.Settings, name: str) -> None:
    _require_mirrored_servers(values, name)
    if goes_on(name, values):
        _require_that_it_can_go_on(name, values)


def _require_that_it_can_go_on(name: str, values: settings.Settings) -> None:
    """Raises ValueError where on_failure=continue is asked for and cannot be had; says what else can."""
    join = _STORES[name]
    why = instead = ""
    if join in (_join_nccl, _join_mpi_peers, _join_mpi_native):
        why, instead = "a library's ranks cannot change", "use the store 'allreduce' or 'dist_sync'"
    elif join is _join_servers_at_once:
        why = "the weights are the servers', which keep them for one generation of the job"
        instead = "use 'dist_sync' with an optimizer on the workers (gradwire.elastic)"
    elif values.hierarchy != "off":
        why, instead = "the workers of a host depend on their leader", "leave GRADWIRE_HIERARCHY out"
    elif values.placement == "auto":
        why, instead = "a placement is chosen once", "leave GRADWIRE_PLACEMENT out, and name a store"
    elif values.replicas:
        why, instead = "servers begin anew in each generation", "leave GRADWIRE_REPLICAS out"
    elif values.scheduler is None:
        why = "rank 0 would serve the rendezvous, and the job would end with it"
        instead = "start it with `gradwire run --on-failure continue`, which has a scheduler of its own"
    if why:
        raise ValueError(
            f"kv.create({name!r}): on_failure=continue cannot be combined with this store: {why}; {instead}"
        )


def serve(values: settings.Settings) -> None:
    """Serves the job to its end as the server or scheduler that this process is, and ends the process.

    Raises: ValueError: there is no address of a scheduler.
    """
    if values.scheduler is None:
        raise ValueError(
            f"a {values.role} needs GRADWIRE_SCHEDULER (or DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT)"
        )
    options = _node_options(values) | {
        "credit_bytes": values.credit_bytes,
        "fusion_bytes": values.fusion_bytes,
        "slow_abort": values.slow_abort,
    }
    if values.timeline is not None:
        options["timeline"] = values.timeline
    try:
        if values.role == "scheduler":
            scheduler = _core.Scheduler(**options)
            encryption.warn_if_open(values.encrypt, values.job_key, scheduler.address)
            scheduler.serve()
        else:
            _serve_generations(options)
    except ConnectionError as error:
        print(f"gradwire-{values.role}: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    sys.exit(0)


def _serve_generations(options: dict[str, Any]) -> None:
    while True:
        with contextlib.suppress(_core.MembershipChanged):  # then it joins the next generation
            return _core.run_server(**options)


def _require_mirrored_servers(values: settings.Settings, name: str) -> None:
    has_own_servers = _STORES[name] in (_join_servers, _join_servers_at_once, _join_servers_in_slices)
    if values.replicas and not has_own_servers and not is_local(name):
        raise ValueError(
            f"kv.create({name!r}): GRADWIRE_REPLICAS={values.replicas} mirrors servers that are processes of their "
            "own, and this store has none; use 'dist_sync' with at least 2 servers (gradwire run -s 2), or "
            "leave GRADWIRE_REPLICAS out"
        )


def _engine_options(values: settings.Settings) -> dict[str, Any]:
    return {
        "partition_elements": values.partition_bytes // 4,
        "shard_bound_elements": values.bigarray_bound,
        "fusion_bytes": values.fusion_bytes,
        "credit_bytes": values.credit_bytes,
        "push_ahead_bytes": values.push_ahead_bytes,
        "codec_threads": values.codec_threads or default_codec_threads(),
        "residual_dtype": values.residual_dtype,
        "code_sums": values.code_sums,
        "slow_warning": values.slow_warning,
        "slow_abort": values.slow_abort,
        "retry_timeout": values.retry_timeout,
        "notify": lambda rank, text: Log.of(values, rank).say(
            "warning", text
        ),  # of exchanges; else take_notices()
    }


def _faults_of(values: settings.Settings) -> _core.Faults | None:
    return _faults(values.faults, values.checksum) if values.faults else None


@functools.cache
def _faults(spec: str, checksum: str) -> _core.Faults:
    """One a process: what it counts goes on when it joins its job again."""
    return _core.Faults(spec, checksum)


def _node_options(values: settings.Settings) -> dict[str, Any]:
    key = encryption.key_of_member(values.encrypt, values.job_key)
    options: dict[str, Any] = {
        "scheduler": values.scheduler,
        "workers": values.num_workers,
        "servers": values.num_servers,
        "streams": values.streams,
        "ipc": values.ipc == "auto",
        "checksum": values.checksum,
        "rendezvous_timeout": values.rendezvous_timeout,
        "liveness_timeout": values.liveness_timeout,
        "hierarchy": values.hierarchy,
        "replicas": values.replicas,
        "log_messages": values.log_level == "debug",
    }
    if values.on_failure == "continue":
        options |= {
            "member": _member,
            "agreed": agreed_settings.lines(values),
            "min_workers": values.min_workers,
            "regroup_timeout": values.regroup_timeout,
            "regroup_patience": values.slow_abort,
        }
    optional = {
        "rank": values.rank,
        "host": values.host_id,
        "bind_host": values.bind_host,
        "interface": values.interface,
        "key": None if key is None else key.text,
        "faults": _faults_of(values),
    }
    return options | {name: value for name, value in optional.items() if value is not None}


def _open_local(values: settings.Settings, name: str) -> _core.Engine:
    return _core.local_engine(**_engine_options(values))


def _join_servers(values: settings.Settings, name: str, **options: Any) -> _core.Engine:
    if values.scheduler is None:
        workers = values.num_workers
        if workers > 1:
            why = f"and the {workers} workers of this job have no servers"
            servers = f"`gradwire run -n {workers} -s {workers} python script.py`"
            sums = "" if applies_at_once(name) else "use the store 'allreduce', which needs none, or "
            instead = f"{sums}start the script with {servers}"
        else:
            why = "so there is no job to join"
            instead = (
                "start the script with `gradwire run -n 2 -s 2 python script.py`, or use the store 'local'"
            )
        raise ValueError(f"kv.create({name!r}): GRADWIRE_SCHEDULER is not set, {why}; {instead}")
    return _core.connect_engine(**_node_options(values), **_engine_options(values), **options)


def _join_servers_at_once(values: settings.Settings, name: str) -> _core.Engine:
    if values.hierarchy != "off":
        raise ValueError(
            f"kv.create({name!r}): GRADWIRE_HIERARCHY={values.hierarchy} cannot be combined with this store: each "
            "worker's push is applied by itself; leave GRADWIRE_HIERARCHY out, or use the store 'dist_sync'"
        )
    return _join_servers(values, name, staleness_bound=values.staleness_bound)


def _join_servers_in_slices(values: settings.Settings, name: str) -> _core.Engine:
    """As P3 (Jayarajan et al., MLSys 2019): all but small tensors are cut into slices that urgent ones overtake."""
    slices = dataclasses.replace(
        values,
        partition_bytes=min(values.partition_bytes, _P3_SLICE_BYTES),
        bigarray_bound=min(values.bigarray_bound, _P3_SLICE_BYTES // 4),
    )
    return _join_servers(slices, name)


def _meet(values: settings.Settings, name: str) -> Meeting:
    """Where this worker of a job without servers joins it, and what its engine needs."""
    if values.scheduler is not None:
        return Meeting(None, _node_options(values) | _engine_options(values))
    place = rendezvous.find(values)
    if place is None:
        raise ValueError(
            f"kv.create({name!r}): there is no job to join; start the script with `gradwire run -n 2 python "
            "script.py`, torchrun or srun, or mpirun on one host, or call torch.distributed.init_process_group() "
            "first, or set MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE"
        )
    return _meet_at(place, values)


def _meet_at(place: Place, values: settings.Settings) -> Meeting:
    def options() -> dict[str, Any]:
        name = "worker 0, which serves the rendezvous,"
        return _node_options(values) | _engine_options(values) | {"scheduler_name": name}

    return place.meet(values, options)


def _join_peers(values: settings.Settings, name: str) -> _core.Engine:
    return _connect_peers(_meet(values, name))


def open_peers(values: settings.Settings, place: Place) -> _core.Engine:
    """Joins, as the store `allreduce` does, a job whose ranks meet at a place; rank and size are in the settings.

    Raises: as kv.create().
    """
    _require_what_goes_with(values, "allreduce")
    return _connect_peers(_meet_at(place, values))


def _connect_peers(meeting: Meeting) -> _core.Engine:
    with _cure_of(meeting):
        return _core.connect_peers(meeting.scheduler, **meeting.options)


@contextlib.contextmanager
def _cure_of(meeting: Meeting) -> Iterator[None]:
    """Where ranks of several machines do not find each other, the address is what a user can change."""
    try:
        yield
    except _core.TimeoutError as error:
        if endpoints.host_of(meeting.options["scheduler"]) in ("127.0.0.1", "::1", "localhost"):
            raise  # all are on this machine
        raise _core.TimeoutError(f"{error}; if that address is wrong, {rendezvous.CURE} there") from None


def _refuse_hierarchy(values: settings.Settings, name: str, library: str, instead: str) -> None:
    if values.hierarchy != "off":
        raise ValueError(
            f"kv.create({name!r}): GRADWIRE_HIERARCHY={values.hierarchy} cannot be combined with this store: {library} "
            f"sums what every rank gives; use the store {instead!r}, or leave GRADWIRE_HIERARCHY out"
        )


def _refuse_encryption(values: settings.Settings, name: str, library: str, instead: str) -> None:
    if values.encrypt == "on":
        raise ValueError(
            f"kv.create({name!r}): GRADWIRE_ENCRYPT=on cannot be combined with this store: {library} carries what "
            f"ranks exchange and does not encrypt it; use the store {instead!r}, or leave GRADWIRE_ENCRYPT out"
        )


def _refuse_faults(values: settings.Settings, name: str, library: str, instead: str) -> None:
    if values.faults is not None:
        raise ValueError(
            f"kv.create({name!r}): GRADWIRE_FAULTS={values.faults} cannot be combined with this store: {library} moves "
            f"the gradients; use the store {instead!r}, or leave GRADWIRE_FAULTS out"
        )


def _join_nccl(values: settings.Settings, name: str) -> _core.Engine:
    _refuse_encryption(values, name, "NCCL", "allreduce")
    _refuse_hierarchy(values, name, "NCCL", "allreduce")
    _refuse_faults(values, name, "NCCL", "allreduce")
    shares = values.nccl_share_gpu == "on"
    if shares:
        nccl.share_gpus()
    if (reason := nccl.why_not()) is not None:
        raise _core.TransportError(
            f"kv.create({name!r}): {reason}; use the store 'allreduce', which needs neither NCCL nor a GPU and has "
            "the same codecs"
        )
    if values.scheduler is not None and values.num_servers > 0:
        raise ValueError(
            f"kv.create({name!r}): this job has {values.num_servers} servers, and NCCL needs none; start it with "
            f"`gradwire run -n {values.num_workers} -s 0 python script.py`"
        )
    meeting = _meet(values, name)
    with _cure_of(meeting):
        return _core.connect_nccl(
            meeting.scheduler, nccl.library(), nccl.device(values), shares, **meeting.options
        )


def _join_mpi(connect: Any, values: settings.Settings, name: str) -> _core.Engine:
    _refuse_encryption(values, name, "MPI", "allreduce")
    options: dict[str, Any] = {
        "checksum": values.checksum,
        "rendezvous_timeout": values.rendezvous_timeout,
        "liveness_timeout": values.liveness_timeout,
        "hierarchy": values.hierarchy,
        "streams": values.streams,
        "ipc": values.ipc == "auto",
        "log_messages": values.log_level == "debug",
    }
    optional = {"host": values.host_id, "faults": _faults_of(values), "rank": values.rank}
    options |= {name: value for name, value in optional.items() if value is not None}
    if (key := encryption.key_of_member(values.encrypt, values.job_key)) is not None:
        options["key"] = key.text  # of the links within a host
    engine: _core.Engine = connect(mpi.library(), **options, **_engine_options(values))
    if engine.num_workers == 1 < values.num_workers:
        engine.close()
        raise ValueError(
            f"kv.create({name!r}): this process is alone in MPI's world, though its job has {values.num_workers} "
            f"workers; start the script with `mpirun -np {values.num_workers} --bind-to none python script.py`"
        )
    return engine


def _join_mpi_peers(values: settings.Settings, name: str) -> _core.Engine:
    return _join_mpi(_core.connect_mpi, values, name)


def _join_mpi_native(values: settings.Settings, name: str) -> _core.Engine:
    _refuse_hierarchy(values, name, "MPI", "dist_sync_mpi")
    _refuse_faults(values, name, "MPI", "dist_sync_mpi")
    return _join_mpi(_core.connect_mpi_native, values, name)


_STORES: dict[str, Callable[[settings.Settings, str], _core.Engine]] = {
    "local": _open_local,
    "local_update_cpu": _open_local,
    "local_allreduce_cpu": _open_local,
    "device": _open_local,
    "local_allreduce_device": _open_local,
    "dist": _join_servers,
    "dist_sync": _join_servers,
    "dist_sync_device": _join_servers,
    "dist_device_sync": _join_servers,
    "dist_async": _join_servers_at_once,
    "dist_async_device": _join_servers_at_once,
    "dist_device_async": _join_servers_at_once,
    "p3": _join_servers_in_slices,
    "byteps": _join_servers,
    "allreduce": _join_peers,
    "horovod": _join_peers,
    "dist_sync_mpi": _join_mpi_peers,
    "allreduce_mpi": _join_mpi_native,
    "nccl": _join_nccl,
}
