"""What `gradwire bench ps` is asked to measure, and the least time the wire needs for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradwire.compress import Compression
from gradwire.units import parse_rate

PAYLOAD_SHARE = 0.955  # of a link's rate: the rest is headers, at an MTU of 1500
PEERS = ("mxnet",)


@dataclass(frozen=True)
class Plan:
    """What is measured. codec and reply: as Compression.parse takes them.

    Raises: ValueError: an option that is out of its range, or does not go with another.
    """

    ranks: int
    servers: int
    gradient_bytes: int
    bandwidth: str | None = None
    codec: str = "none"
    reply: str = "exact"
    transport: str = "zmq"
    peers: tuple[str, ...] = ()
    repeat: int = 7
    colocated: bool = False
    mxnet_python: Path | None = None

    def __post_init__(self) -> None:
        for option, value in (("ranks", self.ranks), ("servers", self.servers), ("repeat", self.repeat)):
            _expect(value >= 1, f"--{option} {value}", "1 or more")
        size = self.gradient_bytes
        _expect(size >= 4 and size % 4 == 0, f"--bytes {size}", "a multiple of 4, the bytes of a float")
        _expect(self.transport in ("zmq", "inproc"), f"--transport {self.transport}", "zmq or inproc")
        for peer in self.peers:
            _expect(peer in PEERS, f"--peer {peer}", f"one of {', '.join(PEERS)}")
        fits = not self.colocated or self.servers == self.ranks
        _expect(fits, f"--colocated with --servers {self.servers}", "as many servers as ranks")
        if self.transport == "inproc":
            alone = (self.ranks, self.servers, self.bandwidth, self.peers) == (1, 1, None, ())
            _expect(alone, "--transport inproc here", "--ranks 1 --servers 1, no --bandwidth and no --peer")
        if self.bandwidth is not None:
            parse_rate(self.bandwidth)

    @property
    def elements(self) -> int:
        return self.gradient_bytes // 4

    @property
    def compression(self) -> Compression:
        return Compression.parse(self.codec, reply=self.reply)

    def wire_limit(self, pushed: int, replied: int) -> float | None:
        """Returns the seconds that the links need for one round; None where they are not shaped.

        pushed, replied: encoded bytes of one worker's gradient and of the reply to it. Push and pull overlap, and all
        links are full duplex.
        """
        if self.bandwidth is None:
            return None
        bytes_per_second = PAYLOAD_SHARE * parse_rate(self.bandwidth) / 8
        if self.colocated:
            return (self.ranks - 1) / self.ranks * (pushed + replied) / bytes_per_second
        return max(pushed, replied) * max(1.0, self.ranks / self.servers) / bytes_per_second


def _expect(valid: bool, given: str, expected: str) -> None:
    if not valid:
        raise ValueError(f"bench ps: {given} is not valid: expected {expected}")
