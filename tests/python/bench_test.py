"""`gradwire bench codec` and `ps`: what the records hold, and that a wrong sum is found. No times are asserted."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gradwire.bench import hosts, peer_mxnet, rounds
from gradwire.bench.codec import Bench, Plan, measure
from gradwire.bench.launches import BenchFailed, Collector
from gradwire.bench.plan import ServersPlan
from gradwire.bench.system import encoded_bytes
from gradwire.bench.worker import CodecSum
from gradwire.compress import Compression
from gradwire.launch.child import Line

CODEC_FIELDS = {
    *("codec", "op", "elements", "piece_elements", "residual", "ways", "threads", "elements_per_second"),
    *("memcpy_elements_per_second", "ratio_to_memcpy", "bits_per_element", "relative_error"),
}
ROUND_FIELDS = {
    *("system", "codec", "reply", "ranks", "servers", "bytes", "bandwidth", "seconds_min", "seconds_median"),
    *("wire_limit_seconds", "bytes_sent_per_rank", "cpu_seconds_per_gb", "memory_bytes_per_rank"),
    *("checksum", "encrypted"),
}


def bench(*arguments: str, expected_code: int = 0) -> str:
    command = [sys.executable, "-m", "gradwire.cli", "bench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == expected_code, done.stderr
    return done.stdout if expected_code == 0 else done.stderr


def records(*arguments: str) -> list[dict[str, Any]]:
    return json.loads(bench(*arguments, "--json", "-"))


def round_records(*arguments: str) -> list[dict[str, Any]]:
    return records("ps", "--ranks", "2", "--bytes", "1MB", "--repeat", "3", *arguments)


# ---------------------------------------------------------------- codec


def test_codec_measures_every_codec_and_operation() -> None:
    rows = records("codec", "--elements", "300000", "--repeat", "2")
    assert all(set(row) >= CODEC_FIELDS for row in rows)
    assert {row["codec"] for row in rows} >= {"none", "fp16", "bf16", "2bit"}
    operations = [(row["op"], row["residual"], row["ways"]) for row in rows if row["codec"] == "2bit"]
    assert operations == [
        *[("encode", "none", 1), ("encode", "fp32", 1), ("encode", "bf16", 1), ("decode", "none", 1)],
        *[("decode_sum", "none", 2), ("decode_sum", "none", 8), ("add", "none", 8)],
    ]
    for row in rows:
        assert row["elements_per_second"] > 0
        ratio = row["elements_per_second"] / row["memcpy_elements_per_second"]
        assert row["ratio_to_memcpy"] == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("spec", "bits", "least", "most"),
    [
        ("none", 32, 0, 0),
        ("fp16", 16, 1e-5, 1e-3),
        ("2bit", 2, 0.5, 0.9),
        ("2bit:threshold=auto", 2, 0.3, 0.9),
    ],
)
def test_codec_bits_and_error(spec: str, bits: float, least: float, most: float) -> None:
    row = measure(spec, Plan(elements=4 * 65_536, repeat=1))[0]
    assert row["bits_per_element"] == pytest.approx(bits, rel=0.02)
    assert least <= row["relative_error"] <= most


@pytest.mark.parametrize(("threads", "piece"), list(itertools.product([1, 3], [0, 65_536, 131_072])))
def test_shares_and_pieces_cover_every_element_once(threads: int, piece: int) -> None:
    plan = Plan(elements=5 * 65_536 + 7, piece_elements=piece, threads=threads)
    flat = [cut for share in plan.shares() for cut in share]
    assert [cut.start for cut in flat] == [0, *(cut.stop for cut in flat[:-1])]
    assert flat[-1].stop == plan.elements
    assert all(cut.start % 65_536 == 0 for cut in flat)
    assert len(plan.shares()) == threads


def test_separate_adds_give_what_decode_sum_gives() -> None:
    measured = Bench("2bit", Plan(elements=200_000))
    by_name = {(row.op, row.ways): row.calls for row in measured.operations()}
    sums = []
    for name in (("decode_sum", 8), ("add", 8)):
        measured.out[:] = np.nan
        for call in itertools.chain.from_iterable(by_name[name]):
            call()
        sums.append(measured.out.copy())
    assert np.array_equal(sums[0], sums[1])
    assert np.unique(sums[0]).size > 8


# ---------------------------------------------------------------- rounds: what the record holds


def test_a_round_is_encrypted_where_that_is_asked_for() -> None:
    (row,) = round_records("--encrypt")
    assert row["encrypted"] is True
    assert row["checksum"] is True
    text = bench(*("ps", "-n", "1", "-s", "1", "--transport", "inproc", "--encrypt"), expected_code=2)
    assert "--transport inproc --encrypt is not valid" in text
    text = bench(*("allreduce", "-n", "2", "--transport", "mpi", "--encrypt"), expected_code=2)
    assert "--encrypt with --store dist_sync_mpi is not valid: its library does not encrypt" in text


@pytest.mark.parametrize(
    ("codec", "reply", "sent"),
    [("none", "none", 1_000_000), ("2bit", "exact", 62_500), ("bf16", "bf16", 500_000)],
)
def test_a_round_is_right_and_its_record_whole(codec: str, reply: str, sent: int) -> None:
    (row,) = round_records("--codec", codec)
    assert set(row) >= ROUND_FIELDS
    assert (row["system"], row["codec"], row["reply"], row["ranks"], row["servers"]) == (
        *("gradwire", codec, reply, 2, 2),
    )
    assert row["checksum"] is True
    assert row["encrypted"] is False
    assert row["bandwidth"] is None
    assert row["wire_limit_seconds"] is None
    assert 0 < row["seconds_min"] <= row["seconds_median"]
    assert len(row["seconds"]) == 3
    assert row["bytes_sent_per_rank"] == pytest.approx(sent, rel=0.02)
    assert row["encoded_push_bytes"] == sent
    assert 0 < row["server_cpu_seconds_per_gb"] < row["cpu_seconds_per_gb"]


@pytest.mark.parametrize("codec", ["2bit:threshold=0.3", "2bit:threshold=auto"])
@pytest.mark.parametrize("reply", ["2bit", "fp32"])
def test_other_replies_are_right_as_well(codec: str, reply: str) -> None:
    (row,) = round_records("--codec", codec, "--reply", reply, "--servers", "1")
    assert (row["reply"], row["checksum"]) == (reply, True)


def test_mirrored_servers_are_measured_beside_others() -> None:
    alone, mirrored = round_records("--codec", "2bit", "--replicas", "1")
    assert (alone["replicas"], mirrored["replicas"]) == (0, 1)
    assert alone["checksum"] is mirrored["checksum"] is True
    assert alone["bytes_sent_per_rank"] == pytest.approx(mirrored["bytes_sent_per_rank"], rel=0.02)


def test_inproc_is_one_rank() -> None:
    (row,) = records("ps", "--ranks", "1", "--bytes", "1MB", "--repeat", "1", "--transport", "inproc")
    assert (row["transport"], row["checksum"]) == ("inproc", True)
    text = bench("ps", "--ranks", "2", "--transport", "inproc", expected_code=2)
    assert "--transport inproc here is not valid: expected --ranks 1 --servers 1" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
@pytest.mark.alone
def test_shaped_links_carry_what_the_workers_count() -> None:
    (row,) = round_records("--codec", "2bit", "--bandwidth", "100mbit", "--colocated")
    assert row["checksum"] is True
    assert row["wire_limit_seconds"] == pytest.approx((62_500 + 93_768) / 2 / (0.955 * 12.5e6))
    assert row["seconds_min"] > 0.5 * row["wire_limit_seconds"]
    assert row["link_bytes_sent_per_rank"] > 0.5 * 0.98 * (62_500 + 93_768)  # half stays on the host


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--bytes", "10"], "--bytes 10 is not valid: expected a multiple of 4"),
        (["--peer", "horovod"], "--peer horovod is not valid: expected one of mxnet"),
        (["--transport", "mpi"], "--transport mpi is not valid: expected zmq or inproc"),
        (
            ["--mxnet-python", "python3"],
            "--mxnet-python python3 without --peer mxnet is not valid: expected both",
        ),
        (["--colocated", "--servers", "3"], "--colocated with --servers 3 is not valid"),
        (["--replicas", "1", "--servers", "1"], "--replicas 1 with --servers 1 is not valid"),
        (["--codec", "3bit"], "2bit"),
        (["--codec", "fp16", "--reply", "fp33"], "fp33"),
        (["--bandwidth", "fast"], "'fast' is not a rate"),
    ],
)
def test_misuse_is_one_line_and_2(arguments: list[str], text: str) -> None:
    error = bench("ps", "--ranks", "2", *arguments, expected_code=2)
    assert text in error
    assert error.count("\n") == 1


# ---------------------------------------------------------------- rounds: limits


def test_wire_limits_follow_the_formula() -> None:
    rate = 0.955 * 1e9 / 8
    apart = ServersPlan(ranks=4, servers=2, gradient_bytes=400, bandwidth="1gbit")
    assert apart.wire_limit(100, 300) == pytest.approx(300 * 2 / rate)
    spare = ServersPlan(ranks=2, servers=4, gradient_bytes=400, bandwidth="1gbit")
    assert spare.wire_limit(300, 100) == pytest.approx(300 / rate)
    beside = ServersPlan(ranks=4, servers=4, gradient_bytes=400, bandwidth="1gbit", colocated=True)
    assert beside.wire_limit(100, 300) == pytest.approx(3 / 4 * 400 / rate)
    assert ServersPlan(ranks=1, servers=1, gradient_bytes=400).wire_limit(1, 1) is None


def test_encoded_bytes_are_those_of_the_payload_formats() -> None:
    elements = 3 * 262_144 + 64
    exact = Compression.parse("2bit", reply="exact")
    assert encoded_bytes(exact, 2, elements) == (elements // 4, elements * 3 // 8)
    assert encoded_bytes(Compression.parse("2bit", reply="2bit"), 8, elements) == (
        elements // 4,
        elements // 4,
    )
    assert encoded_bytes(Compression.parse("none"), 2, elements) == (elements * 4, elements * 4)
    pushed, _ = encoded_bytes(Compression.parse("2bit:threshold=auto"), 2, elements)
    assert pushed < 1.03 * elements / 4  # not the dense first round


# ---------------------------------------------------------------- rounds: a wrong sum is found


def test_two_bit_rule_by_hand() -> None:
    grads = [np.float32([0.5, 0.3, -0.6, 0.1]), np.float32([0.5, 0.3, 0.6, -0.5])]
    exact = rounds.TwoBitSum(grads, 0.5, requantised=False)
    assert exact.next_round().tolist() == [1.0, 0.0, 0.0, -0.5]
    assert exact.next_round().tolist() == [1.0, 1.0, 0.0, -0.5]
    again = rounds.TwoBitSum(grads, 0.5, requantised=True)
    assert again.next_round().tolist() == [1.0, 0.0, 0.0, -1.0]  # -0.5 reaches half the level; 0.5 is kept
    assert again.next_round().tolist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(("reply", "requantised"), [("exact", False), ("2bit", True)])
def test_numpy_and_the_codec_agree(reply: str, requantised: bool) -> None:
    grads = [rounds.gradient(rank, 70_000) for rank in range(3)]
    numpy = rounds.TwoBitSum(grads, 0.25, requantised)
    codec = CodecSum(grads, "2bit:threshold=0.25", reply)
    for _ in range(4):
        assert np.array_equal(numpy.next_round(), codec.next_round())


class Planted:
    """A system of one process whose second sum has one wrong element."""

    def __init__(self, task: rounds.Task, wrong: bool) -> None:
        self.total = np.zeros(task.elements, dtype=np.float32)
        self.grads = [rounds.gradient(rank, task.elements) for rank in range(task.ranks)]
        self.turn = 0
        self.wrong = wrong

    def exchange(self) -> None:
        self.total[:] = self.grads[0] + self.grads[1]
        self.turn += 1
        if self.wrong and self.turn == 2:
            self.total[-1] += np.float32(0.25)


@pytest.mark.parametrize(("wrong_on", "right"), [(None, True), (0, False), (1, False)])
def test_one_wrong_element_of_one_round_on_one_rank_is_found(
    tmp_path: Path, wrong_on: int | None, right: bool
) -> None:
    """The last element is rank 1's to check: on rank 0 only the digest tells."""
    task = rounds.Task(3 * 65_536, 2, 1, 2, "none", None, "none", "none", 1, str(tmp_path))
    with hosts.Network.open(2, 1, None, False) as network:
        collector = Collector(network, tmp_path)
        for mark in ("begin", "end"):
            collector(Line("worker", 0, "stdout", f'{rounds.MARKER}{{"mark": "{mark}"}}'))
        for rank in range(2):
            system = Planted(task, wrong=rank == wrong_on)
            actions = rounds.Actions(lambda: None, lambda: None, system.exchange, lambda s=system: s.total)
            expectation = task.known_expectation(rank)
            assert expectation is not None
            rounds.run(task, rank, actions, rounds.matches(expectation, task.share(rank)))
        launch = collector.launch(2)
    assert launch.right is right
    assert len(launch.seconds) == 2


