"""python/wheel_symbols.py: the versions of symbols that a library asks for, on Debian's own."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from python.experiment_files import load

FOLDER = Path(__file__).resolve().parents[2] / "python"
LIBRARY = Path(f"/usr/lib/{os.uname().machine}-linux-gnu/libzmq.so.5")
NEWER, OLDER = "GLIBCXX_3.4.30", "GLIBCXX_3.4.11"

symbols: Any = load(FOLDER / "wheel_symbols.py")


def versions_by_readelf(file: Path) -> set[str]:
    said = subprocess.run(["readelf", "-V", str(file)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"Name: (\S+) +Flags:", said))


@pytest.fixture
def library(tmp_path: Path) -> Path:
    if not LIBRARY.exists() or NEWER not in symbols.needed_versions(LIBRARY.read_bytes()):
        pytest.skip(f"needs a {LIBRARY} that was compiled with GCC 12 or later, as Debian 12's")
    return Path(shutil.copy(LIBRARY, tmp_path / "libzmq.so.5"))


def test_versions_are_those_that_readelf_shows() -> None:
    for file in (LIBRARY, Path(sys.executable).resolve()):
        if not file.exists():
            continue
        assert symbols.needed_versions(file.read_bytes()) == versions_by_readelf(file)


def test_the_newer_version_is_asked_for_no_more(library: Path) -> None:
    before, size = versions_by_readelf(library), library.stat().st_size
    assert symbols.relax(library) == {NEWER}
    assert versions_by_readelf(library) == before - {NEWER}
    assert library.stat().st_size == size
    assert symbols.relax(library) == set(), "there is nothing left to do"


def test_the_library_works_as_before(library: Path) -> None:
    symbols.relax(library)
    zmq = ctypes.CDLL(str(library))
    zmq.zmq_ctx_new.restype = ctypes.c_void_p
    context = zmq.zmq_ctx_new()
    assert context
    assert zmq.zmq_ctx_term(ctypes.c_void_p(context)) == 0


def test_a_version_with_another_symbol_stays(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = library.read_bytes()
    monkeypatch.setattr(symbols, "OLDER", {NEWER: (OLDER, frozenset())})
    assert symbols.relax(library) == set()
    assert library.read_bytes() == before


def test_a_version_whose_older_one_is_not_named_stays(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = library.read_bytes()
    monkeypatch.setattr(symbols, "OLDER", {NEWER: ("GLIBCXX_3.4.77", symbols.OLDER[NEWER][1])})
    assert symbols.relax(library) == set()
    assert library.read_bytes() == before


def test_what_is_no_program_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "script.py"
    text.write_text("print()")
    assert not symbols.is_elf(text)
    assert symbols.is_elf(Path(sys.executable).resolve())
