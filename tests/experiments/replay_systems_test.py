"""experiments/replay: a row's processes are told what the row says, whatever the user's shell has set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from experiments.tiny_replay import Meter, of_row, tiny_plan
from gradwire.launch import job
from gradwire.settings import definitions as settings
from replay import rows, systems
from replay.scale import Scale

SCALE = Scale(100, credit_bytes=2**22)


def told(row: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, str], job.Job]:
    """Starts a row as far as its job; returns the environment of this process meanwhile, and the job."""
    made: list[tuple[dict[str, str], job.Job]] = []

    def note(command: list[str], workers: int, servers: int, env: Mapping[str, str], **options: Any) -> None:
        made.append((dict(os.environ), job.make_job(command, workers, servers, env)))

    monkeypatch.setattr(systems, "run_job", note)
    network: Any = SimpleNamespace(place=None)
    systems.start(systems.Launch(rows.parse(row), SCALE, "folder", network, print, 1.0, None))
    return made[0]


def test_limits_in_bytes_reach_the_servers_and_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = told("gradwire-none-2w2s-loopback", monkeypatch)
    options = made._server_options(None)
    assert options[options.index("--credit-bytes") + 1] == "41943"
    assert options[options.index("--fusion-bytes") + 1] == "2621"
    read = settings.read(made.environment)  # servers inside peers take theirs from the worker's
    assert (read.credit_bytes, read.fusion_bytes) == (41_943, 2621)


def test_what_the_users_shell_has_set_reaches_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {
        "GRADWIRE_SETTINGS": "/nowhere/tuned.json",
        "GRADWIRE_FAULTS": "seed=1,drop=50%",
        "GRADWIRE_CODEC_THREADS": "7",
        "GRADWIRE_STREAMS": "9",
        "GRADWIRE_CHECKSUM": "off",
        "GRADWIRE_ENCRYPT": "on",
        "GRADWIRE_TIMELINE": "parts",
        "PS_VERBOSE": "2",
        "MXNET_KVSTORE_BIGARRAY_BOUND": "5",
        "OMPI_MCA_btl": "self",
    }
    for name, text in users.items():
        monkeypatch.setenv(name, text)
    meanwhile, made = told("gradwire-2bit-2w2s-loopback", monkeypatch)
    assert not users.keys() & meanwhile.keys()
    read = settings.read(made.environment)
    assert (read.faults, read.timeline, read.log_level) == (None, None, "warning")
    assert (read.codec_threads, read.server_threads, read.streams) == (1, 1, 1)
    assert (read.checksum, read.encrypt) == ("auto", "off")
    assert {name: os.environ[name] for name in users} == users  # given back


def test_the_server_program_is_found_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_SERVER_PROGRAM", "/bin/true")
    _, made = told("gradwire-none-2w2s-loopback", monkeypatch)
    assert made.server_program == "/bin/true"


def test_records_hold_what_a_row_was_told() -> None:
    [ours] = of_row(tiny_plan("gradwire-none-2w1s-10gbit"), Meter())
    assert ours["environment"]["GRADWIRE_CREDIT_BYTES"] == "26214"
    assert ours["environment"]["GRADWIRE_ENCRYPT"] == "off"
    [theirs] = of_row(tiny_plan("mxnet-none-2w1s-10gbit"), Meter())
    assert theirs["environment"] == {"MXNET_KVSTORE_BIGARRAY_BOUND": "100000"}
