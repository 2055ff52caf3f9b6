"""The lists of packages: each package stands in one of them, and what two files must agree on is the same in both."""

from __future__ import annotations

import re
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
