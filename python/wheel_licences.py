"""The licence texts of the libraries that a wheel carries: what redistributing them requires.

Debian keeps the text of a package in /usr/share/doc/PACKAGE/copyright, and the long texts that those name, such as
the LGPL, in /usr/share/common-licenses. Both go into dist-info/licenses/third_party of the wheel, and are
License-Files of its metadata (PEP 639). LIBRARIES.txt there lists each library with its package, version and text.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

DOCS = Path("/usr/share/doc")
COMMON = Path("/usr/share/common-licenses")
FOLDER = "third_party"
LIST = "LIBRARIES.txt"
HEADERS = ("libcli11-dev",)
"""Packages whose code is compiled into the programs of a wheel. (Those of Thrust come with the CUDA toolkit.)"""
BINDING = "nanobind"
CUDA_RUNTIME = "cuda-runtime"
_LIST_HEAD = """\
These libraries are copies of those in Debian packages, unchanged but for the paths by which they find each other and
the versions of symbols that they ask for. Each text covers the whole source package, with programs and documentation
that are not in this wheel. The source of a package: https://sources.debian.org/src/

"""
_HASH = re.compile(r"-[0-9a-f]{8}(?=[.-])")  # what auditwheel puts into a library's name


def origin(carried: str, linked: list[Path]) -> Path:
    """Returns the file of this machine that a library of the wheel is a copy of.

    Args:
        carried: its name in the wheel, such as libzmq-98f0defc.so.5.2.4.
        linked: what the programs of the wheel were linked with (linked_by()).

    Raises:
        LookupError: none of them has this name.
    """
    name = _HASH.sub("", carried)
    for path in linked:
        if path.resolve().name == name:
            return path
    raise LookupError(
        f"{carried}: expected a copy of one of {', '.join(path.resolve().name for path in linked)}"
    )


def linked_by(program: Path) -> list[Path]:
    """Returns the libraries that the loader finds for a program or a library, theirs included."""
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"=> (/\S+)", said)]


def package_of(library: Path) -> str:
    """Returns the name of the Debian package that a library is of.

    Raises:
        LookupError: of none.
    """
    real = library.resolve()
    # A package may have put it into /lib, which is /usr/lib today: dpkg knows it by the name that it was given.
    for path in (real, Path("/") / real.relative_to("/usr")) if real.is_relative_to("/usr") else (real,):
        found = subprocess.run(
            ["dpkg-query", "--search", str(path)], capture_output=True, text=True, check=False
        )
        if found.returncode == 0:
            return found.stdout.split(":", 1)[0]
    raise LookupError(
        f"{real} is of no Debian package: its licence is not known; install the library from one"
    )


def version_of(package: str) -> str:
    """Returns the version of a Debian package that is installed."""
    command = ["dpkg-query", "--show", "--showformat=${Version}", package]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def listing(packages: dict[str, str], versions: dict[str, str]) -> str:
    """Returns a table of libraries: name, Debian package, version, and the file with the licence.

    Args:
        packages: by the name of the library.
        versions: by the name of the package.
    """
    head = ("library", "Debian package", "version", "licence text")
    rows = [
        head,
        *((library, package, versions[package], package) for library, package in sorted(packages.items())),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return _LIST_HEAD + "\n".join(lines) + "\n"


def texts_of(packages: set[str], docs: Path = DOCS, common: Path = COMMON) -> dict[str, bytes]:
    """Returns the texts of packages and of the licences that these name, by the file's name.

    Raises:
        FileNotFoundError: a package has no copyright file (some images of Debian leave /usr/share/doc out).
    """
    texts = {package: (docs / package / "copyright").read_bytes() for package in sorted(packages)}
    named = {
        name
        for text in texts.values()
        for name in re.findall(rb"/usr/share/common-licenses/([\w.+-]*\w)", text)
    }
    for name in sorted(named):
        texts[name.decode()] = (common / name.decode()).read_bytes()
    return texts


def of_binding() -> bytes:
    """Returns the licence of nanobind, whose code is in every extension, as pip installed it."""
    files = importlib.metadata.files(BINDING) or []
    (text,) = (file for file in files if file.name == "LICENSE")
    return text.read_binary()


def of_cuda_runtime(cache: Path) -> bytes | None:
    """Returns the licence of the CUDA runtime that a build has linked statically. None: it has not.

    Args:
        cache: CMakeCache.txt of the build.

    Raises:
        FileNotFoundError: the CUDA toolkit has no licence text.
    """
    settings = dict(re.findall(r"^(\w+):\w+=(.*)$", cache.read_text(), re.MULTILINE))
    if not settings.get("CMAKE_CUDA_COMPILER", "-NOTFOUND").startswith("/"):
        return None
    library = Path(settings["CUDA_cudart_static_LIBRARY"]).resolve()
    for folder in library.parents:
        for pattern in ("EULA.txt", "dist-info/nvidia_cuda_runtime-*/licenses/*"):
            if found := sorted(folder.glob(pattern)):
                return found[0].read_bytes()
    try:
        return (DOCS / package_of(library) / "copyright").read_bytes()
    except LookupError:
        raise FileNotFoundError(f"{library}: no EULA.txt was found in its CUDA toolkit") from None


def add(wheel_folder: Path, programs: list[Path], built_in: Mapping[str, bytes] | None = None) -> list[str]:
    """Puts the texts for all libraries of an unpacked wheel into it.

    Args:
        wheel_folder: as `wheel unpack` leaves it; `wheel pack` then makes its RECORD.
        programs: what was linked with the libraries, before they were copied.
        built_in: texts for code that is in the programs themselves, by the file's name.

    Returns:
        The files' names.
    """
    (metadata,) = wheel_folder.glob("*.dist-info/METADATA")
    linked = [path for program in programs for path in linked_by(program)]
    packages = {
        _HASH.sub("", path.name): package_of(origin(path.name, linked))
        for path in wheel_folder.glob("*.libs/*")
    }
    texts = texts_of(set(packages.values())) | dict(built_in or {})
    versions = {package: version_of(package) for package in set(packages.values())}
    texts[LIST] = listing(packages, versions).encode()
    folder = metadata.parent / "licenses" / FOLDER
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    head, end, body = metadata.read_text().partition("\n\n")
    head += "".join(f"\nLicense-File: {FOLDER}/{name}" for name in texts)
    metadata.write_text(head + end + body)
    return list(texts)
