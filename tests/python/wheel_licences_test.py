"""python/wheel_licences.py: whose licences go into a wheel that carries libraries."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from python.experiment_files import load

SCRIPT = Path(__file__).resolve().parents[2] / "python" / "wheel_licences.py"
LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libzmq.so.5")

licences: Any = load(SCRIPT)
needs_debian = pytest.mark.skipif(
    not LIBRARY.exists() or shutil.which("dpkg-query") is None, reason=f"needs Debian's {LIBRARY}"
)


def test_a_text_goes_with_the_long_ones_that_it_names(tmp_path: Path) -> None:
    docs, common = tmp_path / "doc", tmp_path / "common"
    (docs / "libzmq5").mkdir(parents=True)
    common.mkdir()
    (docs / "libzmq5" / "copyright").write_text("License: LGPL, in /usr/share/common-licenses/LGPL-3.\n")
    (common / "LGPL-3").write_text("the whole of it")
    texts = licences.texts_of({"libzmq5"}, docs, common)
    assert set(texts) == {"libzmq5", "LGPL-3"}
    assert texts["LGPL-3"] == b"the whole of it"


def test_a_package_without_a_copyright_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="libzmq5"):
        licences.texts_of({"libzmq5"}, tmp_path, tmp_path)


def test_a_library_that_nothing_was_linked_with_is_an_error_with_both_names(tmp_path: Path) -> None:
    linked = tmp_path / "libfmt.so.9.1.0"
    linked.touch()
    assert licences.origin("libfmt-4f700944.so.9.1.0", [linked]) == linked
    with pytest.raises(LookupError, match=r"libzmq-98f0defc\.so\.5\.2\.4.*libfmt\.so\.9\.1\.0"):
        licences.origin("libzmq-98f0defc.so.5.2.4", [linked])


@needs_debian
def test_a_wheel_gets_the_licences_of_what_it_carries(tmp_path: Path) -> None:
    (sodium,) = (path.resolve() for path in licences.linked_by(LIBRARY) if path.name.startswith("libsodium"))
    (tmp_path / "gradwire.libs").mkdir()
    shutil.copy(sodium, tmp_path / "gradwire.libs" / sodium.name.replace(".so", "-703b3f76.so", 1))
    info = tmp_path / "gradwire-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: gradwire\n\nText\n\nmore text\n")
    assert licences.add(tmp_path, [LIBRARY])[0] == "libsodium23"
    assert "Frank Denis" in (info / "licenses" / "third_party" / "libsodium23").read_text()
    head, _, body = (info / "METADATA").read_text().partition("\n\n")
    assert "License-File: third_party/libsodium23" in head.splitlines()
    assert "License-File: third_party/LIBRARIES.txt" in head.splitlines()
    listed = (info / "licenses" / "third_party" / "LIBRARIES.txt").read_text()
    (row,) = (line.split() for line in listed.splitlines() if line.startswith(sodium.name))
    assert row == [sodium.name, "libsodium23", licences.version_of("libsodium23"), "libsodium23"]
    assert body == "Text\n\nmore text\n"


@needs_debian
def test_libraries_are_found_under_the_name_that_their_package_gave_them() -> None:
    assert licences.package_of(LIBRARY) == "libzmq5"
    with pytest.raises(LookupError, match="no Debian package"):
        licences.package_of(SCRIPT)


def test_a_build_without_cuda_has_no_licence_of_it(tmp_path: Path) -> None:
    cache = tmp_path / "CMakeCache.txt"
    cache.write_text(
        "CMAKE_BUILD_TYPE:STRING=Release\nCUDA_cudart_static_LIBRARY:FILEPATH=/x/lib/libcudart_static.a\n"
    )
    assert licences.of_cuda_runtime(cache) is None
    cache.write_text("CMAKE_CUDA_COMPILER:FILEPATH=CMAKE_CUDA_COMPILER-NOTFOUND\n")
    assert licences.of_cuda_runtime(cache) is None


@pytest.mark.parametrize(
    "name", ["EULA.txt", "dist-info/nvidia_cuda_runtime-13.0.96.dist-info/licenses/License.txt"]
)
def test_the_licence_of_cuda_is_that_of_the_toolkit(tmp_path: Path, name: str) -> None:
    toolkit = tmp_path / "cuda"
    (toolkit / "lib").mkdir(parents=True)
    (toolkit / name).parent.mkdir(parents=True, exist_ok=True)
    (toolkit / name).write_text("terms")
    cache = tmp_path / "CMakeCache.txt"
    cache.write_text(
        "CMAKE_CUDA_COMPILER:STRING=/usr/local/bin/nvcc\n"
        f"CUDA_cudart_static_LIBRARY:FILEPATH={toolkit}/lib/libcudart_static.a\n"
    )
    assert licences.of_cuda_runtime(cache) == b"terms"
    (toolkit / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"libcudart_static\.a: no EULA\.txt"):
        licences.of_cuda_runtime(cache)


def test_the_licence_of_the_binding_is_that_of_its_package() -> None:
    assert b"Redistribution and use in source and binary forms" in licences.of_binding()
