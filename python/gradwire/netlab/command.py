"""The command: `gradwire netlab up|list|exec|down`, or `python -m gradwire.netlab ...`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from ipaddress import IPv4Network
from typing import Annotated, Any

import typer

from gradwire.netlab import remains
from gradwire.netlab.lab import NetHost, NetLab, NetLabUnavailable
from gradwire.terminal.help_page import Group
from gradwire.terminal.json_option import JsonOption, write_json

app = typer.Typer(
    name="netlab",
    cls=Group,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Make virtual hosts: network namespaces on one bridge, with links of a given rate. Needs root.",
)


def _report(record: Any, text: str, file: str | None) -> None:
    write_json(record, file)
    if file != "-":
        print(text)


def _fail(message: str) -> typer.Exit:
    print(message, file=sys.stderr)
    return typer.Exit(1)


def _describe(lab: str) -> dict[str, Any]:
    """Returns what `list` and `up` show of a lab."""
    record = remains.read(lab)
    if record is None:
        return {"lab": lab, "state": "leftover", "hosts": [], "bandwidth": None, "owner": None}
    addresses = [str(address) for address in IPv4Network(record.subnet).hosts()][: record.hosts]
    hosts = [
        asdict(NetHost(lab, i, a)) | {"namespace": remains.namespace_of(lab, i)}
        for i, a in enumerate(addresses)
    ]
    state = "kept" if record.owner is None else "owned" if record.owner_lives() else "leftover"
    return {"lab": lab, "state": state, "hosts": hosts, "bandwidth": record.bandwidth, "owner": record.owner}


def _line(lab: dict[str, Any]) -> str:
    owner = f" by process {lab['owner']}" if lab["owner"] is not None else ""
    hosts = f"{lab['hosts'][0]['address']} to {lab['hosts'][-1]['address']}" if lab["hosts"] else "no record"
    links = lab["bandwidth"] or "unshaped"
    return f"{lab['lab']}  {lab['state']}{owner}  {len(lab['hosts'])} hosts, {hosts}, {links}"


@app.command()
def up(
    hosts: Annotated[int, typer.Option("--hosts", "-n", help="How many hosts, 1 to 250.")] = 2,
    bandwidth: Annotated[str | None, typer.Option(help="Of each link, each way: 100mbit, 1gbit.")] = None,
    loss: Annotated[
        float, typer.Option(help="Share of packets each host drops on arrival, in [0, 1).")
    ] = 0.0,
    json_file: JsonOption = None,
) -> None:
    """Makes a lab that stays until `netlab down`."""
    try:
        lab = NetLab(hosts, bandwidth, loss=loss, keep=True)
    except NetLabUnavailable as error:
        raise _fail(str(error)) from None
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("netlab: ")) from None
    record = _describe(lab.name)
    _report(record, f"{_line(record)}\ntry: gradwire netlab exec {lab.name} 0 ip addr", json_file)


@app.command(name="list")
def list_labs(json_file: JsonOption = None) -> None:
    """Shows the labs of this machine: owned by a living process, kept, or left over."""
    labs = [_describe(lab) for lab in remains.labs()]
    _report(labs, "\n".join(map(_line, labs)) or "no labs", json_file)


@app.command(name="exec", context_settings={"allow_interspersed_args": False})
def execute(
    lab: Annotated[str, typer.Argument(help="The lab's name, as `list` shows it.")],
    host: Annotated[int, typer.Argument(help="0 is the first.")],
    command: Annotated[list[str], typer.Argument(metavar="CMD...", help="What to run there.")],
) -> None:
    """Runs a command on a host, in place of this process."""
    target = NetHost(lab, host, "")
    if not (remains.NETNS / target.namespace).exists():
        record = remains.read(lab)
        if record is not None:
            raise _fail(f"netlab: lab {lab!r} has no host {host}: its hosts are 0 to {record.hosts - 1}")
        raise _fail(f"netlab: there is no lab {lab!r}; labs here: {', '.join(remains.labs()) or 'none'}")
    enter = target.command(command)
    os.execve(enter[0], enter, target.environment())


@app.command()
def down(
    labs: Annotated[list[str] | None, typer.Argument(help="Names, as `list` shows them.")] = None,
    leftovers: Annotated[
        bool, typer.Option("--leftovers", help="Those whose owner has ended, or is not known.")
    ] = False,
    all_labs: Annotated[bool, typer.Option("--all", help="Leftovers, and those made by `up`.")] = False,
    json_file: JsonOption = None,
) -> None:
    """Removes labs, with all that runs in them."""
    here = remains.labs()
    kept = [lab for lab in here if (record := remains.read(lab)) and record.owner is None]
    unknown = [lab for lab in labs or [] if lab not in here]
    if unknown or not (labs or all_labs or leftovers):
        what = f"no lab {', '.join(unknown)}" if unknown else "name the labs, or --leftovers, or --all"
        raise _fail(f"netlab: {what}; labs here: {', '.join(here) or 'none'}")
    ended = remains.leftovers() if leftovers or all_labs else []
    doomed = sorted({*(labs or []), *ended, *(kept if all_labs else [])})
    if left := [lab for lab in doomed if not remains.remove(lab)]:
        raise _fail(f"netlab: something of {', '.join(left)} is busy and was not removed; try again")
    _report({"removed": doomed}, f"removed: {', '.join(doomed) or 'nothing'}", json_file)
