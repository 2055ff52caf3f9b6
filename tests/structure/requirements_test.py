"""The lists of packages: each package stands in one of them, and what two files must agree on is the same in both."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from structure.repository import ROOT, read

KINDS = ("packages", "requirements")


def lists_of(kind: str) -> dict[str, list[str]]:
    """The packages of each list of a kind, as they are written."""
    files = sorted(path.name for path in ROOT.glob(f"{kind}*.txt"))
    lines = {name: [line.split("#")[0].strip() for line in read(Path(name)).splitlines()] for name in files}
    return {name: [line for line in of_file if line] for name, of_file in lines.items()}


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.+-]", requirement)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_no_package_is_listed_twice(kind: str) -> None:
    names = [name_of(line) for of_file in lists_of(kind).values() for line in of_file]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("kind", KINDS)
def test_the_makefile_installs_every_list(kind: str) -> None:
    (named,) = re.findall(rf"^ALL_{kind.upper()} := (.*)$", read(Path("Makefile")), re.MULTILINE)
    assert sorted(named.split()) == sorted(lists_of(kind))


def test_the_extension_is_built_with_what_pyproject_asks_for() -> None:
    (asked,) = re.findall(r"^requires = \[(.*)\]$", read(Path("pyproject.toml")), re.MULTILINE)
    assert lists_of("requirements")["requirements-build.txt"] == re.findall(r'"(.*?)"', asked)


def test_the_demo_has_what_gradwire_imports() -> None:
    (needed,) = re.findall(r"^dependencies = \[(.*)\]$", read(Path("pyproject.toml")), re.MULTILINE)
    installed = {name_of(line) for line in lists_of("requirements")["requirements.txt"]}
    assert {name_of(quoted) for quoted in re.findall(r'"(.*?)"', needed)} <= installed


DAEMONS = ("gridengine-exec", "gridengine-master", "munge", "openssh-server", "slurmctld", "slurmd")
"""What Debian starts once it is installed."""


def recipes(target: str) -> str:
    """What make would run for a target, with all that it depends on."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("target", ["demo", "wheel", "docs"])
def test_a_target_for_users_installs_no_daemon(target: str) -> None:
    installed = set(re.findall(r"\bpackages[\w-]*\.txt\b", recipes(target)))
    assert installed == ({"packages.txt", "packages-wheel.txt"} if target == "wheel" else {"packages.txt"})
    listed = lists_of("packages")
    assert not {name for file in installed for name in listed[file]} & set(DAEMONS)


def test_the_tests_install_every_package() -> None:
    assert set(lists_of("packages")) <= set(re.findall(r"\bpackages[\w-]*\.txt\b", recipes("test")))


def test_the_page_on_installing_names_the_daemons_of_the_tests() -> None:
    page = read(Path("python/docs/howto/install.md"))
    assert set(DAEMONS) <= set(lists_of("packages")["packages-test.txt"])
    assert not [name for name in DAEMONS if f"`{name}`" not in page]


def test_the_demo_ends_with_where_the_commands_are() -> None:
    assert (
        recipes("demo").rstrip().splitlines()[-1] == "echo 'gradwire is in .venv/bin: . .venv/bin/activate'"
    )
