"""Makes the packages of a release: the source distribution and the wheels, and checks them.

    python python/make_dist.py [--folder dist] [--reuse-wheels]

The version comes from CMakeLists.txt, and CHANGELOG.md must have a section for it. The source distribution must have
every file of the last commit. `twine check` reads the metadata of all packages as a package index does. Nothing is
uploaded. tests/integration/dist_environments.py then installs the packages in empty environments (`make dist` runs
both).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import make_wheel

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "build" / "dist-tools"
REQUIREMENTS = ("twine>=6",)
LONGEST_LIST = 5


def version_of(root: Path) -> str:
    """Returns the version in a source tree's CMakeLists.txt.

    Raises: ValueError: CHANGELOG.md has no section with a date for it.
    """
    found = re.search(
        r"^project\(gradwire VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text(), re.MULTILINE
    )
    if found is None:
        raise ValueError("CMakeLists.txt: expected a line that begins with project(gradwire VERSION")
    version = found[1]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        raise ValueError(f"CHANGELOG.md: expected a heading '## [{version}] - YYYY-MM-DD' for this version")
    return version


def git(root: Path, *arguments: str) -> str | None:
    """Returns what git says of a source tree. None: it is no clone, or there is no git."""
    if not (root / ".git").exists():
        return None
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        ).stdout
    except FileNotFoundError:
        return None


def shortened(names: list[str]) -> str:
    more = len(names) - LONGEST_LIST
    return ", ".join(names[:LONGEST_LIST]) + (f" and {more} more" if more > 0 else "")


def uncommitted(root: Path) -> list[str]:
    """Returns the files of a source tree that are in no commit as they are."""
    said = git(root, "status", "--porcelain", "--untracked-files=normal") or ""
    return [line[3:] for line in said.splitlines()]


def make_source(root: Path, folder: Path, version: str) -> Path:
    """Writes the source distribution to a folder and returns it.

    Raises: LookupError: files of the last commit are missing in it.
    """
    build = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=root, check=True, stdout=subprocess.DEVNULL
    )
    made = folder / f"gradwire-{version}.tar.gz"
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    committed = (git(root, "ls-tree", "-r", "--name-only", "HEAD") or "").splitlines()
    missing = [name for name in committed if name not in names and (root / name).exists()]
    if missing:
        raise LookupError(f"{made.name}: files of the last commit are missing: {shortened(missing)}")
    return made


def wheels_of(folder: Path, version: str) -> list[Path]:
    """Returns the wheels of a version in a folder.

    Raises: FileNotFoundError: there is not one for a single Python and one for later Pythons.
    """
    found = sorted(folder.glob(f"gradwire-{version}-*.whl"))
    stable = [wheel for wheel in found if make_wheel.STABLE_TAG in wheel.name]
    if len(found) != 2 or len(stable) != 1:
        raise FileNotFoundError(
            f"{folder}: expected two wheels of {version}, one of them {make_wheel.STABLE_TAG}, which needs the headers "
            f"of Python 3.12 or later; found {', '.join(wheel.name for wheel in found) or 'none'}"
        )
    return found


def check_metadata(packages: list[Path]) -> None:
    """Raises subprocess.CalledProcessError, the reason on stdout, where an index would refuse a package."""
    twine = make_wheel.tools(TOOLS, REQUIREMENTS) / "twine"
    subprocess.run([str(twine), "check", "--strict", *map(str, packages)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "dist", help="Where packages go. Default: %(default)s"
    )
    parser.add_argument(
        "--reuse-wheels",
        action="store_true",
        help="Take the wheels of this version that are in the folder. Default: wheels are built, which takes minutes.",
    )
    given = parser.parse_args()
    folder = given.folder.resolve()
    try:
        version = version_of(ROOT)
        if changed := uncommitted(ROOT):
            print(
                f"dist: not committed, and in the packages as they are: {shortened(changed)}", file=sys.stderr
            )
        folder.mkdir(parents=True, exist_ok=True)
        source = make_source(ROOT, folder, version)
        if not given.reuse_wheels:
            for old in folder.glob(f"gradwire-{version}-*.whl"):
                old.unlink()
            make_wheel.make(folder)
        wheels = wheels_of(folder, version)
        check_metadata([source, *wheels])
    except subprocess.CalledProcessError as error:
        print(f"dist: {' '.join(map(str, error.cmd))} ended with {error.returncode}", file=sys.stderr)
        return 1
    except (LookupError, OSError, ValueError) as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    print(
        f"{source}: {source.stat().st_size / 1e6:.1f} MB; needs a compiler and the packages that README.md names"
    )
    for wheel in wheels:
        print(make_wheel.described(wheel))
    return 0


if __name__ == "__main__":
    sys.exit(main())
