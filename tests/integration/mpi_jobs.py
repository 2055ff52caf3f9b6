"""Jobs under mpirun."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from integration.processes import Ended, Job, Started, descendants


@dataclass
class Mpi(Job):
    """A job under mpirun."""

    ranks: int = 2

    @property
    def launcher(self) -> Started:
        return self.members["run", 0]

    def launch(self, command: list[str]) -> None:
        asked = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(self.ranks)]
        self.start(("run", 0), ["mpirun", *asked, *command])

    def all_pids(self) -> list[int]:
        return descendants(self.launcher.process.pid)

    def pid_of(self, rank: int) -> int:
        return int((self.folder / f"worker{rank}.pid").read_text())


def mpirun(
    folder: Path, command: list[str], ranks: int = 2, seconds: float = 90.0, **variables: str
) -> Ended:
    """Runs a job under mpirun to its end."""
    folder.mkdir(exist_ok=True)
    with Mpi(folder, variables, ranks=ranks) as job:
        job.launch(command)
        return job.launcher.ended(seconds)
