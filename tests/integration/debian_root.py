"""A root folder with a release of Debian in it, as debootstrap makes one from Debian's archive."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from integration import minimal_root

MIRROR = "http://deb.debian.org/debian"
PYTHON = ("python3", "python3-venv")


def why_not() -> str | None:
    """Returns why there can be no such root here; None: there can."""
    if shutil.which("debootstrap", path="/usr/sbin:/sbin:/usr/bin") is None:
        return "debootstrap is not installed: apt install debootstrap"
    return minimal_root.why_not()


class DebianRoot:
    """The base system of a release, such as trixie, and packages of it."""

    def __init__(self, folder: Path, suite: str, packages: Sequence[str] = PYTHON) -> None:
        self.folder = folder
        self.python = "python3"
        chosen = ["--variant=minbase", f"--include={','.join(packages)}"]
        # In a mount namespace of its own: what debootstrap mounts in the folder, /proc among it, is gone with it, even
        # where it is interrupted. Who removes the folder would otherwise reach into that.
        alone = ["unshare", "--mount", "--propagation", "private"]
        made = subprocess.run(
            [*alone, "debootstrap", *chosen, suite, str(folder), MIRROR],
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert made.returncode == 0, made.stdout[-2000:] + made.stderr
        # debootstrap leaves this to the installer. Without it there is no localhost, and torchrun finds no rendezvous.
        hosts = f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n"
        (self.folder / "etc/hosts").write_text(hosts, encoding="utf-8")

    def inside(self, path: str) -> str:
        """Returns how programs in the root name a file below it."""
        return f"/{path}"

    def run(self, command: Sequence[str], seconds: float, source: Path | None = None) -> str:
        """Runs a command there and returns its output. source: a folder that appears as /source."""
        mounts = {Path(f"/{name}"): f"/{name}" for name in ("proc", "dev", "sys")}
        if source is not None:
            (self.folder / "source").mkdir(exist_ok=True)
            mounts[source] = "/source"
        done = minimal_root.run_in_root(self.folder, mounts, command, seconds)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout
