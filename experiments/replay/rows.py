"""The rows: what each is called, what it runs, and what others published of it.

A name is SYSTEM-CODEC-PLACEMENT-RATE, and -MODEL where that is not vgg16: mxnet-none-8w2s-10gbit,
gradwire-2bit-peers8-1gbit, gradwire-none-8w8shared-10gbit, gradwire-none-8w2s-10gbit-resnet50.

Threading: values and pure functions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gradwire.settings.units import parse_rate

Placement = Literal["servers", "shared", "peers"]

SYSTEMS = ("gradwire", "mxnet", "openmpi", "gloo")
# How gradwire's store is told; the reply is the exact sum of the codes.
CODECS = {"none": "none", "fp16": "fp16", "2bit": "2bit:threshold=0.5"}
# What divides each model: at 20 two cores are the limit of VGG16's rows, and shorter steps need a larger factor.
SCALES = {"vgg16": 100.0, "resnet50": 400.0, "bert_large": 200.0}
ROUND_BYTES = 400_000_000
LOOPBACK = "loopback"  # a rate: all processes on this host, nothing shaped, to try the replay itself

_NAME = re.compile(
    r"(?P<system>[a-z]+)-(?P<codec>[a-z0-9]+)-"
    r"(?:(?P<workers>\d+)w(?P<servers>\d+)(?P<kind>s|shared)|peers(?P<peers>\d+))-"
    r"(?P<rate>[0-9.]+[kmgt]?bit|loopback)(?:-(?P<model>\w+))?"
)
# Seconds of a 400 MB round, and share of one node's speed: VGG16, 8 workers, 10 Gbit Ethernet, MXNet and MPI.
_PUBLISHED_EFFICIENCY = {
    "8w8shared": 0.6781,
    "8w8s": 0.9317,
    "8w4s": 0.7747,
    "8w2s": 0.3790,
    "peers8": 0.9474,
}
_PUBLISHED_ROUND = {"8w1s": 6.5, "8w2s": 3.4, "8w4s": 2.0, "8w8s": 1.2, "peers8": 1.0}


@dataclass(frozen=True)
class Row:
    """One system with one codec on one cluster, training one model.

    servers: those apart from workers' hosts or beside them; with peers every worker is one, and this is 0.
    """

    system: str
    codec: str
    placement: Placement
    workers: int
    servers: int
    bandwidth: str
    model: str = "vgg16"

    @property
    def cluster(self) -> str:
        """The part of the name that says where sums are made."""
        if self.placement == "peers":
            return f"peers{self.workers}"
        return f"{self.workers}w{self.servers}{'shared' if self.placement == 'shared' else 's'}"

    @property
    def name(self) -> str:
        tail = "" if self.model == "vgg16" else f"-{self.model}"
        return f"{self.system}-{self.codec}-{self.cluster}-{self.bandwidth}{tail}"

    @property
    def modes(self) -> tuple[str, ...]:
        """How steps are taken: ours both ways, each peer as its users take them."""
        return {"gradwire": ("drain", "overlap"), "gloo": ("drain",)}.get(self.system, ("overlap",))

    @property
    def polls(self) -> bool:
        """Whether the system's processes are busy while they wait, and let others run: busy cores are no limit then."""
        return self.system == "openmpi"

    @property
    def owners(self) -> int:
        """How many processes hold sums."""
        return self.workers if self.placement == "peers" else self.servers

    @property
    def published_efficiency(self) -> float | None:
        return _PUBLISHED_EFFICIENCY.get(self.cluster) if self._is_published else None

    @property
    def published_round_seconds(self) -> float | None:
        return _PUBLISHED_ROUND.get(self.cluster) if self._is_published else None

    @property
    def _is_published(self) -> bool:
        return (self.codec, self.bandwidth, self.model) == ("none", "10gbit", "vgg16")


def parse(name: str) -> Row:
    """Raises: ValueError: not a row's name; says which part, and what it can be."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise _invalid(name, "SYSTEM-CODEC-PLACEMENT-RATE, such as gradwire-none-8w2s-10gbit")
    parts = match.groupdict()
    if parts["system"] not in SYSTEMS:
        raise _invalid(name, f"a system of {', '.join(SYSTEMS)}")
    codecs = tuple(CODECS) if parts["system"] == "gradwire" else ("none",)
    if parts["codec"] not in codecs:
        raise _invalid(name, f"a codec of {', '.join(codecs)} for {parts['system']}")
    workers, servers = int(parts["peers"] or parts["workers"]), int(parts["servers"] or 0)
    placement: Placement = "peers" if parts["peers"] else "shared" if parts["kind"] == "shared" else "servers"
    if (placement == "peers" and workers < 2) or (placement != "peers" and not (workers and servers)):
        raise _invalid(name, "at least one worker and one server, or two peers")
    if placement == "shared" and servers != workers:
        raise _invalid(name, "a server beside each worker")
    if parts["system"] != "gradwire" and (placement == "peers") == (parts["system"] == "mxnet"):
        raise _invalid(name, "servers for mxnet, peers for openmpi and gloo")
    try:
        parse_rate(parts["rate"] if parts["rate"] != LOOPBACK else "1gbit")
    except ValueError as error:
        raise _invalid(name, str(error)) from None
    model = parts["model"] or "vgg16"
    return Row(parts["system"], parts["codec"], placement, workers, servers, parts["rate"], model)


def _invalid(name: str, expected: str) -> ValueError:
    return ValueError(f"replay: row {name!r} is not valid: expected {expected}; --list names those there are")


def _named(system: str, codecs: str, clusters: str, rate: str = "10gbit", model: str = "") -> list[Row]:
    tail = f"-{model}" if model else ""
    names = [f"{system}-{codec}-{at}-{rate}{tail}" for codec in codecs.split() for at in clusters.split()]
    return [parse(name) for name in names]


# The mission's six rows are the first, and those of the same clusters with the other codecs.
OURS = (
    *_named("gradwire", "none", "1w1s 8w8shared 8w8s 8w4s 8w2s 8w1s peers8"),
    *_named("gradwire", "fp16 2bit", "8w8shared 8w8s 8w4s 8w2s 8w1s peers8"),
    *_named("gradwire", "none 2bit", "peers8", "1gbit"),
    *_named("gradwire", "none", "8w4s 8w2s 8w1s peers8", "10gbit", "resnet50"),
    *_named("gradwire", "2bit", "8w1s peers8", "10gbit", "resnet50"),
)
PEERS = {
    "mxnet": (
        *_named("mxnet", "none", "1w1s 8w8shared 8w8s 8w4s 8w2s 8w1s"),
        *_named("mxnet", "none", "8w4s 8w2s 8w1s", "10gbit", "resnet50"),
    ),
    "openmpi": (
        *_named("openmpi", "none", "peers8"),
        *_named("openmpi", "none", "peers8", "1gbit"),
        *_named("openmpi", "none", "peers8", "10gbit", "resnet50"),
    ),
    "gloo": (
        *_named("gloo", "none", "peers8"),
        *_named("gloo", "none", "peers8", "1gbit"),
        *_named("gloo", "none", "peers8", "10gbit", "resnet50"),
    ),
}
TABLE = (*OURS, *(row for peer in PEERS.values() for row in peer))
