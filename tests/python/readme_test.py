"""The example of README.md runs as it is written, started by the command that it names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from python.readme_example import digests, script_of_readme


def test_the_first_example_trains_two_workers_to_the_same_weights(tmp_path: Path) -> None:
    named, script = script_of_readme()
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    # gradwire and python are the ones under test, wherever they are installed.
    places = {
        "gradwire": [sys.executable, "-m", "gradwire.cli"],
        "python": [sys.executable],
    }
    command = [part for word in named for part in places.get(word, [word])]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ended = digests(done.stdout)
    assert sorted(ended) == ["0", "1"], done.stdout
    assert len(set(ended.values())) == 1, done.stdout
