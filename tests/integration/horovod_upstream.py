"""Runs Horovod's own tests against gradwire.horovod, and counts them by family.

    python tests/integration/horovod_upstream.py HOROVOD/test/parallel/test_torch.py --ranks 2 --ranks 3
    python tests/integration/horovod_upstream.py HOROVOD/test/parallel/test_mxnet1.py --ranks 2 --ranks 3

test/single/test_torch_elastic.py goes too, with --ranks 1. The file is Horovod's, from a checkout of it
(https://github.com/horovod/horovod), unchanged; nothing is fetched. It does `import horovod.torch` or `horovod.mxnet`,
which gradwire's shim answers; one with "mxnet" in its name runs under MXNet's Python (mxnet_environment.py). Its helper
module imports mock and cloudpickle, and one function of horovod.runner, which only other tests need: the standard
library stands in for those here.

A test counts as passed if it passed on every rank. One that fails on some ranks only leaves them at different places,
and ends the job; another one goes on with the tests behind it. Returns 0 if there were tests and none failed. A job
that fails without a test that says why is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import sysconfig
import tempfile
import threading
import types
import unittest
import unittest.mock
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TIMEOUT = 1800.0  # seconds, of one job
_PATIENCE = "60"  # seconds that ranks wait for one that has failed a test and gone on to the next

_NOT_TO_ITS_END = ("failed", "begun", "missing")  # outcomes of a test that explain why a job ended

# The first of these words in a test's name is its family.
_FAMILIES = (
    *("grouped_allreduce", "grouped_allgather", "grouped_reducescatter", "reducescatter", "join"),
    *("process_set_barrier", "barrier", "sparse", "allreduce", "allgather", "alltoall", "broadcast"),
)


def family_of(test: str) -> str:
    """Returns what a test of Horovod's is about, by its name."""
    if test == "test_force_allreduce" or "optimizer" in test:
        return "optimizer"
    if "elastic" in test:
        return "elastic"
    found = next((family for family in _FAMILIES if family in test), None)
    if found is not None:
        return found.replace("process_set_barrier", "barrier")
    return "core" if test.startswith("test_horovod_") or test == "test_gpu_required" else "optimizer"


class _Record(unittest.TestResult):
    """Writes each test's outcome to a file at once, so that a job that hangs tells where."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("w", encoding="utf-8")

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._write(test, "begun", "")

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._write(test, "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._write(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        from gradwire.horovod import session

        self._write(test, "failed", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]
        if session.exists() and session.current().coordinator.job_has_failed:
            self.stop()

    addError = addFailure

    def _write(self, test: unittest.TestCase, outcome: str, why: str) -> None:
        row = {"test": _name(test), "outcome": outcome, "why": why}
        print(json.dumps(row), file=self._file, flush=True)


def _stand_in_for_helpers() -> None:
    def in_thread(target: Callable[[], None], daemon: bool = True) -> threading.Thread:
        thread = threading.Thread(target=target, daemon=daemon)
        thread.start()
        return thread

    threads = types.ModuleType("horovod.runner.util.threads")
    threads.in_thread = in_thread  # type: ignore[attr-defined]
    for name in ("horovod.runner", "horovod.runner.util"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[threads.__name__] = threads
    sys.modules.setdefault("mock", unittest.mock)
    sys.modules.setdefault("cloudpickle", pickle)


def _hide_newer_optimizers() -> None:
    """Three tests make every optimizer of torch.optim, for a model with biases. Muon, of torch 2.9, refuses those in
    its constructor. The tests are older than it, and leave out what is of another module.
    """
    import torch

    if hasattr(torch.optim, "Muon"):
        torch.optim.Muon.__module__ = "newer than Horovod's tests"


def _is_of_mxnet(path: Path) -> bool:
    return "mxnet" in path.stem


def run_as_rank(path: Path, pattern: str, behind: str, folder: Path) -> None:
    """Runs the file's tests as one rank of a job, and writes what came of them to folder."""
    import gradwire.horovod.shim

    rank = os.environ["GRADWIRE_RANK"]
    os.environ |= {"HOROVOD_RANK": rank, "HOROVOD_SIZE": os.environ["GRADWIRE_NUM_WORKERS"]}
    gradwire.horovod.shim.install()
    _stand_in_for_helpers()
    if _is_of_mxnet(path):
        sys.path.append(os.environ["TEST_PACKAGES"])  # packaging and pytest, which the file imports
    else:
        _hide_newer_optimizers()
    sys.path.insert(0, str(path.parent))
    loader = unittest.defaultTestLoader
    loader.testNamePatterns = [f"*{pattern}*"]
    tests = [test for case in loader.loadTestsFromName(path.stem) for test in case]
    unittest.TestSuite(test for test in tests if _name(test) > behind).run(_Record(folder / rank))


def _name(test: unittest.TestCase) -> str:
    return test.id().rpartition(".")[2]


