"""What one factor divides: sizes of layers and frames, rates of links, and every limit counted in bytes.

Seconds stay seconds, so that a message's latency keeps its real size. What is not divided, and so weighs more here than
at full size: headers of packets and of the peers' messages, the CPU time of a message, TCP's shortest retransmission
timeout, the least buffers of a socket and of a link.

Threading: values and pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.plan.simulation import HEADER_BYTES
from gradwire.settings import definitions as settings
from gradwire.settings.units import parse_rate

# Linux's own limits of a socket's buffers, and what a few packets need whatever the scale.
_SEND_BUFFER, _RECEIVE_BUFFER = 4_194_304, 6_291_456
_LEAST_SEND_BUFFER, _LEAST_RECEIVE_BUFFER = 32_768, 49_152
_WHOLE_KEYS = 2**31 - 1  # elements from which a key is cut over servers: none, a piece is a key here


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

    def elements(self, full_elements: int) -> int:
        """Returns what stands for a tensor of so many elements: at least one."""
        return max(1, round(full_elements / self.factor))

    def framed_elements(self, full_elements: int, bytes_per_element: float) -> int:
        """Returns what stands for so many elements that travel as one frame of gradwire's.

        Its header is as long here as at full size, so the payload gives way: the frame, header and payload, is what is
        divided, down to one element.
        """
        frame_bytes = (full_elements * bytes_per_element + HEADER_BYTES) / self.factor
        return max(1, round((frame_bytes - HEADER_BYTES) / bytes_per_element))

    def bandwidth(self, full: str) -> str:
        """Returns the rate of a link that stands for one of rate `full`, in words that netlab takes."""
        return f"{round(parse_rate(full) / self.factor)}bit"

    def engine_settings(self) -> dict[str, str]:
        """Returns gradwire's settings that count bytes, divided, as environment variables."""
        return {
            "GRADWIRE_CREDIT_BYTES": str(max(1, round(self.credit_bytes / self.factor))),
            "GRADWIRE_FUSION_BYTES": str(round(settings.Settings().fusion_bytes / self.factor)),
            "GRADWIRE_BIGARRAY_BOUND": str(_WHOLE_KEYS),
        }

    def socket_buffers(self) -> Mapping[str, str]:
        """Returns what a host's net.ipv4 settings are to be: one full buffer must not hold a long queue.

        A buffer has a least size, which packets need; what waits in it unsent, and can be overtaken no more, has none.
        """
        unsent = max(1, round(_SEND_BUFFER / self.factor))
        send = max(_LEAST_SEND_BUFFER, unsent)
        receive = max(_LEAST_RECEIVE_BUFFER, round(_RECEIVE_BUFFER / self.factor))
        return {
            "tcp_wmem": f"4096 16384 {send}",
            "tcp_rmem": f"4096 32768 {receive}",
            "tcp_notsent_lowat": f"{unsent}",
        }
