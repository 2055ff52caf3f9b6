"""Installs the packages of a release in empty environments and runs the quick start there.

    cd tests && python -m integration.dist_environments [--dist ../dist] [--without-torch] [--only debian-12]

| name | environment |
|---|---|
| venv | an empty venv on this machine, of the Python that runs this |
| debian-12 | the base system of Debian 12 in a folder, Python 3.11 |
| debian-13 | the base system of Debian 13 in a folder, Python 3.13 |

Each gets the wheel that pip chooses for its Python, and what that needs from the package index that pip is set to.
There `gradwire doctor` must find everything, a job must sum by every codec, and README.md's example must train by
both of its commands. Debian needs root and debootstrap; without them it is left out, and the last line says so.

PyTorch is downloaded for each Python. From PyPI that is several GB; PIP_EXTRA_INDEX_URL may name an index with builds
for CPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from integration import debian_root
from integration.debian_root import DebianRoot
from python.readme_example import ROOT, digests, script_of_readme

STABLE_ABI_FROM = 12  # of Python 3
STORE_PROGRAM = """
import gradwire as gw
import numpy as np

kv = gw.kv.create("dist_sync")
for codec in gw.compress.list():
    kv.set_gradient_compression(codec)
    kv.init(codec, np.zeros(70_000, np.float32))
    out = np.zeros(70_000, np.float32)
    for step in range(3):
        kv.pushpull(codec, np.full(70_000, 1.0 + kv.rank, np.float32), out=out)
    assert np.isfinite(out).all()
    if codec == "none":
        assert (out == 3).all()
print("sums", kv.rank, kv.num_workers, flush=True)
kv.close()
"""


class Environment(Protocol):
    """folder: where its files lie here. python: the command of its Python."""

    folder: Path
    python: str

    def inside(self, path: str) -> str:
        """Returns how programs in it name a file below its folder."""

    def run(self, command: Sequence[str], seconds: float) -> str:
        """Runs a command in it and returns its output. Raises AssertionError where that fails."""


class BareVenv:
    """A folder of this machine for an empty venv; nothing of this process's environment but where programs are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = sys.executable
        (folder / "tmp").mkdir()

    def inside(self, path: str) -> str:
        return str(self.folder / path)

    def run(self, command: Sequence[str], seconds: float) -> str:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            cwd=self.folder / "tmp",
            env={"PATH": os.defpath, "HOME": self.inside("tmp"), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


@dataclass(frozen=True)
class Kind:
    name: str
    minor: int
    """Of its Python 3."""
    make: Callable[[Path], Environment]
    why_not: Callable[[], str | None] = lambda: None


KINDS = (
    Kind("venv", sys.version_info.minor, BareVenv),
    Kind("debian-12", 11, lambda folder: DebianRoot(folder, "bookworm"), debian_root.why_not),
    Kind("debian-13", 13, lambda folder: DebianRoot(folder, "trixie"), debian_root.why_not),
)


def wheel_for(dist: Path, minor: int) -> Path:
    """Returns the wheel for Python 3.MINOR that pip would choose.

    Raises: FileNotFoundError: there is none.
    """
    exact = sorted(dist.glob(f"gradwire-*-cp3{minor}-cp3{minor}-*.whl"))
    stable = sorted(dist.glob("gradwire-*-abi3-*.whl")) if minor >= STABLE_ABI_FROM else []
    if not (found := exact or stable):
        raise FileNotFoundError(f"{dist} has no wheel for Python 3.{minor}; make it by: make wheel")
    return found[-1]


def install(environment: Environment, wheel: Path, minor: int, with_torch: bool) -> None:
    """Makes a venv in an environment and installs a wheel there, without a network."""
    # setuptools: torch asks for it by a marker that pip reads for its own Python, and not for the one it downloads for.
    wanted = [f"{wheel}[torch]", "setuptools"] if with_torch else [str(wheel)]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"),
            *("--only-binary=:all:", "--python-version", f"3.{minor}"),
            *("--dest", str(environment.folder / "wheels"), *wanted),
        ],
        check=True,
    )
    environment.run([environment.python, "-m", "venv", environment.inside("venv")], 300)
    pip = [environment.inside("venv/bin/python"), "-m", "pip", "install", "--quiet", "--no-index"]
    package = "gradwire[torch]" if with_torch else "gradwire"
    environment.run([*pip, "--find-links", environment.inside("wheels"), package], 1800)


def start(environment: Environment, command: Sequence[str], script: str) -> str:
    """Runs a command of a page that starts train.py, which has a text of ours, and returns its output."""
    (environment.folder / "tmp" / "train.py").write_text(script, encoding="utf-8")
    own = {name: f"venv/bin/{name}" for name in ("gradwire", "python", "torchrun")} | {
        "train.py": "tmp/train.py"
    }
    words = [environment.inside(own[word]) if word in own else word for word in command]
    return environment.run(words, 600)


def try_out(environment: Environment, version: str, with_torch: bool) -> None:
    """Raises AssertionError where something that a first user does fails."""
    gradwire = environment.inside("venv/bin/gradwire")
    found = json.loads(environment.run([gradwire, "doctor", "--json", "-"], 300))
    assert found["version"] == version, found["version"]
    assert {"2bit", "int8", "topk"} <= set(found["codecs"]), found["codecs"]
    assert not {"core", "server"} & set(found["missing"]), found["missing"]
    said = start(environment, ["gradwire", "run", "-n", "2", "-s", "2", "python", "train.py"], STORE_PROGRAM)
    sums = sorted(line.partition("sums ")[2] for line in said.splitlines() if "sums " in line)
    assert sums == ["0 2", "1 2"], said
    if not with_torch:
        return
    commands, script = script_of_readme()
    for command in commands:
        said = start(environment, command, script)
        ended = digests(said)
        assert sorted(ended) == ["0", "1"], said
        assert len(set(ended.values())) == 1, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--dist", type=Path, default=ROOT / "dist", help="Folder of the wheels. Default: %(default)s"
    )
    parser.add_argument(
        "--without-torch",
        action="store_true",
        help="Leave out PyTorch and README.md's example. Default: both are tried.",
    )
    parser.add_argument(
        "--only", choices=[kind.name for kind in KINDS], help="Try one environment. Default: all of them."
    )
    given = parser.parse_args()
    tried, left_out = [], []
    for kind in KINDS:
        if given.only not in (None, kind.name):
            continue
        if (reason := kind.why_not()) is not None:
            left_out.append(f"{kind.name} ({reason})")
            continue
        print(f"dist: trying {kind.name}, Python 3.{kind.minor}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix=f"gradwire-{kind.name}-") as folder:
            try:
                wheel = wheel_for(given.dist.resolve(), kind.minor)
                environment = kind.make(Path(folder))
                install(environment, wheel, kind.minor, not given.without_torch)
                try_out(environment, wheel.name.split("-")[1], not given.without_torch)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                print(f"dist: {kind.name}: {error}", file=sys.stderr)
                return 1
        tried.append(kind.name)
    what = "a job with every codec" + ("" if given.without_torch else " and README.md's example")
    print(f"dist: {what} ran in: {', '.join(tried) or 'nothing'}")
    if left_out:
        print(f"dist: not tried: {'; '.join(left_out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