def run_jobs(path: Path, ranks: int, pattern: str) -> dict[str, tuple[str, str]]:
    """Runs jobs of so many ranks until every test has had its turn. Returns outcome and reason by test: the
    worst of all ranks.

    Raises: SystemExit: a job died where no test was under way, or the file has no such test.
    """
    outcomes: dict[str, tuple[str, str]] = {}
    while True:
        last = max(outcomes, default="")
        found, exit_code = run_job(path, ranks, pattern, last)
        outcomes |= found
        if exit_code != 0 and not any(outcome in _NOT_TO_ITS_END for outcome, _ in found.values()):
            place = max(outcomes, default="")
            raise SystemExit(
                f"the job of {ranks} ranks ended with exit code {exit_code} "
                f"{f'behind {place}' if place else 'before its first test'}, where no test failed; see its lines above"
            )
        if not outcomes:
            raise SystemExit(f"{path} has no test with {pattern!r} in its name")
        if not found or found[max(found)][0] in ("passed", "skipped"):  # to its end
            return outcomes


def run_job(path: Path, ranks: int, pattern: str, behind: str) -> tuple[dict[str, tuple[str, str]], int]:
    """Runs the tests whose names come behind one, in the order of names, until one fails on some ranks only. Returns
    also the job's exit code.
    """
    from gradwire.launch import supervisor as launch

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, variables = _program(path, folder)
        command = [*program, str(path), "--as-rank", "--folder", name]
        command += ["--pattern", pattern, "--behind", behind]
        said: list[str] = []
        ended = launch.run_job(
            command,
            workers=ranks,
            servers=0,
            env={"GRADWIRE_SLOW_ABORT": _PATIENCE, **variables},
            output=lambda line: said.append(f"{line.role} {line.rank}: {line.text}"),
            report=said.append,
            timeout=_TIMEOUT,
        )
        records = [_read(folder / str(rank)) for rank in range(ranks)]
    if ended.exit_code != 0:
        print("\n".join(said[-30:]))
    tests = sorted(set().union(*records))
    outcomes = {test: _worst([record.get(test, ("missing", "")) for record in records]) for test in tests}
    return outcomes, ended.exit_code


def _program(path: Path, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Returns the command of this file as a rank, and the variables that it needs."""
    if not _is_of_mxnet(path):
        return [sys.executable, __file__], {}
    import mxnet_environment

    packages = {"TEST_PACKAGES": sysconfig.get_paths()["purelib"]}
    exec_as_mxnet = str(Path(__file__).with_name("mxnet_exec.py"))
    return [sys.executable, exec_as_mxnet, __file__], mxnet_environment.variables(folder) | packages


def _read(path: Path) -> dict[str, tuple[str, str]]:
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    told = [row for row in rows if row["outcome"] != "begun"]
    first = {
        row["test"]: (row["outcome"], row["why"]) for row in reversed(told)
    }  # and not what tearDown() adds
    return {row["test"]: first.get(row["test"], ("begun", "")) for row in rows}


def _worst(outcomes: list[tuple[str, str]]) -> tuple[str, str]:
    order = ("failed", "begun", "missing", "skipped", "passed")
    # Of ranks that have failed, one that has found something wrong, and not those that then waited for it.
    return min(outcomes, key=lambda outcome: (order.index(outcome[0]), "HorovodInternalError" in outcome[1]))


def show(ranks: int, outcomes: dict[str, tuple[str, str]]) -> int:
    """Prints counts by family, and every test that was skipped or failed. Returns how many have not passed."""
    by_family: dict[str, Counter[str]] = {}
    for test, (outcome, _) in outcomes.items():
        word = outcome if outcome in ("passed", "skipped") else "failed"
        by_family.setdefault(family_of(test), Counter())[word] += 1
    print(f"\n{ranks} ranks: {'family':24} passed skipped failed")
    total: Counter[str] = Counter()
    for family, counts in sorted(by_family.items()):
        total += counts
        print(f"{'':9}{family:24} {counts['passed']:6} {counts['skipped']:7} {counts['failed']:6}")
    print(f"{'':9}{'all':24} {total['passed']:6} {total['skipped']:7} {total['failed']:6}")
    for test, (outcome, why) in sorted(outcomes.items()):
        if outcome != "passed":
            print(f"{outcome}: {test}: {why.strip().splitlines()[-1] if why.strip() else 'no word'}")
    return total["failed"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="Horovod's test/parallel/test_torch.py or test_mxnet1.py")
    parser.add_argument(
        "--ranks", type=int, action="append", help="how many; again for another job (default: 2)"
    )
    parser.add_argument("--pattern", default="", help="only tests with this in their names")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--behind", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    path = given.path.resolve(strict=True)
    if given.as_rank:
        run_as_rank(path, given.pattern, given.behind, given.folder)
        return 0
    return min(1, sum(show(ranks, run_jobs(path, ranks, given.pattern)) for ranks in given.ranks or [2]))


if __name__ == "__main__":
    sys.exit(main())
