"""Runs the tests of what gradwire does for PyTorch, with other releases of it than the one in requirements.txt.

    make other-torch TORCH="2.6.0 2.14.1"

Each release gets a virtual environment in build/, which has nothing but it and what it needs. PyPI has most of them
with CUDA alone: gigabytes and minutes each. Everything else, gradwire and pytest included, is that of .venv.

What needs a newer PyTorch is left out: files about FSDP2, cases of torch_programs.case_from(), tests that say why they
are skipped.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
CONCERNED = re.compile(r"torch|fsdp|horovod|byteps|process_group|power_sgd")
SHARDED = re.compile(r"fsdp|hsdp|shard")
TAKES_COLLECTIVES = Version("2.9")
"""The first release whose FSDP2 takes the collectives of others."""
PLACES = ("tests/python", "tests/integration")


def tests(release: str) -> list[str]:
    """Returns the files of tests whose names say that they are about PyTorch, or about a front end that rests on it."""
    files = [file for place in PLACES for file in (ROOT / place).glob("*_test.py")]
    concerned = [file for file in files if CONCERNED.search(file.name)]
    if Version(release) < TAKES_COLLECTIVES:
        concerned = [file for file in concerned if not SHARDED.search(file.name)]
    return sorted(str(file.relative_to(ROOT)) for file in concerned)


def environment(release: str, folder: Path) -> Path:
    """Returns the Python of an environment that has this release of PyTorch, and .venv's packages behind it.

    The folder's name must not have the word torch: the fork server would take the script gradwire, whose first line
    names it, for a program that wants PyTorch.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder)
    own = next((folder / "lib").glob("python*")) / "site-packages"
    behind = own / "behind.pth"
    behind.unlink(missing_ok=True)  # pip is not to take .venv's torch for this one's
    if not (own / "torch").exists():
        print(f"torch {release}: installing it in {folder}", flush=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        subprocess.run([*pip, f"torch=={release}"], check=True)
    packages, scripts = sysconfig.get_path("purelib"), Path(sysconfig.get_path("scripts"))
    # Its .pth files, too, by which gradwire is found.
    behind.write_text(f"import site; site.addsitedir({packages!r})\n")
    for script in scripts.glob("gradwire*"):
        place = folder / "bin" / script.name
        place.unlink(missing_ok=True)
        head, _, rest = script.read_bytes().partition(b"\n")
        if head.startswith(b"#!"):
            place.write_bytes(b"#!" + os.fsencode(python) + b"\n" + rest)
            place.chmod(0o755)
        else:
            place.symlink_to(script)
    return python


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("releases", nargs="+", metavar="RELEASE", help="such as 2.14.1")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tests at a time")
    given = parser.parse_args(arguments)
    failed = []
    for release in given.releases:
        python = environment(release, ROOT / "build" / "releases" / release)
        words = ["-m", "pytest", "-q", "-n", str(given.jobs), "-m", "not alone and not soak", *tests(release)]
        if subprocess.run([python, *words], cwd=ROOT).returncode:
            failed.append(release)
    print(f"other releases of PyTorch: {len(given.releases) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
