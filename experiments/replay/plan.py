"""What is asked of one row, and why a row can end without a figure.

Threading: values and pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradwire.compress import Compression

from replay import bound
from replay.profiles import Profile
from replay.rows import CODECS, ROUND_BYTES, Row
from replay.scale import Piece, Scale

# Share of all cores. Runs at 0.95 have given 59 % for a row that is 89 %; those at 0.6 were right.
CPU_LIMIT = 0.7


class ReplayFailed(RuntimeError):
    """A job failed, or its traffic was not what it had to be; the message says which."""


@dataclass(frozen=True)
class Plan:
    """What is asked of one row. steps: timed ones of each mode, after warm_up others, and one more with overlap;
    rounds: of 400 MB, timed. in_order: gradwire sends first what is ready first, and front layers get no priority.
    """

    row: Row
    profile: Profile
    scale: Scale
    steps: int = 3
    warm_up: int = 1
    rounds: int = 2
    in_order: bool = False
    cpu_limit: float = CPU_LIMIT
    mxnet_python: Path | None = None

    @property
    def modes(self) -> tuple[str, ...]:
        """The row's, and with one worker the replay's own overhead before them."""
        return (("alone",) if self.row.workers == 1 else ()) + self.row.modes

    @property
    def compression(self) -> Compression:
        return Compression.parse(CODECS[self.row.codec])

    @property
    def slowest_step(self) -> float:
        """Seconds of a step with nothing overlapped and nothing compressed, for deadlines."""
        size = 4.0 * self.profile.elements
        return self.profile.compute_seconds + 2 * bound.link_seconds(self.row, size, size)

    def tensors(self) -> list[tuple[Piece, ...]]:
        """The layers' pieces, and those of the 400 MB where rounds are wanted."""
        sizes = [layer.elements for layer in self.profile.layers]
        sizes += [ROUND_BYTES // 4] if self.rounds else []
        return [self.scale.pieces(size) for size in sizes]


def why_refused(cpu_share: float, limit: float) -> str | None:
    """Says why a figure is none: the machine's cores were the limit, or may have been, and not the wire."""
    if cpu_share <= limit:
        return None
    return (
        f"the machine's cores were {cpu_share:.0%} busy, expected at most {limit:.0%}: the CPU may have been the "
        "limit and not the wire; end what else runs here, or take a larger --scale"
    )
