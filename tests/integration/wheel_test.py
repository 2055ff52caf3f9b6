"""The wheel: what it needs of a machine is the C and C++ runtimes, and with them alone the quick start runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from integration.minimal_root import RUNTIMES, MinimalRoot, why_not
from python.readme_example import digests, script_of_readme

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(
    sysconfig.get_path("purelib")
)  # of the venv that the tests run in: torch, NumPy and what they need
LOADER = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
CARRIED = ("libzmq", "libfmt", "libspdlog", "libhwy", "libisal", "libsodium")
VENV = "/venv/bin/python"
TAG = "cp{}{}".format(*sys.version_info)

pytestmark = pytest.mark.soak  # it may have to compile everything


@dataclass(frozen=True)
class Wheels:
    repaired: Path  # for this Python
    unrepaired: Path
    made: list[Path]  # repaired ones, that for the stable ABI too where there are headers for it


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, str(ROOT / "python" / "make_wheel.py"), "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (repaired,) = folder.glob(f"*-{TAG}-*.whl")
    (unrepaired,) = (ROOT / "build" / "wheel").glob(f"*-{TAG}-*.whl")
    return Wheels(repaired, unrepaired, sorted(folder.glob("*.whl")))


def needed(file: Path) -> set[str]:
    """What an ELF file asks the loader for."""
    said = subprocess.run(["readelf", "-d", str(file)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", said))


def is_elf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"


def test_every_library_is_in_the_wheel_or_a_runtime(wheels: Wheels, tmp_path: Path) -> None:
    for wheel in wheels.made:
        folder = tmp_path / wheel.name
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        elves = [path for path in folder.rglob("*") if path.is_file() and is_elf(path)]
        names = {path.name for path in elves}
        assert len([name for name in names if name.startswith("_core.")]) == 1, names
        assert "gradwire-server" in names
        assert all(any(name.startswith(library) for name in names) for library in CARRIED), names
        outside = {path.name: needed(path) - names - set(RUNTIMES) - set(LOADER) for path in elves}
        wanted = {name: missing for name, missing in outside.items() if missing}
        mpi = {"libgradwire_mpi.so": {"libmpi.so.40"}} if "libgradwire_mpi.so" in names else {}
        assert wanted == mpi


def test_it_asks_for_no_newer_runtimes_than_it_must(wheels: Wheels) -> None:
    """On Debian 12: its libzmq and spdlog, as they are there, ask for the libstdc++ of GCC 12."""
    if "12 (bookworm)" not in Path("/etc/os-release").read_text():
        pytest.skip("another system's libraries ask for other versions")
    assert all("-manylinux_2_34_" in wheel.name for wheel in wheels.made), [
        wheel.name for wheel in wheels.made
    ]


def test_it_has_the_licence_of_every_library_that_it_carries(wheels: Wheels) -> None:
    with zipfile.ZipFile(wheels.repaired) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("METADATA"))
        record = next(archive.read(name).decode() for name in names if name.endswith("RECORD"))
    texts = {name.rpartition("/")[2] for name in names if "/licenses/third_party/" in name}
    carried = [name.rpartition("/")[2] for name in names if ".libs/lib" in name]
    stems = {re.split(r"[-.]", name)[0].replace("_", "-") for name in carried}
    missing = [stem for stem in stems if not any(text.startswith(stem) for text in texts)]
    assert len(stems) >= len(CARRIED)
    assert not missing
    page = (ROOT / "python" / "docs" / "reference" / "compatibility.md").read_text(encoding="utf-8")
    assert not [stem for stem in stems if stem.replace("_", "-") not in page.replace("_", "-")]
    assert all(f"License-File: third_party/{text}\n" in metadata for text in texts)
    assert all(f"third_party/{text}," in record for text in texts)


@pytest.fixture(scope="module")
def root(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> MinimalRoot:
    """With a venv that has the wheel, and PyTorch beside it; nothing of the gradwire under test but the wheel."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("root")
    root = MinimalRoot(folder, {SITE: "/site"})
    for wheel in (wheels.repaired, wheels.unrepaired):
        (folder / wheel.parent.name).mkdir()
        shutil.copy2(wheel, folder / wheel.parent.name)
    (folder / "deps").mkdir()
    for path in SITE.iterdir():
        if "gradwire" not in path.name and not path.name.startswith("__"):
            (folder / "deps" / path.name).symlink_to(f"/site/{path.name}")
    return root


def install(root: MinimalRoot, venv: str, wheel: Path) -> None:
    """Makes an empty venv in the root and puts the wheel into it, and torch and the rest beside it."""
    commands = [
        ["python3", "-m", "venv", venv],
        [
            f"{venv}/bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            f"/{wheel.parent.name}/{wheel.name}",
        ],
    ]
    for command in commands:
        done = root.run(command, seconds=300)
        assert done.returncode == 0, done.stdout + done.stderr
    (site,) = (root.folder / venv.lstrip("/")).glob("lib/python*/site-packages")
    (site / "deps.pth").write_text("/deps\n")


def test_the_quick_start_runs_where_nothing_else_is_installed(wheels: Wheels, root: MinimalRoot) -> None:
    assert not [name for name in root.libraries() if name.startswith(CARRIED)]
    install(root, "/venv", wheels.repaired)
    (command, _), script = script_of_readme()
    (root.folder / "tmp/train.py").write_text(script, encoding="utf-8")
    programs = {"gradwire": "/venv/bin/gradwire", "python": VENV}
    done = root.run([programs.get(word, word) for word in command], seconds=180)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = digests(done.stdout)
    assert sorted(ended) == ["0", "1"], done.stdout
    assert len(set(ended.values())) == 1, done.stdout


def test_doctor_says_what_is_missing_there(root: MinimalRoot) -> None:
    done = root.run(["/venv/bin/gradwire", "doctor", "--json", "-"], seconds=120)
    record = json.loads(done.stdout)
    assert {"2bit", "int8", "topk"} <= set(record["codecs"])
    assert "dist_sync_mpi" in str(record["missing"]) or "mpi" in record["missing"], record["missing"]
    assert done.returncode == 0, done.stderr


def test_a_wheel_without_its_libraries_does_not_run_there(wheels: Wheels, root: MinimalRoot) -> None:
    """Or the others would prove nothing."""
    install(root, "/bare", wheels.unrepaired)
    done = root.run(["/bare/bin/python", "-c", "import gradwire._core"], seconds=60)
    assert done.returncode != 0
    assert re.search(r"ImportError: lib\w+\.so\.\d+: cannot open shared object file", done.stderr), (
        done.stderr
    )