def test_a_missing_worker_is_no_result(tmp_path: Path) -> None:
    with hosts.Network.open(2, 1, None, False) as network, pytest.raises(BenchFailed, match="0 of 2 workers"):
        Collector(network, tmp_path).launch(2)


# ---------------------------------------------------------------- MXNet


def test_mxnet_roles_and_environment() -> None:
    roles = [peer_mxnet.role_of(process, 2) for process in range(5)]
    assert roles == [("scheduler", 0), ("server", 0), ("server", 1), ("worker", 0), ("worker", 1)]
    env = peer_mxnet.environment(3, 2, 2, ("10.0.0.9", 77), "10.0.0.1", "eth0")
    assert (env["DMLC_ROLE"], env["DMLC_PS_ROOT_URI"], env["DMLC_PS_ROOT_PORT"]) == (
        "worker",
        "10.0.0.9",
        "77",
    )


def test_a_python_without_mxnet_is_refused() -> None:
    with pytest.raises(peer_mxnet.PeerUnavailable, match=r"cannot import mxnet: .*No module named 'mxnet'"):
        peer_mxnet.find_python(Path(sys.executable), lambda text: None)


def test_an_environment_that_cannot_be_made_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(peer_mxnet.PeerUnavailable, match=r"no python3\.11, python3\.10 on PATH"):
        peer_mxnet.find_python(None, lambda text: None, tmp_path / "mxnet")


@pytest.mark.skipif(
    not (peer_mxnet.default_folder() / "complete").exists(), reason="MXNet's environment was not made here"
)
def test_mxnet_in_the_same_run() -> None:
    rows = round_records("--codec", "2bit", "--peer", "mxnet")
    assert [(row["system"], row["codec"]) for row in rows] == [
        *[("gradwire", "2bit"), ("mxnet", "none"), ("mxnet", "2bit")],
    ]
    assert all(row["checksum"] for row in rows)
    assert all(len(row["seconds"]) == 3 for row in rows)


def test_a_bench_that_is_interrupted_ends_as_a_shell_expects() -> None:
    command = [sys.executable, "-m", "gradwire.cli", "bench", "ps", "--ranks", "1", "--servers", "1"]
    command += ["--bytes", "4MB", "--repeat", "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "launch 1 of" in process.stderr.readline()
        time.sleep(1)  # into the job
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT
    assert "stopped by SIGINT" in err
