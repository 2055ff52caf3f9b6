"""Settings in a file: flags win over the environment, that over the file, and that over the defaults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gradwire.settings import definitions as settings


def written(tmp_path: Path, **values: Any) -> str:
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps({"settings": values, "verdict": "anything else may stand there"}))
    return str(path)


def resolved(environ: dict[str, str]) -> dict[str, settings.Resolved]:
    return {row.definition.name: row for row in settings.resolve(environ)}


def test_a_file_wins_over_defaults_and_the_environment_over_both(tmp_path: Path) -> None:
    path = written(tmp_path, partition_bytes=4194304, credit_bytes="16MiB", streams=2)
    rows = resolved({"GRADWIRE_SETTINGS": path, "GRADWIRE_STREAMS": "3"})
    assert (rows["partition_bytes"].value, rows["partition_bytes"].origin) == (4 * 2**20, path)
    assert rows["credit_bytes"].value == 16 * 2**20
    assert (rows["streams"].value, rows["streams"].origin) == (3, "GRADWIRE_STREAMS")
    assert (rows["fusion_bytes"].value, rows["fusion_bytes"].origin) == (256 * 2**10, "default")
    assert settings.read({"GRADWIRE_SETTINGS": path}).streams == 2


def test_an_alias_in_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, partition_bytes="1MiB")
    found = settings.read({"GRADWIRE_SETTINGS": path, "BYTEPS_PARTITION_BYTES": "8MiB"})
    assert found.partition_bytes == 8 * 2**20


def test_a_file_becomes_the_variables_that_nobody_has_set(tmp_path: Path) -> None:
    path = written(tmp_path, partition_bytes=4194304, streams=2, codec_threads=3)
    environ = {"GRADWIRE_STREAMS": "4", "BYTEPS_PARTITION_BYTES": "1MiB"}
    assert settings.variables_of_file(path, environ) == {
        "GRADWIRE_CODEC_THREADS": "3",
        "GRADWIRE_SETTINGS": "",  # it has been read: where the job's processes run, there may be no such file
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read"),
        ("[]", "has no settings: expected an object"),
        ('{"verdict": "x"}', "has no settings: expected an object"),
        ('{"settings": {"partition_byte": 1}}', "is not a setting: did you mean partition_bytes"),
        ('{"settings": {"GRADWIRE_STREAMS": 2}}', "which is not a setting: did you mean streams[?]$"),
        ('{"settings": {"foo": 1}}', "which is not a setting; `gradwire doctor` lists all"),
        ('{"settings": {"rank": 1}}', "has rank, which belongs to one process or one job"),
        ('{"settings": {"settings": "other.json"}}', "has settings, which belongs to one process"),
        ('{"settings": {"streams": true}}', "has streams=True: expected text or a number"),
        ('{"settings": {"streams": [1]}}', "expected text or a number"),
        ('{"settings": {"streams": 900}}', r"GRADWIRE_STREAMS \(.*tuned.json\): '900' is not valid"),
    ],
)
def test_what_is_no_settings_file_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    for refuses in (
        lambda: settings.read({"GRADWIRE_SETTINGS": str(path)}),
        lambda: settings.variables_of_file(str(path), {}),
    ):
        with pytest.raises(ValueError, match=why) as caught:
            refuses()
        assert str(caught.value).startswith("settings: ")


def test_a_file_that_is_not_there_does_not_hide_other_settings(tmp_path: Path) -> None:
    rows = resolved({"GRADWIRE_SETTINGS": str(tmp_path / "none.json"), "GRADWIRE_STREAMS": "2"})
    assert "cannot be read" in str(rows["settings"].error)
    assert (rows["streams"].value, rows["streams"].error) == (2, None)


SHOW = "import os; print(*(os.environ.get('GRADWIRE_' + n) for n in ('STREAMS', 'FUSION_BYTES', 'SETTINGS')))"


def run(environ: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    import os

    command = [sys.executable, "-m", "gradwire.cli", "run", "-n", "1", "-s", "0", *options]
    return subprocess.run(
        [*command, sys.executable, "-c", SHOW],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_run_hands_a_file_to_the_whole_job(tmp_path: Path) -> None:
    path = written(tmp_path, streams=2, fusion_bytes=0)
    assert run({}, "--settings", path).stdout == "[worker 0] 2 0 \n"
    assert run({"GRADWIRE_SETTINGS": path}).stdout == "[worker 0] 2 0 \n"
    assert run({"GRADWIRE_STREAMS": "3"}, "--settings", path).stdout == "[worker 0] 3 0 \n"
    flag = run({"GRADWIRE_STREAMS": "3"}, "--settings", path, "--env", "GRADWIRE_STREAMS=4")
    assert flag.stdout == "[worker 0] 4 0 \n"


def test_run_refuses_a_bad_file_in_one_line(tmp_path: Path) -> None:
    done = run({}, "--settings", str(tmp_path / "none.json"))
    assert done.returncode == 2
    assert done.stderr.startswith("gradwire: settings: the settings file")
    assert "Traceback" not in done.stderr
