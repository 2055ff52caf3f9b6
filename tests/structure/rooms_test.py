"""Each room includes what the table allows it, has a README, and is small; libraries have one level of rooms."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from structure.repository import LIBRARIES, ROOT, cpp_files, files, read
from structure.rooms import (
    CONTRACT,
    MOST_FILES,
    PACKAGES,
    PYTHON,
    ROOMS,
    Include,
    classes_of,
    function_lines,
    imports,
    imports_of,
    includes,
    includes_of,
    library_of,
    module_of,
    package_of,
    room_of,
)

FOLDERS = sorted(set(ROOMS) - {CONTRACT})


def test_includes_follow_the_table() -> None:
    found = includes()
    assert len(found) > 100
    assert not [str(each) for each in found if not each.is_allowed]


def test_imports_follow_the_table() -> None:
    found = imports()
    assert len(found) > 100
    assert not [str(each) for each in found if not each.is_allowed]


def test_the_tables_allow_nothing_that_nobody_includes() -> None:
    for table, found in ((ROOMS, includes()), (PACKAGES, imports())):
        reached = {(each.source, each.target) for each in found}
        assert {(room, other) for room, allowed in table.items() for other in allowed} - reached == set()


def test_no_circle_can_be() -> None:
    for table in (ROOMS, PACKAGES):
        for place, (room, allowed) in enumerate(table.items()):
            assert allowed <= set(list(table)[:place]), room
    assert all(library_of(other) == library_of(room) for room in ROOMS for other in ROOMS[room])


def test_every_file_is_in_a_room_of_the_table() -> None:
    assert {room_of(str(path)) for path in cpp_files(*LIBRARIES)} == set(ROOMS)
    package = [path for path in files() if path.suffix == ".py" and path.is_relative_to(PYTHON)]
    assert {package_of(module_of(path)) for path in package} - {""} == set(PACKAGES)


def test_no_room_is_large() -> None:
    package = [path for path in files() if path.suffix == ".py" and path.is_relative_to(PYTHON)]
    sizes = Counter(str(path.parent) for path in [*cpp_files(*LIBRARIES), *package])
    assert not {room: size for room, size in sizes.items() if size > MOST_FILES}


# One mutex and one I/O thread: parts would share all of it.
LARGE_CLASSES = {"MpiEndpoint"}


def test_no_class_and_no_header_of_the_store_is_large() -> None:
    headers = [path for path in cpp_files(*LIBRARIES) if path.suffix == ".h"]
    assert {
        name for path in headers for name, size in classes_of(read(path)).items() if size > 45
    } == LARGE_CLASSES
    assert not [str(path) for path in headers if path.parts[0] == "kvstore" and read(path).count("\n") > 200]


def test_no_function_is_long() -> None:
    sources = [path for path in files() if path.suffix == ".py" and path.is_relative_to(PYTHON)]
    longest = {str(path): max(function_lines(path), default=0) for path in [*cpp_files(*LIBRARIES), *sources]}
    assert not {path: lines for path, lines in longest.items() if lines > 60}


@pytest.mark.parametrize("room", FOLDERS)
def test_a_room_says_what_it_owns(room: str) -> None:
    text = (ROOT / room / "README.md").read_text()
    if "/" not in room:  # a library's own README has its formats
        return
    assert text.startswith(f"# {room}\n")
    assert 10 <= text.count("\n") <= 30
    assert "**Never**" in text
    named = [word for word in text.split("`") if word.endswith(".h") and "*" not in word]
    missing = [word for word in named if not (ROOT / room / word).is_file()]
    assert not missing


@pytest.mark.parametrize("room", [room for room in FOLDERS if "/" in room])
def test_tests_of_a_room_stand_in_its_mirror(room: str) -> None:
    stray = [
        path
        for path in cpp_files(f"tests/{library_of(room)}")
        if path.parent == Path("tests") / library_of(room)
        and (ROOT / room / f"{path.stem.removesuffix('_test')}.h").is_file()
    ]
    assert not stray


# What the table and the measures are made of, on planted text


def test_a_planted_include_is_found() -> None:
    text = '#include "kvstore/engine/engine.h"\n#include "transport/frame.h"\n#include "kvstore/wire/key.h"\n'
    found = list(includes_of("kvstore/client/x.h", text))
    assert found == [
        Include("kvstore/client/x.h", 1, "kvstore/client", "kvstore/engine", False),
        Include("kvstore/client/x.h", 3, "kvstore/client", "kvstore/wire", True),
    ]
    assert str(found[0]) == "kvstore/client/x.h:1: kvstore/client may not include kvstore/engine"
    own = list(
        includes_of("compress/payload/x.h", '#include "compress/codec.h"\n#include "compress/codecs.h"\n')
    )
    assert [each.is_allowed for each in own] == [True, False]


def test_a_planted_import_is_found() -> None:
    text = """import os
from gradwire import _core, kv
from gradwire.settings import units
from gradwire.bench.plan import RoundPlan


def f():
    from gradwire.ab import command
"""
    found = list(imports_of(PYTHON / "launch" / "x.py", text, {"gradwire.kv", "gradwire.settings.units"}))
    assert [(each.line, each.target, each.is_allowed) for each in found] == [
        (2, "stores", True),
        (3, "settings", True),
        (4, "bench", False),
    ]


def test_functions_of_a_class_are_counted() -> None:
    text = """class A final : private B {
 public:
  A() : b_(0) { f(); }
  A(const A&) = delete;
  /// not(this)
  int f(int x, std::function<void(int)> done) const;
  template <typename T>
  T g() { return T(); }

 private:
  struct Inner {
    void h();
  };
  std::function<void(int)> done_;
  int b_ = f();
};
"""
    assert classes_of(text) == {"A": 3}


def test_functions_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "x.cpp"
    file.write_text(
        "namespace a {\nint declared(\n    int b);\nconstexpr int kX = 1;\n\nint f(\n    int b) {\n  return b;\n}\n\n"
        "struct S {\n  int x;\n};\nint g() { return 1; }\n}  // namespace a\n"
    )
    assert function_lines(file) == [4, 1]
    other = tmp_path / "x.py"
    other.write_text(
        'def f(\n    a,\n):\n    """What it\n\n    does."""\n    return 1\n\n\n'
        "class A:\n    def g(self):\n        x = 1\n        return x\n"
    )
    assert function_lines(other) == [1, 2]


def test_the_measures_read_the_tree() -> None:
    counted = classes_of(read(Path("kvstore/engine/engine.h")))
    assert counted["Engine"] > 30
