"""A bare clone in a Debian 12 as debootstrap makes it, with Debian's own Python and pip: the demo, and the wheel."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.debian_root import DebianRoot, why_not

ROOT = Path(__file__).resolve().parents[2]
BARE = ("ca-certificates", "git", "make")
CLONE = "git -c safe.directory='*' clone --quiet /source /gradwire && cd /gradwire"
pytestmark = pytest.mark.soak  # minutes of downloads, of compiling and of training


@pytest.fixture
def debian(tmp_path: Path) -> DebianRoot:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    return DebianRoot(tmp_path / "debian-12", "bookworm", BARE)


def test_the_demo_runs(debian: DebianRoot) -> None:
    said = debian.run(["sh", "-c", f"{CLONE} && make demo"], 3600, ROOT)
    assert "report: report/demo/index.html" in said
    assert "was at" in said, said[-3000:]


def test_the_wheel_is_made_and_runs_where_nothing_else_is(debian: DebianRoot) -> None:
    install = "python3 -m venv /own && /own/bin/pip install --quiet dist/gradwire-*-cp311-*.whl"
    said = debian.run(
        ["sh", "-c", f"{CLONE} && make wheel && {install} && /own/bin/gradwire codecs"], 3600, ROOT
    )
    assert "2bit" in said, said[-3000:]
