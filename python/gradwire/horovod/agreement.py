"""Whether ranks that mean the same operation also want the same: the one place that says what must not differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.horovod.request import Request, TensorSpec

_SCALARS = ("op", "prescale", "postscale", "codec", "root", "ranks")
_VARIABLE_ROWS = ("allgather", "alltoall")  # their first dimension may differ


def disagreement(requests: Mapping[int, Request], members: Sequence[int]) -> str | None:
    """Returns what is wrong with an operation that all members have asked for; None: nothing.

    Args:
        requests: by rank.
        members: of the process set.
    """
    first_rank, first = next(iter(requests.items()))
    if first.kind == "broadcast" and first.root not in members:
        return f"{first.key}: root_rank={first.root} is no member; expected one of {list(members)}"
    for rank, other in requests.items():
        if difference := _difference(first, other):
            ours, theirs = difference
            return (
                f"{first.key}: rank {first_rank} has {ours} and rank {rank} has {theirs}; give the same on all "
                "ranks"
            )
    return None


def _difference(first: Request, other: Request) -> tuple[str, str] | None:
    if len(first.tensors) != len(other.tensors):
        return f"{len(first.tensors)} tensors", f"{len(other.tensors)}"
    for ours, theirs in zip(first.tensors, other.tensors, strict=True):
        if _agreed(first, ours) != _agreed(other, theirs):
            return str(ours), str(theirs)
    for name in _SCALARS:
        mine, its = getattr(first, name), getattr(other, name)
        if mine != its:
            return f"{name}={mine!r}", f"{name}={its!r}"
    return None


def _agreed(request: Request, spec: TensorSpec) -> tuple[str, int, tuple[int, ...]]:
    shape = spec.shape[1:] if request.kind in _VARIABLE_ROWS else spec.shape
    return spec.dtype, len(spec.shape), shape
