"""Which sums there are: what an operation and a codec ask of tensors and ranks."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.horovod import reduce_ops
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.horovod.request import TensorSpec


def require_sum(
    tensors: Sequence[TensorSpec], name: str | None, op: int, process_set: ProcessSet, codec: str
) -> None:
    """Raises ValueError: op or codec cannot combine these tensors of these ranks; says what to do.

    Args:
        codec: compression.codec_text(), empty: none.
    """
    if op == reduce_ops.Adasum:
        _require_adasum(tensors, process_set)
    if codec:
        _require_codec(tensors, name, op, process_set)


def _require_adasum(tensors: Sequence[TensorSpec], process_set: ProcessSet) -> None:
    ranks = len(process_set.members())
    if ranks & (ranks - 1):
        raise ValueError(
            f"hvd.allreduce: op=Adasum combines ranks in pairs, and there are {ranks}; use a power of two"
        )
    if not all(tensor.is_floating for tensor in tensors):
        raise ValueError("hvd.allreduce: op=Adasum is of floating point tensors; use Sum")


def _require_codec(tensors: Sequence[TensorSpec], name: str | None, op: int, process_set: ProcessSet) -> None:
    if name is None:
        raise ValueError(
            "hvd.allreduce: a codec was given without a name, under which the store keeps what it has not sent yet; "
            "give the tensor a name"
        )
    if op not in (reduce_ops.Average, reduce_ops.Sum) or process_set is not global_process_set:
        raise ValueError(
            f"hvd.allreduce {name!r}: a codec sums over all ranks; use op=Average or Sum and no process set, or "
            "Compression.none"
        )
    if not all(tensor.is_floating and tensor.bytes for tensor in tensors):
        raise ValueError(
            f"hvd.allreduce {name!r}: a codec takes floating point tensors of at least one element; use "
            "Compression.none"
        )
