"""`gradwire run --launcher kubernetes` over a stand-in for kubectl, whose pods are processes here: it was never run on
a real cluster. What it makes is checked against Kubernetes' own schemas, and its commands against a real kubectl if
one is here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gradwire.launch.clusters.kubernetes_agent import Pods
from integration import launched
from integration.launched import Bed
from integration.processes import Job, wait_until
from integration.stand_ins import stand_in

WORKERS = 2
OPTIONS = ("--image", "registry/image:1")


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    """kubectl is the stand-in."""
    return Bed("kubernetes", OPTIONS, stand_in("kubectl", tmp_path))


def objects(folder: Path) -> list[str]:
    return [path.name for path in (folder / "state").glob("*-*.json")]


def test_sums_are_those_of_any_launcher(bed: Bed, tmp_path: Path) -> None:
    here = launched.sums_here(tmp_path / "here")
    assert launched.sums(bed, tmp_path, "-s", "2", "--namespace", "ml") == here
    assert objects(tmp_path) == []
    commands = (tmp_path / "state" / "commands").read_text().splitlines()
    assert all("--namespace ml" in words for words in commands if not words.startswith("run-pod"))


def test_two_jobs_run_at_the_same_time(bed: Bed, tmp_path: Path) -> None:
    """Each has a scheduler at the same port: pods have addresses of their own."""
    jobs: list[Job] = []
    with contextlib.ExitStack() as both:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            jobs.append(bed.job(tmp_path / name))
            both.enter_context(launched.running(jobs[-1], bed, launched.ENDLESS))
        for job in jobs:
            assert job.members["run", 0].process.poll() is None, str(launched.end(job))


def test_lines_have_their_ranks_and_words_arrive_as_they_were_given(bed: Bed, tmp_path: Path) -> None:
    program = "import os, sys; e = os.environ; print(e['GRADWIRE_NUM_WORKERS'], e['SAID'], sys.argv[1], e['DMLC_RANK'])"
    words = """a 'b' "c" $d $(PATH) $$ `e`"""
    with bed.job(tmp_path) as job:
        launched.start(job, bed, [sys.executable, "-c", program, words], "-s", "0", "--env", f"SAID={words}")
        ended = launched.end(job)
    assert ended.code == 0, str(ended)
    for rank in range(WORKERS):
        assert f"[worker {rank}] {WORKERS} {words} {words} {rank}\n" in ended.out


def test_the_failing_workers_own_code_comes_back(bed: Bed, tmp_path: Path) -> None:
    launched.expect_the_failing_workers_code(bed, tmp_path, "rank 1 ended with exit code 7")
    assert objects(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_signal_to_the_launcher_deletes_all(number: signal.Signals, bed: Bed, tmp_path: Path) -> None:
    job = bed.job(tmp_path)
    with launched.running(job, bed, launched.ENDLESS) as started:
        ended = launched.signal_the_launcher(job, number, started)
    assert ended.code == launched.shell_code(number), str(ended)
    wait_until(lambda: not objects(tmp_path), launched.NOTICE_SECONDS, "all objects to be deleted")


def test_workers_save_before_their_pods_end(bed: Bed, tmp_path: Path) -> None:
    ended = launched.expect_workers_to_save(bed, tmp_path, "GRADWIRE_RANK", ())
    assert "(--grace) to save" in ended.err
    wait_until(lambda: not objects(tmp_path), launched.NOTICE_SECONDS, "all objects to be deleted")


def test_output_is_followed_before_the_pods_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they have just begun, and nobody has looked yet."""
    told: list[str] = []

    class Log:
        stdout: tuple[bytes, ...] = ()

        def __init__(self, words: list[str], **_: object) -> None:
            told.append(f"{words[1]}{' --follow' if '--follow' in words else ''}")

    def asked(words: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        told.append(words[1])
        return subprocess.CompletedProcess(words, 0, b"", b"")

    monkeypatch.setattr(subprocess, "run", asked)
    monkeypatch.setattr(subprocess, "Popen", Log)
    order = {"namespace": "ml", "selector": "a=b", "tasks": 2, "role": "worker", "grace_seconds": 1}
    Pods(order).let_end()
    assert told == ["logs --follow", "delete"]


def test_no_kubectl_is_an_error(tmp_path: Path) -> None:
    with Job(tmp_path, {"PATH": str(tmp_path)}) as job:
        launched.start(job, Bed("kubernetes", OPTIONS), ["true"], "-s", "0")
        ended = launched.end(job)
    assert ended.code == 1, str(ended)
    assert "no kubectl on PATH: install it, or give --dry-run" in ended.err, str(ended)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl: what it takes is not looked at")
def test_a_real_kubectl_takes_these_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers where it is told to look: it complains of that, and so has understood what it was told."""
    told: list[list[str]] = []

    def asked(words: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        told.append(words)
        return subprocess.CompletedProcess(words, 0, b'{"items": []}', b"")

    class NoLog:
        stdout: tuple[bytes, ...] = ()

        def __init__(self, words: list[str], **_: object) -> None:
            told.append(words)

    order = {"namespace": "ml", "selector": "a=b,c=d", "tasks": 3, "role": "worker", "notice_seconds": 1}
    pods = Pods(order)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", asked)
        patch.setattr(subprocess, "Popen", NoLog)
        pods.create("{}")
        pods.look()
        pods.follow(to_the_end=True)
        pods.follow(to_the_end=True)
        pods.delete()
    assert len(told) == 5
    document = '{"apiVersion": "v1", "kind": "List", "items": []}'
    for words in [*told, ["kubectl", "auth", "can-i", "create", "jobs.batch", "--namespace", "ml"]]:
        done = subprocess.run(
            [*words, "--server", "http://127.0.0.1:9", "--request-timeout=2s"],
            input=document,
            capture_output=True,
            text=True,
            env={**os.environ, "KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)},
            timeout=300,
        )
        assert "refused" in done.stderr, f"{words}\n{done.stdout}{done.stderr}"
