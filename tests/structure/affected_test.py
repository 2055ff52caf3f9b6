"""tests/affected.py: which tests a change concerns."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import affected, run
from tests.affected import PythonTests, changed_since, concerns_experiments, cpp_folders


def paths(*names: str) -> set[Path]:
    return {Path(name) for name in names}


@pytest.fixture
def tests(tmp_path: Path) -> PythonTests:
    files = {
        "python/gradwire/units.py": "",
        "python/gradwire/torch/ddp/hook.py": "",
        "experiments/lenet/run.py": "",
        "tests/integration/sums_worker.py": "from gradwire import units",
        "tests/integration/jobs.py": "SCRIPT = 'sums_worker.py'",
        "tests/integration/death_test.py": "from integration.jobs import SCRIPT",
        "tests/python/units_test.py": "",
        "tests/python/torch_ddp_test.py": "",
        "tests/experiments/lenet_test.py": "FOLDER = Path('experiments') / 'lenet'",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return PythonTests(tmp_path)


@pytest.mark.parametrize(
    ("changed", "concerned"),
    [
        ("tests/integration/death_test.py", ["tests/integration/death_test.py"]),
        ("tests/integration/sums_worker.py", ["tests/integration/death_test.py"]),
        ("python/gradwire/units.py", ["tests/integration/death_test.py", "tests/python/units_test.py"]),
        ("python/gradwire/torch/ddp/hook.py", ["tests/python/torch_ddp_test.py"]),
        ("experiments/lenet/README.md", ["tests/experiments/lenet_test.py"]),
        ("README.md", []),
    ],
)
def test_a_python_test_is_concerned_by_what_it_uses(
    tests: PythonTests, changed: str, concerned: list[str]
) -> None:
    assert list(map(str, tests.affected(paths(changed)))) == concerned


@pytest.mark.parametrize(
    ("changed", "folders"),
    [
        ("compress/codec.h", ["compress", "kvstore"]),
        ("kvstore/server/server.cpp", ["kvstore"]),
        ("tests/fusion/bucket_test.cpp", ["fusion"]),
        ("tests/CMakeLists.txt", ["compress", "fusion", "transport", "kvstore"]),
        ("CMakeLists.txt", ["compress", "fusion", "transport", "kvstore"]),
        ("python/gradwire/kv.py", []),
    ],
)
def test_a_library_concerns_those_above_it(changed: str, folders: list[str]) -> None:
    assert cpp_folders(paths(changed)) == folders


def test_tests_of_other_things_do_not_concern_the_experiments() -> None:
    assert not concerns_experiments(paths("tests/python/kv_test.py", "README.md", "experiments/x/README.md"))
    for path in (
        "experiments/x/run.py",
        "tests/experiments/x_test.py",
        "python/gradwire/kv.py",
        "fusion/bucket.h",
    ):
        assert concerns_experiments(paths(path)), path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    def git(*words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "safe.directory=*"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-b", "main")
    (tmp_path / "one").write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    return tmp_path


def test_a_base_is_known_where_something_has_changed_since(repository: Path) -> None:
    assert affected.base_commit(repository) is None, "a fresh clone: nothing has changed"
    (repository / "two").write_text("2")
    base = affected.base_commit(repository)
    assert base is not None
    assert changed_since(base, repository) == {Path("two")}
    with pytest.raises(ValueError, match="'no-such' is not a commit"):
        changed_since("no-such", repository)


def test_without_a_remote_no_base_is_known(repository: Path) -> None:
    subprocess.run(
        ["git", "-c", "safe.directory=*", "update-ref", "-d", "refs/remotes/origin/main"],
        cwd=repository,
        check=True,
    )
    (repository / "two").write_text("2")
    assert affected.base_commit(repository) is None


def test_words_choose_what_runs() -> None:
    plan = run.Plan.of_words(["kvstore", "tests/python/kv_test.py", "fusion"])
    assert (plan.cpp_folders, plan.places, plan.checks) == (
        ["kvstore", "fusion"],
        ["tests/python/kv_test.py"],
        False,
    )
    one = run.Plan.of_words(["tests/fusion/bucket_test.cpp"])
    assert (one.cpp_folders, one.cpp_files) == (["fusion"], ["tests/fusion/bucket_test.cpp"])
    with pytest.raises(ValueError, match="ONLY='kv' is nothing that can be tested: expected compress, "):
        run.Plan.of_words(["kv"])
    with pytest.raises(ValueError, match="cannot be combined"):
        run.Plan.of_words(["kvstore", "tests/fusion/bucket_test.cpp"])
    assert run.Plan.everything(with_experiments=False).places == ["tests", "--ignore=tests/experiments"]
