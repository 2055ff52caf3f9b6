"""`gradwire run --launcher sge`: one array job is all workers, another the servers, if any are asked for.

Grid Engine chooses the machines. The scheduler runs here, on the submit host. What a task writes and what it is to run
travel in a folder beneath the current one, which all machines must share.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.launch.clusters.cluster_job import ClusterJob

_ASK_SECONDS = 30


@dataclass(frozen=True)
class SgeJob(ClusterJob):
    """A job that qsub starts. queue: as its -q takes it: all.q, or all.q@node1; None: Grid Engine chooses."""

    launcher: ClassVar[str] = "sge"
    machine_word: ClassVar[str] = "execution host"

    @classmethod
    def machines(cls) -> list[str]:
        for program in ("qsub", "qdel", "qconf"):
            if shutil.which(program) is None:
                raise FileNotFoundError(
                    f"run: --launcher sge: no {program} on PATH: expected Grid Engine's commands "
                    "(Debian: gridengine-client)"
                )
        words = ["qconf", "-sel"]
        try:
            asked = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_ASK_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"run: --launcher sge: qconf has not answered for {_ASK_SECONDS} s: is sge_qmaster up?"
            ) from None
        if asked.returncode != 0:
            said = (asked.stderr or asked.stdout).strip()
            raise RuntimeError(f"run: --launcher sge: qconf: {said}")
        return asked.stdout.split()

    def own_order(self) -> dict[str, Any]:
        return {"folder": self.folder}
