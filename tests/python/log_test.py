"""What a store reports on stderr: from which level on, and as what."""

from __future__ import annotations

import json
import sys

import pytest
from gradwire.launch.supervisor import run_job
from gradwire.settings import definitions as settings
from gradwire.stores.log import Log

JOIN = (
    "import gradwire as gw, numpy as np\n"
    "kv = gw.kv.create('dist_sync')\n"
    "kv.init('w', np.zeros(4, np.float32))\n"
    "kv.pushpull('w', np.ones(4, np.float32), np.empty(4, np.float32))\n"
)


def test_levels_are_ps_lites_or_ours(capsys: pytest.CaptureFixture[str]) -> None:
    for environment, said in (
        ({}, ["slow"]),
        ({"PS_VERBOSE": "0"}, ["slow"]),
        ({"PS_VERBOSE": "1"}, ["slow", "joined"]),
        ({"PS_VERBOSE": "2"}, ["slow", "joined", "detail"]),
        ({"GRADWIRE_LOG_LEVEL": "error", "PS_VERBOSE": "2"}, []),
    ):
        log = Log.of(settings.read(environment), 3)
        for level, text in (("warning", "slow"), ("info", "joined"), ("debug", "detail")):
            log.say(level, text)  # type: ignore[arg-type]
        assert capsys.readouterr().err == "".join(f"gradwire: worker 3: {text}\n" for text in said)


def test_json_is_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log.of(settings.read({"GRADWIRE_LOG_FORMAT": "json"}), 1)
    log.say("warning", 'key "w"\nwaits', seconds=60)
    (line,) = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert said.pop("time").endswith("Z")
    assert said == {"level": "warning", "role": "worker", "rank": 1, "text": 'key "w"\nwaits', "seconds": 60}


def test_a_job_reports_who_joined_and_what_it_cost() -> None:
    lines: list[tuple[str, str]] = []
    done = run_job(
        [sys.executable, "-c", JOIN],
        workers=2,
        servers=1,
        env={"GRADWIRE_LOG_FORMAT": "json", "PS_VERBOSE": "1"},
        output=lambda line: lines.append((line.role, line.text)),
        timeout=300,
    )
    assert done.exit_code == 0, lines
    said = [(role, json.loads(text)) for role, text in lines]
    assert {role for role, _ in said} >= {"worker", "scheduler"}
    assert all(one["role"] == role for role, one in said)
    joined = [one for role, one in said if role == "worker" and "has joined" in one["text"]]
    assert sorted(one["rank"] for one in joined) == [0, 1]
    assert all((one["store"], one["workers"], one["servers"]) == ("dist_sync", 2, 1) for one in joined)
    left = [one for role, one in said if role == "worker" and "leaves" in one["text"]]
    assert all(one["bytes_raw"] == 16 and one["bytes_sent"] > 16 for one in left)
    assert len(left) == 2


def test_rank_0_tells_at_the_end_what_its_codec_saved() -> None:
    """Else nothing shows that a codec was in use."""
    train = (
        "import gradwire as gw, numpy as np\n"
        "kv = gw.kv.create('allreduce')\n"
        "kv.set_gradient_compression('fp16')\n"
        "kv.init('w', np.zeros(40_000, np.float32))\n"
        "kv.pushpull('w', np.ones(40_000, np.float32), np.empty(40_000, np.float32))\n"
    )
    for environment, tellers in (
        ({}, [0]),
        ({"GRADWIRE_LOG_LEVEL": "error"}, []),
        ({"GRADWIRE_COMPRESSION": "none"}, []),
    ):
        lines: list[tuple[int | None, str]] = []
        done = run_job(
            [sys.executable, "-c", train],
            workers=2,
            servers=0,
            env=environment,
            output=lambda line, lines=lines: lines.append((line.rank, line.text)),  # type: ignore[misc]
            timeout=300,
        )
        assert done.exit_code == 0, lines
        told = [(rank, text) for rank, text in lines if "compressed:" in text]
        assert [rank for rank, _ in told] == tellers
        assert all("160 KB of gradients were sent as 80 KB, 2.0 times less" in text for _, text in told), told


def test_a_fork_of_a_rank_ends_as_it_would_without_a_store() -> None:
    """Its end asked the store what it had sent, which only the process that opened it may."""
    forks = (
        "import os, sys, gradwire as gw\n"
        "kv = gw.kv.create('dist_sync')\n"
        "if kv.rank == 0:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        sys.exit(0)\n"
        "    print('status', os.waitpid(child, 0)[1])\n"
    )
    lines: list[str] = []
    done = run_job(
        [sys.executable, "-c", forks],
        workers=2,
        servers=1,
        output=lambda line: lines.append(line.text),
        timeout=300,
    )
    assert done.exit_code == 0, lines
    assert "status 0" in lines
    assert not any("Traceback" in line for line in lines)


def test_at_debug_each_message_is_told() -> None:
    lines: list[tuple[str, str]] = []
    done = run_job(
        [sys.executable, "-c", JOIN],
        workers=2,
        servers=1,
        env={"PS_VERBOSE": "2"},
        output=lambda line: lines.append((line.role, line.text)),
        timeout=300,
    )
    assert done.exit_code == 0, lines
    for rank in (0, 1):
        own = [text for _, text in lines if text.startswith(f"gradwire: worker {rank}: worker {rank} ")]
        assert any("sends push of key 0 step 0 offset 0, 16 bytes, to server 0" in text for text in own)
        assert any("hears reply of key 0 step 0 offset 0, 16 bytes, from server 0" in text for text in own)
        told = [text for role, text in lines if role == "server"]
        assert any(
            f"server 0 hears push of key 0 step 0 offset 0, 16 bytes, from worker {rank}" in t for t in told
        )
        assert any(
            f"server 0 sends reply of key 0 step 0 offset 0, 16 bytes, to worker {rank}" in t for t in told
        )


def test_below_debug_no_message_is_told() -> None:
    lines: list[str] = []
    done = run_job(
        [sys.executable, "-c", JOIN],
        workers=1,
        servers=1,
        env={"PS_VERBOSE": "1"},
        output=lambda line: lines.append(line.text),
        timeout=300,
    )
    assert done.exit_code == 0, lines
    assert not [line for line in lines if " sends " in line or " hears " in line]
