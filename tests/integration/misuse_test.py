"""What users get wrong, in real jobs: each mistake is an error that says what to do, the same on every rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gradwire
import pytest
from gradwire.launch.rendezvous import free_port
from integration.processes import SCHEDULER, ByHand, Ended, clean_environment, run_to_the_end

# Every case is a few lines of one script; a rank that gets an error prints it and goes on, so that one job tries all.
PROLOGUE = """
import os, numpy as np, gradwire
kv = gradwire.kv.create("dist_sync")
zeros = lambda *shape: np.zeros(shape, np.float32)
def attempt(name, call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
        print(f"{name}|nothing was raised", flush=True)
    except Exception as error:
        print(f"{name}|{type(error).__name__}: {error}", flush=True)
"""
SINGLE = """
attempt("codec", kv.set_gradient_compression, {"type": "2bits"})
attempt("typo", kv.set_gradient_compression, {"type": "2bit", "treshold": 0.5})
attempt("zero", kv.set_gradient_compression, {"type": "2bit", "threshold": 0})
attempt("negative", kv.set_gradient_compression, {"type": "2bit", "threshold": -1.5})
attempt("nan", kv.set_gradient_compression, {"type": "2bit", "threshold": float("nan")})
attempt("infinity", kv.set_gradient_compression, "2bit:threshold=inf")
attempt("word", kv.set_gradient_compression, {"type": "2bit", "threshold": "automatic"})
attempt("reply", kv.set_gradient_compression, {"type": "fp16", "reply": "exact"})
attempt("no type", kv.set_gradient_compression, {"threshold": 0.5})
kv.init("w", zeros(4))
attempt("optimizer", kv.set_optimizer, "sdg")
attempt("optimizer parameter", kv.set_optimizer, "sgd", learning_rat=0.1)
attempt("capability", kv.is_capable, "teleport")
attempt("not initialised", kv.push, "v", zeros(4))
attempt("pull not initialised", kv.pull, "v", out=zeros(4))
attempt("wrong size", kv.push, "w", zeros(5))
attempt("wrong out", kv.pull, "w", out=zeros(3))
attempt("mixed keys", kv.init, 3, zeros(4))
attempt("integers", kv.push, "w", np.zeros(4, np.int32))
attempt("a list", kv.push, "w", 1.5)
attempt("counts", kv.push, ["w"], [zeros(4), zeros(4)])
frozen = zeros(4); frozen.flags.writeable = False
attempt("read-only", kv.pull, "w", out=frozen)
attempt("duplicate", kv.init, "w", zeros(4))
attempt("twice in one call", kv.init, ["x", "x"], [zeros(4), zeros(4)])
attempt("no element", kv.init, "empty", zeros(0))
total = zeros(4)
kv.pushpull("w", np.ones(4, np.float32), out=total)
print("afterwards|", total.tolist(), flush=True)
kv.close()
attempt("closed", kv.push, "w", zeros(4))
"""
EXPECTED = {
    "codec": ["ValueError", "2bits", "did you mean 2bit", "fp16"],
    "typo": ["ValueError", "treshold", "did you mean threshold"],
    "zero": ["ValueError", "threshold=0 "],
    "negative": ["ValueError", "threshold=-1.5"],
    "nan": ["ValueError", "threshold=nan"],
    "infinity": ["ValueError", "threshold=inf"],
    "word": ["ValueError", "threshold=automatic", "auto"],
    "reply": ["ValueError", "reply=exact", "2bit"],
    "no type": ["ValueError", "type"],
    "optimizer": ["ValueError", "sdg", "sgd"],
    "optimizer parameter": ["ValueError", "learning_rat", "learning_rate"],
    "capability": ["ValueError", "teleport", "gradient_compression"],
    "not initialised": ["ValueError", "'v'", "did you mean 'w'", "init"],
    "pull not initialised": ["ValueError", "'v'", "init"],
    "wrong size": ["ValueError", "'w'", "4 elements", "5 given"],
    "wrong out": ["ValueError", "'w'", "4 elements", "3 given"],
    "mixed keys": ["ValueError", "mixed key types"],
    "integers": ["ValueError", "'w'", "int32", "float32"],
    "a list": ["TypeError", "'w'", "float", "NumPy"],
    "counts": ["ValueError", "1 keys but 2 values"],
    "read-only": ["ValueError", "'w'", "read-only"],
    "duplicate": ["ValueError", "'w'", "declared before"],
    "twice in one call": ["ValueError", "'x'"],
    "no element": ["ValueError", "'empty'", "no element"],
    "afterwards": ["[2.0, 2.0, 2.0, 2.0]"],
    "closed": ["closed"],
}


def run_script(folder: Path, script: str, **variables: str) -> Ended:
    return run_to_the_end(folder, [sys.executable, "-c", PROLOGUE + script], seconds=60, **variables)


def said(ended: Ended, rank: int) -> dict[str, str]:
    """What a rank's attempts gave, by name."""
    prefix = f"[worker {rank}] "
    lines = [line.removeprefix(prefix) for line in ended.out.splitlines() if line.startswith(prefix)]
    return dict(line.split("|", 1) for line in lines if "|" in line)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return run_script(tmp_path_factory.mktemp("misuse"), SINGLE)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_mistake_is_explained(single: Ended, name: str) -> None:
    for rank in range(2):
        text = said(single, rank).get(name, f"not reached:\n{single}")
        assert all(part in text for part in EXPECTED[name]), f"{text!r} lacks one of {EXPECTED[name]}"


def test_the_job_survives_all_of_them(single: Ended) -> None:
    assert single.code == 0, str(single)


DIFFERENT = {
    "threshold": (
        'attempt("it", kv.set_gradient_compression, {"type": "2bit", "threshold": 0.5 + 0.25 * kv.rank})',
        ["ValueError", "threshold=0.5", "worker 1", "threshold=0.75"],
    ),
    "codec": (
        'attempt("it", kv.set_gradient_compression, ["2bit", "fp16"][kv.rank])',
        ["ValueError", "2bit", "worker 1", "fp16"],
    ),
    "reply": (
        'attempt("it", kv.set_gradient_compression, {"type": "2bit", "reply": ["exact", "2bit"][kv.rank]})',
        ["ValueError", "reply=", "worker 1"],
    ),
    "shape": (
        'attempt("it", kv.init, ["a", "w"], [zeros(2), zeros(4, 2 + kv.rank)])',
        ["ValueError", "'w'", "(4, 2)", "worker 1", "(4, 3)"],
    ),
    "dtype": (
        'attempt("it", kv.init, "w", np.zeros(4, [np.float32, np.float16][kv.rank]))',
        ["ValueError", "'w'", "float32", "worker 1", "float16"],
    ),
    "missing key": (
        'names = ["a", "b", "c"][: 3 - kv.rank]\nattempt("it", kv.init, names, [zeros(2) for _ in names])',
        ["ValueError", "'c'", "worker 1 does not"],
    ),
    "extra key": (
        'names = ["a", "b", "c"][: 2 + kv.rank]\nattempt("it", kv.init, names, [zeros(2) for _ in names])',
        ["ValueError", "'c'", "worker 1 has", "worker 0 does not"],
    ),
    "optimizer": (
        'kv.init("w", zeros(2)); attempt("it", kv.set_optimizer, "sgd", learning_rate=0.1 + kv.rank)',
        ["ValueError", "learning_rate=0.1", "worker 1", "learning_rate=1.1"],
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_that_differ_all_get_the_same_error(name: str, tmp_path: Path) -> None:
    script, parts = DIFFERENT[name]
    ended = run_script(tmp_path, script)
    texts = [said(ended, rank).get("it", f"not reached:\n{ended}") for rank in range(2)]
    assert texts[0] == texts[1]
    assert all(part in texts[0] for part in parts), texts[0]


def test_a_setting_that_differs_on_one_rank(tmp_path: Path) -> None:
    with ByHand(tmp_path, {}) as job:
        job.start_scheduler()
        for rank in range(2):
            job.start_server(rank)
            variables = {"GRADWIRE_PARTITION_BYTES": ["1MiB", "2MiB"][rank]}
            job.start_worker(rank, [sys.executable, "-c", PROLOGUE], variables)
        ended = job.end(60)
    last_lines = [ended["worker", rank].err.strip().splitlines()[-1] for rank in range(2)]
    assert last_lines[0] == last_lines[1]
    for part in ("partition_elements=262144", "worker 1", "partition_elements=524288"):
        assert part in last_lines[0]


def test_a_worker_count_that_differs_on_one_rank(tmp_path: Path) -> None:
    with ByHand(tmp_path, {"GRADWIRE_RENDEZVOUS_TIMEOUT": "5s"}, servers=1) as job:
        job.start_scheduler()
        job.start_server(0)
        job.start_worker(0, [sys.executable, "-c", PROLOGUE])
        job.start_worker(1, [sys.executable, "-c", PROLOGUE], {"GRADWIRE_NUM_WORKERS": "3"})
        ended = job.end(30)
    assert ended["worker", 1].code != 0
    assert "2" in ended["worker", 1].err
    assert "workers" in ended["worker", 1].err
    assert all(process.code != 0 for process in ended.values())


@pytest.mark.parametrize(("name", "near"), [("dist_snyc", "dist_sync"), ("locale", "local")])
def test_an_unknown_store(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{near}'") as caught:
        gradwire.kv.create(name)
    assert all(store in str(caught.value) for store in gradwire.kv.stores())


def test_a_store_without_a_job() -> None:
    command = [sys.executable, "-c", "import gradwire; gradwire.kv.create('dist_sync')"]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=clean_environment(Path(), {}), timeout=60
    )
    assert ended.returncode == 1
    assert "GRADWIRE_SCHEDULER is not set" in ended.stderr
    assert "gradwire run" in ended.stderr


# As users of MXNet start a job: the same script everywhere, who is who in DMLC_*.
SCRIPT = """
import numpy as np, gradwire
kv = gradwire.kv.create("dist_sync")
total = np.zeros(3, np.float32)
kv.init(3, total)
kv.pushpull(3, np.full(3, 1 + kv.rank, np.float32), out=total)
print(kv.rank, total.tolist())
"""


def test_the_same_script_is_server_scheduler_and_worker(tmp_path: Path) -> None:
    job_variables = {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port("127.0.0.1")),
    }
    members = [("worker", 0), ("worker", 1), ("server", 0), SCHEDULER]  # workers first: they wait
    with ByHand(tmp_path, job_variables, servers=1) as job:
        for role, rank in members:
            job.start((role, rank), [sys.executable, "-c", SCRIPT], {"DMLC_ROLE": role})
        ended = job.end(60)
    for process in ended.values():
        assert process.code == 0, str(process)
    lines = sorted(ended["worker", rank].out.strip() for rank in range(2))
    assert lines == ["0 [3.0, 3.0, 3.0]", "1 [3.0, 3.0, 3.0]"]
    assert not ended["server", 0].out, "a server must not run the script's training"
    assert not ended[SCHEDULER].out
