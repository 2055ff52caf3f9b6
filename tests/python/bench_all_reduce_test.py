"""`gradwire bench allreduce`: plans, formulas, peers' own checks, and whole runs on loopback. No times are asserted."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gradwire.bench import all_reduce, hosts, peer_openmpi, power_sgd, rounds, stores
from gradwire.bench.launches import BenchFailed, Launch
from gradwire.bench.page import facts_of
from gradwire.bench.plan import UNSHAPED, AllReducePlan
from gradwire.bench.system import PeerUnavailable
from gradwire.stores import nccl

FIELDS = {
    *("system", "codec", "reply", "ranks", "servers", "bytes", "bandwidth", "seconds_min", "seconds_median"),
    *("wire_limit_seconds", "bytes_sent_per_rank", "cpu_seconds_per_gb", "checksum", "encrypted", "seconds"),
    *("label", "store", "tensors", "fused", "payload_checksum", "machine_cpu_seconds_per_gb", "speed_over"),
}
OURS = stores.STORES[0].name


def bench(*arguments: str, expected_code: int = 0) -> str:
    command = [sys.executable, "-m", "gradwire.cli", "bench", "allreduce", "--ranks", "2", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == expected_code, done.stderr
    return done.stdout if expected_code == 0 else done.stderr


def records(*arguments: str) -> list[dict[str, Any]]:
    small = ("--bytes", "1MB", "--repeat", "2", "--launches", "1")
    return json.loads(bench(*small, *arguments, "--json", "-"))


def plan(**options: Any) -> AllReducePlan:
    return AllReducePlan(**{"ranks": 4, "gradient_bytes": 4_000_000, "stores": (OURS,), **options})


# ---------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--bytes", "10"], "bench allreduce: --bytes 10 is not valid: expected a multiple of 4"),
        (["--peer", "horovod"], "--peer horovod is not valid: expected one of openmpi, gloo, gloo-fp16"),
        (["--transport", "pigeon"], "--transport pigeon is not valid: expected one of zmq"),
        (["--transport", "pigeon", "--store", OURS], "--transport pigeon is not valid: expected one of zmq"),
        (
            ["--transport", "mpi", "--store", f"dist_sync_mpi,{OURS}"],
            f"--transport mpi with --store {OURS} is not valid: expected zmq, which carries that store",
        ),
        (
            ["--mxnet-python", "python3"],
            "--mxnet-python python3 without --peer mxnet is not valid: expected both",
        ),
        (["--store", "allreduse"], "--store allreduse is not valid: expected one of"),
        (["--tensors", "3"], "--tensors 3 is not valid: expected a divisor of the 25000000 floats"),
        (["--tensors", "2", "--peer", "mxnet"], "--tensors 2 with --peer mxnet is not valid"),
        (["--checksum", "never"], "--checksum never is not valid: expected one of auto, always, off"),
        (["--codec", "3bit"], "2bit"),
        (["--codec", "fp16", "--reply", "fp33"], "fp33"),
        (["--bandwidth", "fast"], "'fast' is not a rate"),
    ],
)
def test_misuse_is_one_line_and_2(arguments: list[str], text: str) -> None:
    error = bench(*arguments, expected_code=2)
    assert text in error
    assert error.count("\n") == 1


def test_a_store_has_its_own_transport() -> None:
    assert stores.chosen((), None) == (OURS,)
    assert stores.chosen((), "mpi") == ("dist_sync_mpi",)
    assert stores.chosen(("dist_sync_mpi", OURS), None) == ("dist_sync_mpi", OURS)
    assert stores.chosen(("allreduce_mpi",), "mpi") == ("allreduce_mpi",)


def test_a_page_that_cannot_be_written_costs_itself_alone(tmp_path: Path) -> None:
    """The folder had not been tried before, and its failure had cost the record."""
    record, page = tmp_path / "record.json", tmp_path / "page"
    page.mkdir()
    (page / "index.html").symlink_to("/dev/full")
    words = [
        "--bytes",
        "4KB",
        "--repeat",
        "1",
        "--launches",
        "1",
        "--json",
        str(record),
        "--report",
        str(page),
    ]
    command = [sys.executable, "-m", "gradwire.cli", "bench", "allreduce", "-n", "1", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "gradwire allreduce" in " ".join(done.stdout.split())
    assert json.loads(record.read_text())[0]["checksum"] is True


def test_every_store_codec_checksum_and_fusion_is_a_row_with_a_label_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores.nccl, "why_not", lambda: None)  # rows are made, none is run
    wanted = plan(
        stores=tuple(store.name for store in stores.STORES),
        codecs=("none", "2bit", "2bit:reply=2bit", "2bit:threshold=auto"),
        checksums=("always", "off"),
        tensors=1000,
    )
    rows = stores.systems(wanted)
    assert len(rows) == len(stores.STORES) * 4 * 2 * 2
    assert len({row.label for row in rows}) == len(rows)
    first = [row.label for row in rows if row.store == OURS and row.codec == "2bit" and row.fused]
    assert first == [
        f"gradwire {OURS} 2bit, exact reply, fused, checksum always",
        f"gradwire {OURS} 2bit, exact reply, fused, checksum off",
        f"gradwire {OURS} 2bit both ways, fused, checksum always",
        f"gradwire {OURS} 2bit both ways, fused, checksum off",
    ]
    assert [row.threshold for row in rows if row.codec != "2bit"] == [None] * (len(rows) // 2)


@pytest.mark.skipif(nccl.why_not() is None, reason="NCCL can be used here")
def test_nccl_is_refused_in_words_where_it_cannot_sum() -> None:
    for arguments in (["--store", "nccl"], ["--transport", "nccl"]):
        error = bench(*arguments, expected_code=1)
        assert f"bench allreduce: --store nccl: {nccl.why_not()}" in error


@pytest.mark.skipif(nccl.why_not() is not None, reason=str(nccl.why_not()))
def test_nccl_has_a_row_where_it_can() -> None:
    (row,) = records("--store", "nccl", "-n", "1")
    assert (row["store"], row["transport"], row["checksum"]) == ("nccl", "nccl", True)


# ---------------------------------------------------------------- limits and documented bytes


def test_limit_and_payload_follow_the_formula() -> None:
    two_bit, dense = stores.systems(plan(bandwidth="1gbit", codecs=("2bit:reply=2bit", "none")))
    share = 3 / 4
    assert all_reduce.payload_bytes(plan(), dense) == share * 8_000_000
    assert all_reduce.payload_bytes(plan(), two_bit) == share * 500_000
    limit = plan(bandwidth="1gbit").wire_limit(dense.pushed, dense.replied)
    assert limit == pytest.approx(share * 8_000_000 / (0.955 * 1e9 / 8))
    assert plan().wire_limit(1, 1) is None
    assert plan(bandwidth=UNSHAPED).wire_limit(1, 1) is None
    assert plan(ranks=1, bandwidth="1gbit").wire_limit(8, 8) == 0


def test_headers_are_few_beside_partitions_and_many_beside_small_tensors() -> None:
    assert all_reduce.header_bytes(plan(gradient_bytes=100_000_000)) < 0.001 * 1.5 * 100_000_000
    small = all_reduce.header_bytes(plan(gradient_bytes=1_000_000, tensors=1000))
    assert small > 1.5 * 1000 * 112


@pytest.mark.parametrize(
    ("sent", "link", "text"),
    [
        (1.0, 1.0, None),
        (0.9, 1.0, "a rank sent .* bytes in a round, expected"),
        (1.2, 1.2, "a rank sent .* bytes in a round, expected"),
        (1.0, 0.9, "bytes left a host in a round, expected"),
    ],
)
def test_traffic_that_is_not_the_formula_is_found(sent: float, link: float, text: str | None) -> None:
    wanted = plan(stores=("allreduce",))
    (system,) = stores.systems(wanted)
    payload = all_reduce.payload_bytes(wanted, system)
    launch = Launch([1.0], [round(sent * payload)] * 4, 1.0, 0.0, 1.0, link * payload, 0, True)
    if text is None:
        all_reduce.check_bytes(wanted, system, launch)
        return
    with pytest.raises(BenchFailed, match=text):
        all_reduce.check_bytes(wanted, system, launch)


def test_tensors_are_views_and_ranks_check_whole_ones() -> None:
    task = rounds.Task(1000, 3, 0, 1, "none", None, "none", OURS, 100, "")
    values = np.arange(1000, dtype=np.float32)
    cut = task.cut(values)
    assert [len(part) for part in cut] == [10] * 100
    cut[7][:] = -1
    assert values[70:80].tolist() == [-1] * 10
    assert [part.start % 10 for part in task.shares()] == [0, 0, 0]
    assert [part.stop for part in task.shares()] == [330, 660, 1000]


def test_machine_seconds_see_what_this_process_burns() -> None:
    before, own = rounds.machine_seconds(), time.process_time()
    while time.process_time() - own < 0.2:
        pass
    assert rounds.machine_seconds() - before >= 0.1


def _pages(size: int) -> mmap.mmap:
    """Fresh pages, in use: the heap may give an array what it has kept from others."""
    memory = mmap.mmap(-1, size)
    memory[:: mmap.PAGESIZE] = b"x" * len(range(0, size, mmap.PAGESIZE))
    return memory


def test_memory_that_a_round_takes_and_gives_back_is_in_its_peak() -> None:
    memory = rounds.ResidentMemory()
    taken, kept = _pages(32_000_000), _pages(16_000_000)
    assert memory.peak_bytes() >= memory.kept_bytes() >= 47_000_000
    taken.close()
    assert memory.peak_bytes() >= 47_000_000
    assert 15_000_000 <= memory.kept_bytes() <= 17_000_000
    assert rounds.ResidentMemory().peak_bytes() < 1_000_000
    del kept


# ---------------------------------------------------------------- Gloo


def test_powersgd_is_charged_for_what_it_sends() -> None:
    assert power_sgd.matrices(25_000_000) == (25, 1000)
    assert power_sgd.encoded_bytes(25_000_000) == 4 * 2 * 25 * 1000
    assert power_sgd.encoded_bytes(2_000_007) == 4 * (2 * 2 * 1000 + 7)


def project(matrix: Any, column: Any) -> Any:
    column = column / np.linalg.norm(column)
    return np.outer(column, column @ matrix)


@pytest.mark.parametrize("fault", [None, "forgets its error", "rank 2", "one element of the vector"])
def test_a_wrong_powersgd_is_found(fault: str | None) -> None:
    """Against power iterations written here: two dense rounds, then rank 1 with error feedback."""
    side, ranks = 50, 3
    task = rounds.Task(side**2 + 3, ranks, 0, 4, "powersgd", None, "powersgd", "", 1, "")
    accepts = power_sgd.Projections(task, 0)
    mean = sum(rounds.gradient(rank, task.elements) for rank in range(ranks)) / np.float32(ranks)
    matrix = mean[: side**2].reshape(side, side)
    error = np.zeros_like(matrix)
    generator = np.random.default_rng(5)
    verdicts = []
    for index in range(5):
        result = mean.copy()
        if index >= 2:
            wanted = matrix + error
            given = project(wanted, wanted @ generator.random(side, dtype=np.float32))
            if fault == "rank 2":
                given = given + project(wanted, wanted @ generator.random(side, dtype=np.float32))
            error = wanted - given if fault != "forgets its error" else error
            result[: side**2] = given.ravel()
        if fault == "one element of the vector":
            result[-1] += 0.01
        verdicts.append(accepts(result))
    assert all(verdicts) is (fault is None)


def test_gloo_and_ours_in_one_run() -> None:
    rows = records("--codec", "none", "--codec", "2bit:reply=2bit", "--peer", "gloo,gloo-fp16,gloo-powersgd")
    assert [row["label"] for row in rows] == [
        *(f"gradwire {OURS} none", f"gradwire {OURS} 2bit both ways"),
        *("gloo", "gloo-fp16", "gloo-powersgd"),
    ]
    for row in rows:
        assert set(row) >= FIELDS
        assert row["checksum"] is True
        assert 0 < row["seconds_min"] <= row["seconds_median"]
        assert len(row["seconds"]) == 2
        assert row["cpu_seconds_per_gb"] > 0
        assert row["wire_limit_seconds"] is None
    assert rows[0]["payload_bytes_per_rank"] == 1_000_000
    assert rows[1]["payload_bytes_per_rank"] == 62_500
    assert [row["encoded_push_bytes"] for row in rows[2:]] == [1_000_000, 500_000, 4000]
    expected = rows[2]["seconds_median"] / rows[0]["seconds_median"]
    assert rows[0]["speed_over"]["gloo"] == pytest.approx(expected)
    assert list(rows[0]["speed_over"]) == ["gloo", "gloo-fp16", "gloo-powersgd"]


def test_small_tensors_run_fused_and_not() -> None:
    rows = records("--tensors", "125", "--codec", "2bit:threshold=auto", "--peer", "gloo")
    assert [row["fused"] for row in rows] == [True, False, True]
    assert all(row["checksum"] for row in rows)
    assert {row["tensors"] for row in rows} == {125}


def test_with_payload_checksums_and_without() -> None:
    rows = records("--checksum", "always,off")
    assert [(row["payload_checksum"], row["checksum"]) for row in rows] == [("always", True), ("off", True)]


def test_the_page_shows_every_system_and_stands_alone(tmp_path: Path) -> None:
    bench(
        "--store",
        OURS,
        "--bytes",
        "400KB",
        "--repeat",
        "1",
        "--peer",
        "gloo",
        "--report",
        str(tmp_path / "page"),
    )
    text = (tmp_path / "page" / "index.html").read_text()
    assert not re.search(r"https?:|src=|@import|url\(", text)
    for words in (f"gradwire {OURS} none", "gloo", "CPU seconds per GB", "times faster than", "--report"):
        assert words in text


# ---------------------------------------------------------------- OpenMPI


def test_mpirun_enters_the_hosts_of_a_lab() -> None:
    words = peer_openmpi.mpirun(["a", "b"], ["10.77.3.1", "10.77.3.2"], "c0ffee", "10.77.3.254")
    pairs = dict(itertools.pairwise(words))
    assert pairs["--host"] == "10.77.3.1,10.77.3.2"
    assert pairs["-np"] == "2"
    assert pairs["btl_tcp_if_include"] == pairs["oob_tcp_if_include"] == "10.77.3.0/24"
    assert pairs["btl"] == "tcp,self"
    assert pairs["plm_rsh_agent"].split()[1:] == [
        str(Path(peer_openmpi.__file__).with_name("rsh_agent.py")),
        "c0ffee",
    ]
    assert words[-2:] == ["a", "b"]


def test_mpirun_here_uses_tcp_too() -> None:
    words = peer_openmpi.mpirun(["a"], ["127.0.0.1"] * 3, None, "127.0.0.1")
    pairs = dict(itertools.pairwise(words))
    assert (pairs["--host"], pairs["btl_tcp_if_include"], pairs["btl"]) == ("localhost:3", "lo", "tcp,self")
    assert "plm_rsh_agent" not in words


def test_an_agent_refuses_an_unknown_host() -> None:
    agent = Path(peer_openmpi.__file__).with_name("rsh_agent.py")
    done = subprocess.run(
        [sys.executable, str(agent), "nolab", "10.0.0.1", "true"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "lab nolab has no host 10.0.0.1" in done.stderr


def test_a_machine_without_mpirun_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerUnavailable, match="openmpi: no mpirun on PATH: install openmpi-bin"):
        peer_openmpi.systems(plan())


def test_openmpi_in_the_same_run() -> None:
    rows = records("--peer", "openmpi", "--launches", "2")
    assert [len(row["launch_medians"]) for row in rows] == [2, 2]
    assert [(row["system"], row["checksum"], row["transport"]) for row in rows[1:]] == [
        ("openmpi", True, "tcp")
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
@pytest.mark.alone
def test_every_system_takes_the_shaped_links() -> None:
    rows = records("--bandwidth", "100mbit", "--codec", "2bit", "--peer", "openmpi,gloo")
    for row in rows:
        assert row["checksum"] is True
        assert row["link_bytes_sent_per_rank"] > 0.98 * row["payload_bytes_per_rank"]
        assert row["seconds_min"] > 0.5 * row["wire_limit_seconds"]
    assert rows[1]["seconds_min"] > 0.9 * rows[1]["wire_limit_seconds"]


def test_ranks_find_rank_0_and_jobs_do_not_share_a_port() -> None:
    with hosts.Network.open(2, 2, None, colocated=True) as network:
        first, second = network.meeting(2), network.meeting(2)
    assert first(1) == {**first(0), "RANK": "1"}
    assert first(0)["MASTER_ADDR"] == "127.0.0.1"
    assert first(0)["WORLD_SIZE"] == "2"
    assert first(0)["MASTER_PORT"] != second(0)["MASTER_PORT"]


def test_a_page_tells_how_many_launches_there_were() -> None:
    """Each does a round, so there are no more of them than rounds."""
    told = facts_of(plan(repeat=2, launches=5))["rounds"]
    assert told == "2 timed of each system, in 2 launches that took turns"
