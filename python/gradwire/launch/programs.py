"""Programs that a job runs: a worker's command, which has to be there and to be that of one worker, and
gradwire-server."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.settings.definitions import Settings

_LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "mpirun",
    "mpiexec",
    "horovodrun",
)
_PYTHON = re.compile(r"python(3(\.\d+)?)?")


def require_program(who: str, command: Sequence[str], path: str | None = None) -> None:
    """Raises: FileNotFoundError: a command's program is not there. path: in place of PATH."""
    if shutil.which(command[0], path=path) is None:
        raise FileNotFoundError(
            f"{who}: {shlex.quote(command[0])} is not a program: expected a file that can be run, or a program on PATH"
            f"{_advice(command[0])}"
        )


def refuse_launcher(
    who: str, command: Sequence[str], *, why: str = "starts workers, and so does gradwire"
) -> None:
    """Raises: ValueError: each worker would start workers, which wait for each other."""
    module = next((word for flag, word in itertools.pairwise(command[:4]) if flag == "-m"), "")
    program = module if module.startswith("torch.distributed.") else Path(command[0]).name
    if program in _LAUNCHERS:
        raise ValueError(
            f"{who}: {program} {why}: give the command of one worker, such as `-- python train.py`"
        )


def _advice(program: str) -> str:
    """What to do where a program is a Python script that nobody may execute; or is not on PATH, and is Python or stands
    beside the Python that runs gradwire: its environment is not active."""
    if program.endswith(".py") and Path(program).is_file():
        return f"; to run a script: `python {shlex.quote(program)}`"
    if not sys.executable or "/" in program:
        return ""
    if not _PYTHON.fullmatch(program) and not (Path(sys.executable).parent / program).is_file():
        return ""
    return f"; the Python of this gradwire is {sys.executable}: activate its environment, or name it"


def find_server_program(settings: Settings) -> str:
    """Returns the path of gradwire-server.

    Raises: FileNotFoundError: it is nowhere; says where it was looked for.
    """
    if settings.server_program is not None:
        found = shutil.which(settings.server_program)
        if found is None:
            given = settings.server_program
            raise FileNotFoundError(
                f"run: GRADWIRE_SERVER_PROGRAM={given} is not a program: correct or unset it"
            )
        return found
    folders = [str(Path(sys.argv[0]).resolve().parent), str(Path(sys.executable).parent)]
    for path in (*folders, None):  # None is PATH
        if found := shutil.which("gradwire-server", path=path):
            return found
    raise FileNotFoundError(
        f"run: no program gradwire-server in {', '.join(dict.fromkeys(folders))} or on PATH: "
        "install gradwire, or set GRADWIRE_SERVER_PROGRAM"
    )
