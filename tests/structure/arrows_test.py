"""Arrows never turn back: the includes and the link lines are exactly those of the picture in the README.

compress, fusion and transport are leaves that do not know each other; kvstore joins them; python drives it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from structure.repository import LIBRARIES, ROOT, cpp_files, line_of, read

LEAVES = {"compress", "fusion", "transport"}
ALLOWED = {
    **{leaf: {leaf} for leaf in LEAVES},
    "kvstore": LEAVES | {"kvstore"},
    "python": LEAVES | {"kvstore", "python"},
}
OURS = {*ALLOWED, "tests", "experiments"}
# The one folder that may know each third-party library.
HOME = {
    "hwy": "compress",
    "thrust": "compress",
    "cub": "compress",
    "cuda": "compress",
    "zmq": "transport",
    "mpi": "transport",
    "nanobind": "python",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
LINK = re.compile(r"target_link_libraries\(\s*(\S+)([^)]*)\)")


def follows_an_arrow(folder: str, include: str, quoted: bool) -> bool:
    top = include.split("/")[0]
    if top in OURS:
        return top in ALLOWED[folder]
    if quoted and "/" not in include:  # from the root, never from beside; the bindings are one unit and may
        return folder == "python"
    return HOME.get(top.split(".")[0], folder) == folder


def bad_includes(folder: str, where: str, text: str) -> list[str]:
    return [
        f"{where}:{line_of(text, match.start(1))}: {folder} may not include {match[2]}"
        for match in INCLUDE.finditer(text)
        if not follows_an_arrow(folder, match[2], match[1] == '"')
    ]


def bad_links(folder: str, text: str) -> list[str]:
    """Returns the gradwire libraries that a CMakeLists.txt links against the arrows."""
    linked = {name for match in LINK.finditer(text) for name in re.findall(r"\bgradwire_(\w+)", match[2])}
    return [f"{folder}/CMakeLists.txt links gradwire_{name}" for name in sorted(linked - ALLOWED[folder])]


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_includes_follow_the_arrows(folder: str) -> None:
    sources = cpp_files("python/src" if folder == "python" else folder)
    assert sources, f"{folder} has no C++ files"
    assert not [bad for path in sources for bad in bad_includes(folder, str(path), read(path))]


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_link_lines_follow_the_arrows(folder: str) -> None:
    assert not bad_links(folder, read(Path(folder) / "CMakeLists.txt"))


@pytest.mark.parametrize("folder", LIBRARIES)
def test_folder_target_and_namespace_share_one_name(folder: str) -> None:
    assert f"add_library(gradwire_{folder} " in read(Path(folder) / "CMakeLists.txt")
    assert (ROOT / folder / "README.md").is_file(), f"{folder}/README.md is missing"
    for path in cpp_files(folder):
        assert set(re.findall(r"^namespace gradwire::(\w+)", read(path), re.MULTILINE)) <= {folder}, path


def includes_deep(path: Path, seen: set[Path]) -> set[str]:
    """Returns what a test includes, also by headers of tests."""
    found = {match[2] for match in INCLUDE.finditer(read(path))}
    for include in sorted(found):
        header = Path(include)
        if header.parts[0] == "tests" and header not in seen and (ROOT / header).is_file():
            seen.add(header)
            found |= includes_deep(header, seen)
    return found


def test_what_needs_thrust_is_named_so_that_a_build_without_it_leaves_it_out() -> None:
    sources = [path for path in cpp_files("tests") if path.name.endswith("_test.cpp")]
    needing = [
        path for path in sources if any(name.startswith("thrust/") for name in includes_deep(path, set()))
    ]
    assert needing
    assert not [path for path in needing if not path.name.endswith("_thrust_test.cpp")]


def test_a_planted_arrow_is_found() -> None:
    assert bad_includes("fusion", "x.h", '#include "fusion/a.h"\n#include "transport/b.h"') == [
        "x.h:2: fusion may not include transport/b.h"
    ]
    for folder, line in [("kvstore", '"python/src/b.h"'), ("kvstore", "<zmq.h>"), ("compress", '"codec.h"')]:
        assert bad_includes(folder, "x.h", f"#include {line}")
    assert bad_includes("kvstore", "x.cu", "#include <thrust/for_each.h>")
    assert not bad_includes("compress", "x.cpp", '#include "hwy/highway.h"\n#include <span>')
    assert not bad_includes("compress", "x.cu", "#include <thrust/for_each.h>\n#include <cuda/atomic>")
    assert bad_links("fusion", "target_link_libraries(gradwire_fusion PUBLIC gradwire_compress)")
    assert not bad_links("kvstore", "target_link_libraries(gradwire_kvstore PUBLIC gradwire_fusion fmt::fmt)")
