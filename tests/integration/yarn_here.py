"""What tests put on PATH as yarn where there is no Hadoop: the four commands that gradwire gives.

It is no YARN. A service definition is checked against what Hadoop's documentation says; a container is a process of
this machine in a folder of its own, with the files that the definition asks for, whose launch command runs as
documented: constants put in, by bash.

    YARN_HERE=FOLDER python yarn_here.py node -list | app -launch NAME FILE | app -status NAME | app -destroy NAME
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
FOLDER = Path(os.environ["YARN_HERE"])


def main(words: list[str]) -> int:
    with (FOLDER / "commands").open("a") as file:
        file.write(f"{' '.join(words)}\n")
    if words == ["node", "-list"]:
        sys.stdout.write(
            "Total Nodes:1\n         Node-Id\t     Node-State\n localhost:45454\t        RUNNING\n"
        )
        return 0
    assert words[0] == "app", words
    commands = {"-launch": launch, "-status": status, "-destroy": destroy}
    return commands[words[1]](*words[2:])


def launch(name: str, file: str) -> int:
    import jsonschema
    from oracle.yarnfile import SERVICE

    service = json.loads(Path(file).read_text())
    assert Path(file).stat().st_mode & 0o077 == 0, "others can read the key"
    jsonschema.validate(service, SERVICE)
    assert service["name"] == name
    pids = [
        start(name, part, rank)
        for part in service["components"]
        for rank in range(part["number_of_containers"])
    ]
    (FOLDER / f"{name}.service").write_text(json.dumps(pids))
    return 0


def start(name: str, component: dict[str, Any], rank: int) -> int:
    folder = FOLDER / f"{name}-{rank}"
    (folder / "conf").mkdir(parents=True)
    constants = {"SERVICE_NAME": name, "COMPONENT_NAME": component["name"], "COMPONENT_ID": str(rank)}
    for file in component["configuration"]["files"]:
        assert file["type"] == "TEMPLATE"
        (folder / "conf" / file["dest_file"]).write_text(put_in(file["properties"]["content"], constants))
    command = put_in(component["launch_command"], constants)
    return subprocess.Popen(
        ["bash", "-c", f'exec /bin/bash -c "{command}"'],
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        stdout=(folder / "stdout.txt").open("wb"),
        stderr=(folder / "stderr.txt").open("wb"),
        start_new_session=True,
    ).pid


def put_in(text: str, constants: dict[str, str]) -> str:
    for name, value in constants.items():
        text = text.replace(f"${{{name}}}", value)
    return text


def status(name: str) -> int:
    sys.stdout.write(json.dumps({"name": name, "state": "STABLE"}))
    return 0


def destroy(name: str) -> int:
    path = FOLDER / f"{name}.service"
    if path.exists():
        for pid in json.loads(path.read_text()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
