"""What the processes of a job inherit: from the environment of the launcher, and from variables given for them.

A launcher may itself be a process of another job. What says who that process is, and how its job goes on, is not for
the job inside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from gradwire.launch import rendezvous
from gradwire.settings import encryption

# What says who a process is in a job; a job started from inside another must not inherit it.
_IDENTITY = (
    *("GRADWIRE_ROLE", "GRADWIRE_RANK", "GRADWIRE_NUM_WORKERS", "GRADWIRE_NUM_SERVERS", "GRADWIRE_SCHEDULER"),
    *("DMLC_ROLE", "DMLC_RANK", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER"),
    *("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_WORKER_ID", "DMLC_SERVER_ID", "DMLC_TASK_ID"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
    encryption.VARIABLE,
)
# What says whether a job goes on without those that die: of the one that this process is of, and not of one inside it.
_MEMBERSHIP = ("GRADWIRE_ON_FAILURE", "GRADWIRE_MIN_WORKERS")
# What all processes of a job must be told alike.
_OF_ALL_ROLES = (
    *(*_MEMBERSHIP, "GRADWIRE_ENCRYPT", "GRADWIRE_REPLICAS", "GRADWIRE_PLACEMENT", "GRADWIRE_HIERARCHY"),
    *("GRADWIRE_STREAMS", "GRADWIRE_FAULTS", "GRADWIRE_TIMELINE"),
)


def surroundings() -> dict[str, str]:
    """Returns what a job that is started here has of this process's environment; inside another job, not whether that
    one goes on, nor where its ranks meet."""
    of_another: tuple[str, ...] = _MEMBERSHIP if os.environ.get("GRADWIRE_ROLE") else ()
    if of_another or "TORCHELASTIC_RUN_ID" in os.environ:
        of_another += rendezvous.OF_TORCH
    return {name: text for name, text in os.environ.items() if name not in of_another}


def of_job(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of all processes of a job: those given over surroundings(), without who they are."""
    return _without_identity({**surroundings(), **given})


def of_roles(given: Mapping[str, Mapping[str, str]], servers: int) -> dict[str, dict[str, str]]:
    """Returns the variables that only the processes of a role have, by role, without who they are.

    Args:
        given: variables for a role, "worker" or "server".
        servers: how many are started.

    Raises: ValueError: one must be the same for all processes, or is for servers where none is started.
    """
    for role, variables in given.items():
        for name in variables:
            what = f"run: --env-{role} {name}"  # without its value, which may be a secret
            if name in _OF_ALL_ROLES:
                raise ValueError(f"{what}: all processes of a job must have the same value: give it by --env")
            if role == "server" and not servers:
                raise ValueError(f"{what}: no server is started here: give -s 1 or more, or leave it out")
    return {role: _without_identity(variables) for role, variables in given.items()}


def refuse_key(*given: Mapping[str, str]) -> None:
    """Raises: ValueError: variables given for a job's processes have the job's key in them."""
    if any(encryption.VARIABLE in variables for variables in given):
        raise ValueError(
            f"run: {encryption.VARIABLE} was given for the job's processes (--env), where others could read it: set it "
            "in the environment of `gradwire run` itself, if others are to be added; else each job makes its own"
        )


def _without_identity(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in variables.items() if name not in _IDENTITY}
