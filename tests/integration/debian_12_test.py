"""`make demo` from a bare clone in a Debian 12 as debootstrap makes it, with Debian's own Python and pip."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.debian_root import DebianRoot, why_not

ROOT = Path(__file__).resolve().parents[2]
BARE = ("ca-certificates", "git", "make")
pytestmark = pytest.mark.soak  # minutes of downloads, of compiling and of training


def test_the_demo_runs_from_a_bare_clone_on_a_fresh_system(tmp_path: Path) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    debian = DebianRoot(tmp_path / "debian-12", "bookworm", BARE)
    clone = "git -c safe.directory='*' clone --quiet /source /gradwire"
    said = debian.run(["sh", "-c", f"{clone} && cd /gradwire && make demo"], 3600, ROOT)
    assert "report: report/demo/index.html" in said
    assert "No compression was at" in said or "2bit was at" in said, said[-3000:]
