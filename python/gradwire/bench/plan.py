"""What `gradwire bench ps` and `allreduce` are asked to measure, and the least time the wire needs for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gradwire.compress import Compression
from gradwire.plan.simulation import PAYLOAD_SHARE
from gradwire.settings.units import parse_rate

UNSHAPED = "unshaped"  # a bandwidth: every rank on a host of its own, behind a link of no given rate
SERVER_PEERS = ("mxnet",)
ALL_REDUCE_PEERS = ("openmpi", "gloo", "gloo-fp16", "gloo-powersgd", "mxnet")
CHECKSUMS = ("auto", "always", "off")


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """What both benches are told.

    bandwidth: of each link; None: one host, over loopback. launches: jobs of each system, which take turns.
    encrypt: gradwire's connections; peers' stay as they are. tensors: of equal length, into which the gradient is cut.

    Raises: ValueError: an option that is out of its range, or does not go with another.
    """

    command: ClassVar[str]
    known_peers: ClassVar[tuple[str, ...]]

    ranks: int
    gradient_bytes: int
    bandwidth: str | None = None
    peers: tuple[str, ...] = ()
    repeat: int = 7
    launches: int = 1
    tensors: int = 1
    encrypt: bool = False
    mxnet_python: Path | None = None

    def __post_init__(self) -> None:
        for option in ("ranks", "repeat", "launches", "tensors"):
            self._expect(getattr(self, option) >= 1, f"--{option} {getattr(self, option)}", "1 or more")
        size = self.gradient_bytes
        self._expect(size >= 4 and size % 4 == 0, f"--bytes {size}", "a multiple of 4, the bytes of a float")
        for peer in self.peers:
            self._expect(peer in self.known_peers, f"--peer {peer}", f"one of {', '.join(self.known_peers)}")
        used = self.mxnet_python is None or "mxnet" in self.peers
        self._expect(used, f"--mxnet-python {self.mxnet_python} without --peer mxnet", "both or neither")
        whole = self.elements % self.tensors == 0
        self._expect(
            whole, f"--tensors {self.tensors}", f"a divisor of the {self.elements} floats of --bytes"
        )
        single = self.tensors == 1 or "mxnet" not in self.peers
        self._expect(single, f"--tensors {self.tensors} with --peer mxnet", "--tensors 1")
        if self.bandwidth is not None and self.bandwidth != UNSHAPED:
            parse_rate(self.bandwidth)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for gradwire's jobs: the plan counts, not what the user's shell has set. Local sockets are not
        encrypted, so an encrypted job goes without them.
        """
        security = {"GRADWIRE_ENCRYPT": "on", "GRADWIRE_IPC": "off"}
        return {
            "GRADWIRE_COMPRESSION": "",
            "GRADWIRE_HIERARCHY": "",
            **(security if self.encrypt else {"GRADWIRE_ENCRYPT": "off"}),
        }

    @property
    def elements(self) -> int:
        return self.gradient_bytes // 4

    @property
    def launch_count(self) -> int:
        """How many jobs of each system there are: each does a round at least."""
        return min(self.launches, self.repeat)

    def wire_limit(self, pushed: int, replied: int) -> float | None:
        """Returns the seconds that the links need for one round; None where they are not shaped.

        Every host has a worker and the server of an equal share, so that it sends (N-1)/N of both: to the other
        hosts' servers, and to the other hosts' workers.

        pushed, replied: encoded bytes of one worker's gradient and of the reply to it. Push and pull overlap, and all
        links are full duplex.
        """
        return self.link_seconds((self.ranks - 1) / self.ranks * (pushed + replied))

    def link_seconds(self, payload_bytes: float) -> float | None:
        """Returns the seconds in which a link carries so many bytes; None where links are not shaped."""
        if self.bandwidth is None or self.bandwidth == UNSHAPED:
            return None
        return payload_bytes / (PAYLOAD_SHARE * parse_rate(self.bandwidth) / 8)

    def _expect(self, valid: bool, given: str, expected: str) -> None:
        if not valid:
            raise ValueError(f"{self.command}: {given} is not valid: expected {expected}")


@dataclass(frozen=True, kw_only=True)
class ServersPlan(RoundPlan):
    """`gradwire bench ps`. codec and reply: as Compression.parse takes them. replicas 1: with mirrors and without."""

    command: ClassVar[str] = "bench ps"
    known_peers: ClassVar[tuple[str, ...]] = SERVER_PEERS

    servers: int
    codec: str = "none"
    reply: str = "exact"
    transport: str = "zmq"
    colocated: bool = False
    replicas: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        mirrored = self.replicas == 0 or (self.replicas == 1 and self.servers >= 2)
        self._expect(
            mirrored, f"--replicas {self.replicas} with --servers {self.servers}", "2 servers or more"
        )
        self._expect(self.servers >= 1, f"--servers {self.servers}", "1 or more")
        self._expect(self.transport in ("zmq", "inproc"), f"--transport {self.transport}", "zmq or inproc")
        fits = not self.colocated or self.servers == self.ranks
        self._expect(fits, f"--colocated with --servers {self.servers}", "as many servers as ranks")
        if self.transport == "inproc":
            alone = (self.ranks, self.servers, self.bandwidth, self.peers) == (1, 1, None, ())
            expected = "--ranks 1 --servers 1, no --bandwidth and no --peer"
            self._expect(alone, "--transport inproc here", expected)
            self._expect(not self.encrypt, "--transport inproc --encrypt", "zmq: memory is not encrypted")
            self._expect(self.tensors == 1, f"--transport inproc --tensors {self.tensors}", "--tensors 1")

    @property
    def compression(self) -> Compression:
        return Compression.parse(self.codec, reply=self.reply)

    def wire_limit(self, pushed: int, replied: int) -> float | None:
        if self.colocated:
            return super().wire_limit(pushed, replied)
        return self.link_seconds(max(pushed, replied) * max(1.0, self.ranks / self.servers))


@dataclass(frozen=True, kw_only=True)
class AllReducePlan(RoundPlan):
    """`gradwire bench allreduce`.

    stores: names in the bench's table of stores. codecs: what they run with, all in the same run; reply: where a codec
    names none. checksums: what GRADWIRE_CHECKSUM is set to, one after the other.
    """

    command: ClassVar[str] = "bench allreduce"
    known_peers: ClassVar[tuple[str, ...]] = ALL_REDUCE_PEERS

    stores: tuple[str, ...]
    codecs: tuple[str, ...] = ("none",)
    reply: str = "exact"
    checksums: tuple[str, ...] = ("auto",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in self.checksums:
            self._expect(word in CHECKSUMS, f"--checksum {word}", f"one of {', '.join(CHECKSUMS)}")

    @property
    def compressions(self) -> list[tuple[str, Compression]]:
        """Every codec as it was given, but for its reply, and what it means."""
        return [(_without_reply(spec), Compression.parse(spec, reply=self.reply)) for spec in self.codecs]


def _without_reply(spec: str) -> str:
    name, _, rest = spec.partition(":")
    words = [word for word in rest.split(",") if word and not word.startswith("reply=")]
    return f"{name}:{','.join(words)}" if words else name
