"""What one factor divides: sizes of layers and partitions, rates of links, and every limit counted in bytes.

Seconds stay seconds, so that a message's latency keeps its real size. What is not divided, and so weighs more here than
at full size: headers of packets and frames, the CPU time of a message, TCP's shortest retransmission timeout.

Threading: values and pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradwire import settings
from gradwire.units import parse_rate

# Linux's own limits of a socket's buffers, and what a few packets need whatever the scale.
_SEND_BUFFER, _RECEIVE_BUFFER = 4_194_304, 6_291_456
_LEAST_SEND_BUFFER, _LEAST_RECEIVE_BUFFER = 32_768, 49_152
_WHOLE_KEYS = 2**31 - 1  # elements from which a key is cut over servers: none, a piece is a key here
_LEAST_CREDIT = 4096  # bytes: the least that the setting takes


@dataclass(frozen=True)
class Piece:
    """A partition of a layer's gradient: the elements that it has, and those that it stands for."""

    elements: int
    full_elements: int


@dataclass(frozen=True)
class Scale:
    """factor: by how much bytes and bit/s are divided. partition_bytes, of float32, and credit_bytes: at full size.

    Raises: ValueError: a factor below 1.
    """

    factor: float
    partition_bytes: int = settings.Settings().partition_bytes
    credit_bytes: int = settings.Settings().credit_bytes

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ValueError(f"replay: scale {self.factor:g} is not valid: expected a number of at least 1")

    def pieces(self, full_elements: int) -> tuple[Piece, ...]:
        """Cuts a tensor into partitions at full size, and divides every piece.

        The engine cuts what is not many partitions long into shorter ones: README.md, Limits.

        Pieces come to the tensor's elements divided, rounded once; one that comes to nothing goes with the one before
        it, and a tensor has at least one element.
        """
        step = self.partition_bytes // 4
        pieces: list[Piece] = []
        begin, full_begin = 0, 0
        for full_end in [*range(step, full_elements, step), full_elements]:
            end, full = max(1, round(full_end / self.factor)), full_end - full_begin
            if end > begin:
                pieces.append(Piece(end - begin, full))
            else:
                pieces[-1] = Piece(pieces[-1].elements, pieces[-1].full_elements + full)
            begin, full_begin = end, full_end
        return tuple(pieces)

    def bandwidth(self, full: str) -> str:
        """Returns the rate of a link that stands for one of rate `full`, in words that netlab takes."""
        return f"{round(parse_rate(full) / self.factor)}bit"

    def engine_settings(self) -> dict[str, str]:
        """Returns gradwire's settings that count bytes, divided, as environment variables."""
        credit = max(_LEAST_CREDIT, round(self.credit_bytes / self.factor))
        return {
            "GRADWIRE_CREDIT_BYTES": str(credit),
            "GRADWIRE_FUSION_BYTES": str(round(settings.Settings().fusion_bytes / self.factor)),
            "GRADWIRE_BIGARRAY_BOUND": str(_WHOLE_KEYS),
        }

    def socket_buffers(self) -> Mapping[str, str]:
        """Returns what a host's net.ipv4 settings are to be: one full buffer must not hold a long queue."""
        send = max(_LEAST_SEND_BUFFER, round(_SEND_BUFFER / self.factor))
        receive = max(_LEAST_RECEIVE_BUFFER, round(_RECEIVE_BUFFER / self.factor))
        return {"tcp_wmem": f"4096 16384 {send}", "tcp_rmem": f"4096 32768 {receive}"}


def owners(pieces: Sequence[Piece], servers: int) -> list[int]:
    """Returns the server that gets each piece, by the store's rule for keys that go whole: to the one with the fewest
    bytes so far, the lowest of equals."""
    load = [0] * servers
    found = []
    for piece in pieces:
        server = load.index(min(load))
        load[server] += piece.elements
        found.append(server)
    return found
