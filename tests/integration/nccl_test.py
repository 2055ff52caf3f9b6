"""Jobs over NCCL: real processes, each on a GPU of its own, or on one together where there is one.

Skipped, with the reason, where NCCL cannot be used.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from gradwire import _core
from gradwire.stores import nccl
from integration.processes import NOTICE_SECONDS, Run, assert_gone, names, python, run_to_the_end

CODECS = [
    *("none", "fp16", "2bit:threshold=0.5", "2bit:threshold=0.5,reply=2bit"),
    *("2bit:threshold=auto", "2bit:threshold=auto,reply=2bit"),
]

needs_gpu = pytest.mark.skipif(nccl.why_not() is not None, reason=str(nccl.why_not()))
SHARING = {"GRADWIRE_NCCL_SHARE_GPU": "off" if _core.build_info()["cuda_devices"] > 1 else "on"}


@needs_gpu
@pytest.mark.parametrize("code_sums", ["gather", "integers"])
def test_one_rank_gives_what_a_server_gives(code_sums: str, tmp_path: Path) -> None:
    arguments = ("steps=4", "sizes=large", f"codecs={';'.join(CODECS)}")
    by_server = run_to_the_end(
        tmp_path / "server", python("sums_worker.py", "store=dist_sync", *arguments), workers=1, servers=1
    )
    by_nccl = run_to_the_end(
        tmp_path / "nccl",
        python("sums_worker.py", "store=nccl", *arguments),
        workers=1,
        servers=0,
        GRADWIRE_CODE_SUMS=code_sums,
    )
    assert (by_server.code, by_nccl.code) == (0, 0), f"{by_server}\n{by_nccl}"
    assert by_nccl.records()[0]["hashes"] == by_server.records()[0]["hashes"]


@needs_gpu
def test_two_ranks_of_one_gpu_are_told_so(tmp_path: Path) -> None:
    command = python("sums_worker.py", "store=nccl")
    ended = run_to_the_end(tmp_path, command, workers=2, servers=0, GRADWIRE_DEVICE="0")
    assert ended.code != 0
    assert "worker 0 and worker 1 have the same GPU" in ended.err, str(ended)
    assert "GRADWIRE_NCCL_SHARE_GPU=on" in ended.err, str(ended)


@needs_gpu
def test_two_ranks_sum_codes_to_the_bits_of_servers(tmp_path: Path) -> None:
    lossy = [codec for codec in CODECS if codec.startswith("2bit")]
    arguments = ("steps=4", "sizes=large", f"codecs={';'.join(lossy)}")
    by_servers = run_to_the_end(tmp_path / "servers", python("sums_worker.py", "store=dist_sync", *arguments))
    by_nccl = run_to_the_end(
        tmp_path / "nccl",
        python("sums_worker.py", "store=nccl", *arguments),
        servers=0,
        GRADWIRE_CODE_SUMS="integers",
        **SHARING,
    )
    assert (by_servers.code, by_nccl.code) == (0, 0), f"{by_servers}\n{by_nccl}"
    hashes = [record["hashes"] for record in [*by_servers.records(), *by_nccl.records()]]
    assert hashes == 4 * [hashes[0]]


@needs_gpu
def test_a_killed_rank_is_named_by_the_other(tmp_path: Path) -> None:
    endless = python("sums_worker.py", "store=nccl", "steps=100000", "pause=0.01")
    with Run(tmp_path, SHARING, servers=0) as job:
        job.launch(endless)
        job.wait_until_training(2)
        everything = job.all_pids()
        os.kill(job.pids()["worker", 1], signal.SIGKILL)
        ended = job.end(NOTICE_SECONDS)
        assert_gone(everything)
    assert ended.code != 0
    assert names(ended.err, ("worker", 1)), str(ended)
