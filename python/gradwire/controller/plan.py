"""What is chosen between, and what was chosen: a codec for each tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.compress import Compression

# The least lossy first; they are named as `gradwire plan` names them. One of each size, the one that loses least: bf16,
# fp8, int4 and 2bit have about as many bits as fp16, int8, nf4 and nf2, and lose as much or more, with AdamW by far
# (experiments/codec_accuracy, experiments/adamw).
CANDIDATES = ("none", "fp16", "int8", "nf4", "nf2")
BASELINES = ("none", "fp16")  # what a choice must not be slower than


def compression_of(candidate: str) -> Compression:
    """What the engine is told for a candidate."""
    return Compression.parse(candidate)


def lossiness(candidate: str) -> int:
    """Orders candidates by how much they leave out."""
    return CANDIDATES.index(candidate)


@dataclass(frozen=True)
class Tensor:
    """One parameter.

    Attributes:
        place: in the order of the forward pass; the lowest is the front.
        free: its codec is to be chosen; others (biases, norms, what the user has a codec for) keep theirs.
        together: small, so that it travels with others like it, which have one codec.
    """

    name: str
    elements: int
    place: int
    free: bool = True
    together: bool = False


@dataclass(frozen=True)
class Plan:
    """A candidate for each tensor, by index; those that are not free are "none" here."""

    codecs: tuple[str, ...]

    @classmethod
    def uniform(cls, candidate: str, tensors: Sequence[Tensor]) -> Plan:
        return cls(tuple(candidate if tensor.free else "none" for tensor in tensors))

    @property
    def worst(self) -> str:
        """The lossiest candidate in it."""
        return max(self.codecs, key=lossiness, default="none")

    def describe(self, tensors: Sequence[Tensor]) -> str:
        """Says what travels how: "nf2 for 23 of 54 tensors (98 % of the elements), none for the others"."""
        total = sum(tensor.elements for tensor in tensors)
        counts = Counter(self.codecs)
        parts = []
        for candidate in sorted(set(self.codecs) - {"none"}, key=lossiness, reverse=True):
            own = sum(t.elements for t, c in zip(tensors, self.codecs, strict=True) if c == candidate)
            share = f"{100 * own / total:.0f} % of the elements"
            parts.append(f"{candidate} for {counts[candidate]} of {len(tensors)} tensors ({share})")
        if not parts:
            return "none"
        return ", ".join([*parts, "none for the others"] if counts["none"] else parts)


def groups(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Indices of tensors that are free, in groups that have one codec: each alone, and the small ones together."""
    alone: list[tuple[int, ...]] = [
        (i,) for i, tensor in enumerate(tensors) if tensor.free and not tensor.together
    ]
    small = tuple(i for i, tensor in enumerate(tensors) if tensor.free and tensor.together)
    return [*alone, small] if small else alone
