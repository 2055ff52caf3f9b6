"""Where things stand and what they are called."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from structure.repository import CPP_SUFFIXES, LIBRARIES, code_of, files, line_of, read

ROOT_FOLDERS = {*LIBRARIES, "python", "tests", "experiments"}
EMPTY_STEMS = {"util", "utils", "helper", "helpers", "common", "misc", "manager", "base", "impl"}
EMPTY_NAME = re.compile(
    r"\b(?:class|struct|enum class|concept)\s+(\w+(?:Manager|Utils?|Helpers?|Base|Impl))\b"
)
# Written in two halves, or this file would be its own first finding.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:" + "|".join(["wor" + "k/", "roo" + "t/", "far" + r"m\b"]) + ")")


def test_the_root_holds_only_the_folders_of_the_picture() -> None:
    folders = {path.parts[0] for path in files() if len(path.parts) > 1}
    assert {folder for folder in folders if not folder.startswith(".")} - ROOT_FOLDERS == set()


def test_libraries_have_one_level_of_rooms() -> None:
    nested = [path for path in files() if path.parts[0] in LIBRARIES and len(path.parts) > 3]
    assert not nested


def test_no_file_is_named_for_nothing() -> None:
    assert not [path for path in files() if path.stem.lower().removeprefix("_") in EMPTY_STEMS]


def empty_names(text: str) -> list[str]:
    return EMPTY_NAME.findall(code_of(text))


def test_no_type_is_named_for_nothing() -> None:
    sources = [path for path in files() if path.suffix in {".h", ".cpp", ".cu", ".py"}]
    assert not [f"{path}: {name}" for path in sources for name in empty_names(read(path))]


def machine_paths(where: str, text: str) -> list[str]:
    return [f"{where}:{line_of(text, m.start())}: {m.group()}" for m in MACHINE_PATH.finditer(text)]


def test_no_file_holds_a_path_of_one_machine() -> None:
    assert not [bad for path in files() for bad in machine_paths(str(path), read(path))]


@pytest.mark.parametrize("word", ["BufferManager", "StringUtils", "CodecBase", "EngineImpl"])
def test_a_planted_empty_name_is_found(word: str) -> None:
    assert empty_names(f"class {word} {{") == [word]
    assert not empty_names(f"// class {word}")


@pytest.mark.parametrize("text", ["cd /wor" + "k/x", "HOME=/roo" + "t/y", '"/far' + 'm"'])
def test_a_planted_machine_path_is_found(text: str) -> None:
    assert machine_paths("x", text)
    assert not machine_paths("x", "example.org/wor" + "k/y and ./roo" + "t/z and /farmer")


def test_every_folder_of_an_experiment_says_what_it_asks() -> None:
    experiments = {
        Path(*path.parts[:2]) for path in files() if path.parts[0] == "experiments" and len(path.parts) > 2
    }
    documented = {path.parent for path in files() if path.name == "README.md"}
    assert experiments - documented == set()


# A header as comments name it: wire/key.h. What stands in an #include, the compiler checks.
NAMED_HEADER = re.compile(r"(?<![\w/<.-])((?:[a-z_0-9]+/)+[a-z_0-9]+\.h)\b")
OTHERS_HEADERS = ("hwy/", "src/kvstore/")


def missing_headers(text: str, known: set[str]) -> list[str]:
    comments = "\n".join(re.findall(r"//[^\n]*", text))
    named = set(NAMED_HEADER.findall(comments))
    ours = {name for name in named if not name.startswith(OTHERS_HEADERS)}
    return sorted(name for name in ours if not any(f"/{path}".endswith(f"/{name}") for path in known))


def test_comments_name_headers_that_exist() -> None:
    known = {path.as_posix() for path in files() if path.suffix == ".h"}
    sources = [path for path in files() if path.suffix in CPP_SUFFIXES]
    assert not [f"{path}: {name}" for path in sources for name in missing_headers(read(path), known)]


def test_a_planted_missing_header_is_found() -> None:
    assert missing_headers("// see wire/gone.h\nint x;", {"kvstore/wire/key.h"}) == ["wire/gone.h"]
    assert not missing_headers("// see wire/key.h and kvstore/wire/key.h", {"kvstore/wire/key.h"})


def missing_experiments(text: str, known: set[str]) -> list[str]:
    return sorted(set(re.findall(r"(?<![\w/.])experiments/([a-z_0-9]+)", text)) - known)


def test_sources_name_experiments_that_exist() -> None:
    known = {path.parts[1] for path in files() if path.parts[0] == "experiments"}
    sources = [path for path in files() if path.parts[0] != "tests" and path.suffix in {*CPP_SUFFIXES, ".py"}]
    assert not [f"{path}: {name}" for path in sources for name in missing_experiments(read(path), known)]


def test_a_planted_missing_experiment_is_found() -> None:
    assert missing_experiments("// as fast (experiments/gone)", {"ps_round"}) == ["gone"]
    assert not missing_experiments("// experiments/ps_round, tests/experiments/gone_test.py", {"ps_round"})


def test_the_frame_fuzzer_has_all_that_its_parsers_include() -> None:
    """It is linked by make soak alone, from files that CMakeLists.txt names."""
    found = re.search(r"set\(parsers ([^)]+)\)", read(Path("CMakeLists.txt")))
    assert found is not None
    named = {f"transport/{name}" for name in found[1].split()}
    paths = {str(path) for path in files()}
    included = {
        stem
        for name in named
        for source in (f"{name}.h", f"{name}.cpp")
        if source in paths
        for stem in re.findall(r'#include "(transport/[^"]+)\.h"', read(Path(source)))
        if f"{stem}.cpp" in paths
    }
    assert included - named == set()
