"""A root folder with Python and the C and C++ runtimes in it, and no other library of this machine's.

    with MinimalRoot(folder, {site_packages: "/deps"}) as root:
        root.run(["python3", "-c", "..."], seconds=60)

Large folders are mounted, in a mount namespace that ends with the program, so that nothing has to be taken down.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RUNTIMES = (
    *(
        "libc.so.6",
        "libm.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
        "libutil.so.1",
        "libresolv.so.2",
    ),
    *("libnss_files.so.2", "libnss_dns.so.2", "libstdc++.so.6", "libgcc_s.so.1"),
)
# Parts of Python that nothing here imports and that need libraries which a wheel might lack.
_UNUSED_PARTS = ("nis", "_tkinter", "_dbm", "_gdbm", "readline", "_curses", "_curses_panel", "_sqlite3")
BASE = Path(sys.base_prefix)
PYTHON = BASE / "bin" / f"python{sysconfig.get_python_version()}"
STDLIB = Path(sysconfig.get_path("stdlib", vars={"installed_base": str(BASE)}))


def why_not() -> str | None:
    """Returns why there can be no such root here; None: there can."""
    if os.geteuid() != 0:
        return "only root may mount and change the root folder"
    for program in ("unshare", "mount", "chroot", "ldd"):
        if shutil.which(program, path=_PATH) is None:
            return f"there is no {program}"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"mount namespaces cannot be made: {tried.stderr.strip()}"


_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _needed_by(files: Sequence[Path]) -> set[Path]:
    """Paths of the libraries that the loader finds for these files, and of the loader."""
    said = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False).stdout
    words = [word for line in said.splitlines() if not line.endswith(":") for word in line.split()]
    return {Path(word) for word in words if word.startswith("/")}


def _runtimes() -> set[Path]:
    """Paths of RUNTIMES, which lie beside the C library that Python has."""
    (libc,) = (path for path in _needed_by([PYTHON]) if path.name == "libc.so.6")
    return {libc.with_name(name) for name in RUNTIMES if libc.with_name(name).exists()}


@dataclass
class MinimalRoot:
    """mounts: folders of this machine, and where they appear."""

    folder: Path
    mounts: Mapping[Path, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = STDLIB / "lib-dynload"
        own = [path for path in parts.glob("*.so") if path.name.partition(".")[0] not in _UNUSED_PARTS]
        for path in _needed_by([PYTHON, *own]) | _runtimes():
            self._copy(path)
        self._copy(PYTHON)
        self.mounts = {STDLIB: str(STDLIB), Path("/proc"): "/proc", Path("/dev"): "/dev"} | dict(self.mounts)
        for place in ("tmp", "etc", *(where.lstrip("/") for where in self.mounts.values())):
            (self.folder / place).mkdir(parents=True, exist_ok=True)
        (self.folder / "etc/hosts").write_text("127.0.0.1 localhost\n")
        (self.folder / "etc/passwd").write_text("root:x:0:0:root:/tmp:/nowhere\n")

    def _copy(self, path: Path) -> None:
        there = self.folder / str(path).lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, there)

    def libraries(self) -> set[str]:
        """Names of all libraries that were put there, those of mounted folders apart."""
        return {path.name for path in self.folder.rglob("*.so*") if path.is_file()}

    def run(
        self, command: Sequence[str], seconds: float, folder: str = "/tmp"
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of the root's in it, with an environment of its own."""
        words = [str(PYTHON) if word == "python3" else word for word in command]
        # The folder is entered by Python, for there is no shell, and no env, inside.
        enter = [
            str(PYTHON),
            "-c",
            "import os, sys; os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])",
        ]
        return run_in_root(self.folder, self.mounts, [*enter, folder, *words], seconds)


def run_in_root(
    root: Path, mounts: Mapping[Path, str], command: Sequence[str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Runs a program of another root folder in it, with an environment of its own.

    mounts: folders of this machine, and where they appear, in a mount namespace that ends with the program.
    """
    lines = [
        f"mount --rbind {shlex.quote(str(path))} {shlex.quote(str(root) + where)}"
        for path, where in mounts.items()
    ]
    lines.append(f"exec {shlex.join(['chroot', str(root), *command])}")
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={"PATH": _PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
    )
