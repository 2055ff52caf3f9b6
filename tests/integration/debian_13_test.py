"""Debian 13 in a root folder: the wheel for later Pythons in Python 3.13, and a build with GCC 14 and Open MPI 5."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from integration.minimal_root import run_in_root, why_not
from python.experiment_files import imported

ROOT = Path(__file__).resolve().parents[2]
MIRROR = "http://deb.debian.org/debian"
PYTHON = ("python3", "python3-venv", "python3-numpy")
TO_BUILD = (
    *(
        "cmake",
        "cppzmq-dev",
        "g++",
        "libbenchmark-dev",
        "libcli11-dev",
        "libfmt-dev",
        "libgmock-dev",
        "libgtest-dev",
    ),
    *(
        "libhwy-dev",
        "libisal-dev",
        "libopenmpi-dev",
        "libspdlog-dev",
        "libzmq3-dev",
        "ninja-build",
        "openmpi-bin",
    ),
    "pkg-config",
)
PROGRAM = """
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

pytestmark = pytest.mark.soak  # minutes of downloads and of compiling


class DebianRoot:
    """A root folder with Debian 13 in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = subprocess.run(
            [
                "debootstrap",
                "--variant=minbase",
                f"--include={','.join(PYTHON)}",
                "trixie",
                str(folder),
                MIRROR,
            ],
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert made.returncode == 0, made.stdout[-2000:] + made.stderr

    def run(self, command: Sequence[str], seconds: float, source: Path | None = None) -> str:
        """Runs a command there; returns what it said. source: a folder that appears as /source."""
        mounts = {Path(f"/{name}"): f"/{name}" for name in ("proc", "dev", "sys")}
        if source is not None:
            (self.folder / "source").mkdir(exist_ok=True)
            mounts[source] = "/source"
        done = run_in_root(self.folder, mounts, command, seconds)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> DebianRoot:
    if shutil.which("debootstrap") is None:
        pytest.skip("debootstrap is not installed: apt install debootstrap")
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    return DebianRoot(tmp_path_factory.mktemp("debian-13"))


def test_the_wheel_for_later_pythons_runs_in_python_3_13(debian: DebianRoot, tmp_path: Path) -> None:
    made = subprocess.run(
        [ROOT / ".venv/bin/python", ROOT / "python/make_wheel.py", "--folder", tmp_path],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    if not list(tmp_path.glob("gradwire-*-cp312-abi3-*.whl")):
        pytest.skip("no headers of Python 3.12 or later are installed here")
    with imported(ROOT / "experiments" / "gpu", ["make_kit"]) as modules:
        modules["make_kit"].take_wheels(debian.folder / "wheels", tmp_path)
    (debian.folder / "tmp" / "program.py").write_text(PROGRAM)
    debian.run(["python3", "-m", "venv", "--system-site-packages", "/venv"], 120)
    pip = ["/venv/bin/python", "-m", "pip", "install", "--quiet", "--no-index"]
    debian.run([*pip, "--find-links", "/wheels", "gradwire"], 120)
    assert debian.run(["/venv/bin/python", "--version"], 60).startswith("Python 3.13")
    said = debian.run(
        ["/venv/bin/gradwire", "run", "-n", "2", "-s", "2", "/venv/bin/python", "/tmp/program.py"], 300
    )
    assert sorted(line.split("sums ")[1] for line in said.splitlines() if "sums " in line) == ["0 2", "1 2"]
    found = json.loads(debian.run(["/venv/bin/gradwire", "doctor", "--json", "-"], 120))
    assert {"2bit", "int8", "topk"} <= set(found["codecs"])
    assert "core" not in found["missing"]
    assert "server" not in found["missing"]


def test_it_builds_with_gcc_14_and_open_mpi_5_and_the_tests_pass(debian: DebianRoot) -> None:
    debian.run(["apt-get", "update", "-qq"], 300)
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
    debian.run(["env", "DEBIAN_FRONTEND=noninteractive", *install, *TO_BUILD], 1200)
    assert "14." in debian.run(["g++", "--version"], 60).splitlines()[0]
    assert "5.0" in debian.run(["mpirun", "--version"], 60).splitlines()[0]
    configure = ["cmake", "--preset", "release", "-S", "/source", "-B", "/build"]
    debian.run(["sh", "-c", f"cd /source && {' '.join(configure)}"], 300, ROOT)
    debian.run(["cmake", "--build", "/build", "-j", "2"], 7200, ROOT)
    # Open MPI 5 takes an interface that tells no speed, as many of virtual machines do, for one that reaches nobody.
    ctest = ["env", "OMPI_MCA_btl_tcp_if_include=lo", "ctest", "--test-dir", "/build", "-j", "2"]
    said = debian.run([*ctest, "--timeout", "1200", "--output-on-failure"], 7200, ROOT)
    assert "100% tests passed" in said, said[-3000:]
