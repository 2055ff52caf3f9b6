"""A system that a bench runs: how it starts a job, and what it puts on the wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradwire.bench.hosts import Network
from gradwire.bench.rounds import Task, gradient
from gradwire.compress import Compression, make
from gradwire.launch.child import Line
from gradwire.launch.supervisor import JobResult
from gradwire.settings import definitions as settings

# The first rounds are not timed: with agreed scales the very first is float32, and PowerSGD's first two are.
WARM_UP = 3
Start = Callable[[Network, Task, Callable[[Line], None], float], JobResult]


class PeerUnavailable(RuntimeError):
    """A peer cannot be run here; the message says why and what to do."""


@dataclass(frozen=True)
class System:
    """One row of a bench.

    Attributes:
        codec: as the record names it; spec: as the workers are told.
        pushed, replied: encoded bytes of one worker's gradient, and of the reply to it.
        start: runs a job to its end: network, task, where lines go, timeout.
        threshold: of MXNet's 2-bit rule, where that is the codec.
        store: what kv.create takes, where the system is gradwire.
        transport: what carries the bytes.
        servers: processes of their own that sum; replicas: 1 where each is mirrored on another.
        fused: whether small tensors travel together; None where there is one tensor.
        payload_checksum: gradwire's setting; None where it is not gradwire.
    """

    name: str
    codec: str
    spec: str
    reply: str
    pushed: int
    replied: int
    start: Start
    threshold: float | None = None
    store: str = ""
    transport: str = "zmq"
    servers: int = 0
    replicas: int = 0
    fused: bool | None = None
    payload_checksum: str | None = None

    @property
    def label(self) -> str:
        """What tells this row from the others of the same bench."""
        words = [self.name, self.store]
        if self.store or not (self.codec == "none" or self.name.endswith(self.codec)):
            words.append(self.codec)
        if self.store and self.reply == self.codec.partition(":")[0] != "none":
            words.append("both ways")
        tail = f", {self.reply} reply" if self.reply in ("exact", "fp32") else ""
        tail += {None: "", True: ", fused", False: ", not fused"}[self.fused]
        tail += ", mirrored" if self.replicas else ""
        if self.payload_checksum not in (None, "auto"):
            tail += f", checksum {self.payload_checksum}"
        return " ".join(filter(None, words)) + tail

    def task(self, ranks: int, elements: int, tensors: int, rounds: int, folder: str) -> Task:
        return Task(
            elements=elements,
            ranks=ranks,
            warm_up=WARM_UP,
            rounds=rounds,
            codec=self.spec,
            threshold=self.threshold,
            reply=self.reply,
            store=self.store,
            tensors=tensors,
            folder=folder,
        )


def fixed_threshold(compression: Compression) -> float | None:
    """The threshold of a 2bit codec with MXNet's rule; None for other codecs and for threshold=auto."""
    name, _, rest = compression.spec.partition(":")
    words = dict(word.split("=") for word in rest.split(",") if word)
    return float(words["threshold"]) if name == "2bit" and words["threshold"] != "auto" else None


def encoded_bytes(compression: Compression, ranks: int, elements: int) -> tuple[int, int]:
    """Returns the bytes of one worker's payloads and of the replies to them, in a round that is not the first.

    Measured by encoding: a whole partition counts as often as there are whole ones, and the rest once.
    """
    partition = settings.Settings().partition_bytes // 4
    whole, rest = divmod(elements, partition)
    parts = [(whole, partition)] * (whole > 0) + [(1, rest)] * (rest > 0)
    sizes = [(count, *_sizes(compression, ranks, length)) for count, length in parts]
    return sum(count * pushed for count, pushed, _ in sizes), sum(count * reply for count, _, reply in sizes)


def _sizes(compression: Compression, ranks: int, elements: int) -> tuple[int, int]:
    codec, reply = make(compression.spec), compression.reply
    grad = gradient(0, elements)
    payload = codec.encode(grad)
    answer = codec.encode_reply([payload] * ranks, elements, reply=reply)
    if codec.agrees_scales:
        scales = codec.decode_reply(answer, ranks, elements, reply=reply)[1]
        payload = codec.encode(grad, scales=scales)
        answer = codec.encode_reply([payload] * ranks, elements, reply=reply)
    return payload.size, answer.size
