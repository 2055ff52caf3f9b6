"""`gradwire run --launcher yarn`: a service of YARN is all workers, another the servers, if any are asked for.

YARN chooses the machines. The scheduler runs here; containers reach it, and their agents, by this machine's address.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.launch.clusters.cluster_job import ClusterJob

_ASK_SECONDS = 60
_NODE = re.compile(r"^\s*(\S+):\d+\s+RUNNING\b", re.MULTILINE)


@dataclass(frozen=True)
class YarnJob(ClusterJob):
    """A job of YARN services. cores, memory: of a container; memory in bytes."""

    launcher: ClassVar[str] = "yarn"
    machine_word: ClassVar[str] = "node"

    cores: int = 1
    memory: int = 1 << 30

    @classmethod
    def machines(cls) -> list[str]:
        if shutil.which("yarn") is None:
            raise FileNotFoundError(
                "run: --launcher yarn: no yarn on PATH: expected Hadoop's command (3.2 or later)"
            )
        words = ["yarn", "node", "-list"]
        try:
            asked = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_ASK_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"run: --launcher yarn: yarn node -list has not answered for {_ASK_SECONDS} s: is the ResourceManager "
                "up?"
            ) from None
        found = _NODE.findall(asked.stdout)
        if asked.returncode != 0 or not found:
            said = (asked.stderr.strip() or asked.stdout.strip()).splitlines()[-1:]
            raise RuntimeError(
                f"run: --launcher yarn: yarn node -list shows no running node: {''.join(said)} (is yarn Hadoop's?)"
            )
        return found

    def own_order(self) -> dict[str, Any]:
        return {
            "address": self.local.address,
            "cores": self.cores,
            "memory_mb": -(-self.memory // (1 << 20)),
        }
