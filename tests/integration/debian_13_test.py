"""Debian 13 in a root folder: the wheel for later Pythons in Python 3.13, and a build with GCC 14 and Open MPI 5."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from integration.debian_root import DebianRoot, why_not
from integration.dist_environments import install, try_out, wheel_for

ROOT = Path(__file__).resolve().parents[2]
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
pytestmark = pytest.mark.soak  # minutes of downloads and of compiling


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> DebianRoot:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    return DebianRoot(tmp_path_factory.mktemp("debian-13"), "trixie")


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
    assert debian.run(["python3", "--version"], 60).startswith("Python 3.13")
    wheel = wheel_for(tmp_path, 13)
    install(debian, wheel, 13, with_torch=False)
    try_out(debian, wheel.name.split("-")[1], with_torch=False)


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
