"""One compiler cache serves every clone: no path of one is compiled in, and what one has compiled another need not."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from structure.repository import ROOT, read

TREE = ROOT / "build" / "release"
UNIT = "fusion/CMakeFiles/gradwire_fusion.dir/Unity/unity_fusion_cxx.cxx"
"""The files of a folder, compiled as one by compile_by_folder() of CMakeLists.txt. It has their whole paths."""


def commands() -> list[dict[str, Any]]:
    file = TREE / "compile_commands.json"
    if not file.exists():
        pytest.skip("nothing has been built here: make build")
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return rows


def test_no_path_of_a_clone_is_compiled_in() -> None:
    defined = {word for row in commands() for word in shlex.split(row["command"]) if word.startswith("-D")}
    assert not [word for word in defined if str(ROOT) in word]


def compiled(row: dict[str, Any], root: Path, log: Path) -> str:
    """Compiles a file of a clone through the cache and returns what the cache has noted."""
    log.write_text("")
    words = shlex.split(row["command"].replace(str(ROOT), str(root)))
    environment = os.environ | {"CCACHE_BASEDIR": str(root), "CCACHE_STATSLOG": str(log)}
    directory = Path(row["directory"].replace(str(ROOT), str(root)))
    (directory / Path(words[words.index("-o") + 1]).parent).mkdir(parents=True, exist_ok=True)
    subprocess.run(["ccache", *words], cwd=directory, env=environment, check=True)
    return log.read_text()


def test_a_second_clone_compiles_nothing(tmp_path: Path) -> None:
    (row,) = [row for row in commands() if row["file"] == str(TREE / UNIT)]
    clones = [tmp_path / name for name in ("one", "two")]
    for clone in clones:
        shutil.copytree(ROOT / "fusion", clone / "fusion")
        unit = clone / TREE.relative_to(ROOT) / UNIT
        unit.parent.mkdir(parents=True)
        unit.write_text((TREE / UNIT).read_text().replace(str(ROOT), str(clone)))
    compiled(row, clones[0], tmp_path / "log")
    assert "cache_hit" in compiled(row, clones[1], tmp_path / "log")


def test_the_makefile_has_the_flags_of_the_preset() -> None:
    """Or make and cmake --preset would compile everything anew after each other, in one tree."""
    presets = json.loads(read(Path("CMakePresets.json")))["configurePresets"]
    preset = {name: row["cacheVariables"] for row in presets if (name := row["name"]) in ("base", "release")}
    line = next(line for line in read(Path("Makefile")).splitlines() if line.startswith("FLAGS ="))
    given = dict(
        word.split("=", 1) for word in re.findall(r"\b(?:CMAKE|GRADWIRE)_\w+=\S+", line.replace(")", ""))
    )
    assert given.pop("GRADWIRE_TESTS") == "ON"
    assert given == preset["base"]
    assert preset["release"] == {"CMAKE_BUILD_TYPE": "Release"}
