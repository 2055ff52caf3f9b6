"""GRADWIRE_PLACEMENT=auto: joins the job as peers, measures the link, and stays or moves to the store that suits it.

Every rank measures, rank 0 decides, and tells the others and people. What it decides by is in placement.py.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from gradwire import _core
from gradwire.settings import definitions as settings
from gradwire.settings import endpoints
from gradwire.stores import connect, measured_link, nccl, placement, torch_group
from gradwire.stores.placement import Option

_OVER_MPI = ("dist_sync_mpi", "allreduce_mpi")


def open_engine(name: str, values: settings.Settings) -> connect.Joined:
    """Joins the job as a worker of the store that rank 0 chooses. A collective.

    Args:
        name: what the script asked for. It says how ranks reach each other: over MPI, or by sockets.

    Raises: as kv.create(); ValueError also where workers have no place to meet, and for a store that does not sum.
    """
    if connect.applies_at_once(name):
        raise ValueError(
            f"kv.create({name!r}): GRADWIRE_PLACEMENT=auto chooses who sums, and in this store nobody does: servers "
            "apply each push to the weights; leave GRADWIRE_PLACEMENT out, or use a store such as 'dist_sync'"
        )
    over_mpi = name in _OVER_MPI
    meeting = _mpi_peers(values) if over_mpi else _zmq_peers(name, values)
    choice = _agree(meeting.engine, _options(meeting, values, over_mpi), values)
    if meeting.engine.rank == 0:
        print(f"gradwire: {choice['reason']}", file=sys.stderr, flush=True)
    if choice["store"] == meeting.store:
        return meeting
    return _move(meeting, choice["store"], values)


def _mpi_peers(values: settings.Settings) -> connect.Joined:
    return connect.open_engine("dist_sync_mpi", values)


def _zmq_peers(name: str, values: settings.Settings) -> connect.Joined:
    """The scheduler is left alone: it calls the roll once, and may yet be asked to."""
    if values.master is None and torch_group.current() is None:
        raise ValueError(
            f"kv.create({name!r}): GRADWIRE_PLACEMENT=auto needs a place where workers meet before they choose; start "
            "the script with `gradwire run --placement auto` or torchrun, or set GRADWIRE_MASTER=tcp://host:port"
        )
    # Who started the scheduler has settled whether the job is encrypted: nobody is to be warned.
    is_settled = values.scheduler is not None and values.encrypt == "auto" and values.job_key is None
    encrypt = "off" if is_settled else values.encrypt
    return connect.open_engine("allreduce", replace(values, scheduler=None, num_servers=0, encrypt=encrypt))


def _options(meeting: connect.Joined, values: settings.Settings, over_mpi: bool) -> list[Option]:
    """What this job could use; among equals the first, which moves nobody and keeps sums in rank order."""
    options = [Option(meeting.store, "peers")]
    if over_mpi:
        if values.hierarchy == "off":
            options.append(Option("allreduce_mpi", "native", library="mpi"))
        return options
    if values.scheduler is not None and values.num_servers > 0:
        apart = values.server_hosts == "apart"
        options.append(Option("dist_sync", "servers", values.num_servers, apart))
    if values.hierarchy == "off" and values.encrypt != "on" and _all_have_nccl(meeting.engine):
        options.append(Option("nccl", "native", library="nccl"))
    return options


def _all_have_nccl(engine: _core.Engine) -> bool:
    own = b"" if nccl.why_not() is None else b"-"
    return not any(engine.all_gather("nccl here", own))


def _agree(engine: _core.Engine, options: list[Option], values: settings.Settings) -> dict[str, str]:
    choice = placement.choose(
        options, values.payload_bytes, engine.num_workers, measured_link.measure(engine)
    )
    own = json.dumps({"store": choice.option.store, "reason": choice.reason}).encode()
    told: dict[str, str] = json.loads(engine.all_gather("placement", own)[0])
    return told


def _move(meeting: connect.Joined, store: str, values: settings.Settings) -> connect.Joined:
    if store == "allreduce_mpi":  # first: MPI ends with the last job that uses it, and cannot begin again
        moved = connect.open_engine(store, values)
        _leave(meeting.engine, values)
        return moved
    _leave(meeting.engine, values)
    if store == "nccl" and values.scheduler is None and values.master is not None:
        values = replace(
            values, master=endpoints.next_port(values.master)
        )  # this one's rendezvous may still end
    return connect.open_engine(store, values)


def _leave(engine: _core.Engine, values: settings.Settings) -> None:
    engine.close()
    engine.outlast(values.rendezvous_timeout)
