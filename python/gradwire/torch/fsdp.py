"""FSDP2: the reduce-scatter of gradients, compressed, by torch's own extension point.

    fully_shard(model)
    gradwire.torch.compress_reduce_scatter(model, codec="int8")

Each rank encodes the shards that others own, with a residual of its own for every element, and sends each to its owner,
which decodes and adds what it got in rank order: P (N-1)/N bytes of payload leave a rank, as in torch's. Parameters are
gathered as torch does it: every rank must have the same bits of them. Where any rank met a NaN or an infinity, every
shard is NaN, with a warning, and residuals are as if the step had not been.

Threading: called from autograd's thread; it waits until the shard is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from gradwire import compress
from gradwire.gathered_sum import flagged, loses_nonfinite, unflagged, warn_of_nan_sum
from gradwire.kv import KVStore
from gradwire.torch import session
from gradwire.torch.process_group import store_of


def compress_reduce_scatter(
    model: torch.nn.Module, codec: session.Wanted, process_group: dist.ProcessGroup | None = None
) -> None:
    """Compresses the gradients of every FSDP module in a model. A collective of the group, after fully_shard().

    Args:
        model: what fully_shard() was called on, its parts included.
        codec: as `compression` of DistributedOptimizer; GRADWIRE_COMPRESSION overrides it. A reply makes no sense
            here: each shard has one owner, which keeps the exact sum of what it was sent.
        process_group: the one that the model is sharded over. Default: torch's default group.

    Raises:
        ValueError: nothing in the model is an FSDP module; a bad codec; the store at hand has other ranks.
    """
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise ValueError(
            "gradwire.torch: compress_reduce_scatter: no module of the model is an FSDPModule; call "
            "torch.distributed.fsdp.fully_shard(model) first"
        )
    store = store_of(process_group)
    for number, module in enumerate(modules):
        module.set_custom_reduce_scatter(CompressedReduceScatter(store, session.chosen(codec), number))


class CompressedReduceScatter(ReduceScatter):
    """The reduce-scatter of one FSDP module."""

    def __init__(self, store: KVStore, wanted: session.Wanted, number: int) -> None:
        """
        Args:
            store: its workers are the group's ranks.
            wanted: the codec.
            number: tells modules apart, the same on all ranks.
        """
        self._store = store
        self._spec = session.parse_compression(wanted).spec
        self._codec = compress.make(self._spec)
        self._number = number
        self._step = 0
        self._residuals: list[Any] = []  # by owner of the shard
        self._scales: list[Any] = []  # likewise, where the codec agrees them

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Writes this rank's shard of the sum, or mean, to output_tensor.

        Args:
            input_tensor: (ranks * elements,), the shards one behind the other, of any floating dtype.
            output_tensor: (elements,), of the same.
            op: ReduceOp.SUM or ReduceOp.AVG.

        Raises:
            ValueError: another op, or a group of other ranks than the store's.
        """
        ranks = self._store.num_workers
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise ValueError(f"gradwire.torch: reduce_scatter: op is {op}, expected SUM or AVG")
        if group.size() != ranks:
            raise ValueError(
                f"gradwire.torch: reduce_scatter: the group has {group.size()} ranks, the store {ranks}; give "
                "compress_reduce_scatter() the group that the model is sharded over"
            )
        shards = input_tensor.detach().to(device="cpu", dtype=torch.float32).view(ranks, -1).numpy()
        total = torch.from_numpy(self._reduce(shards))
        if op == dist.ReduceOp.AVG:
            total /= ranks
        output_tensor.copy_(total.view_as(output_tensor))

    def _reduce(self, shards: Any) -> Any:
        """Returns the sum of this rank's shard, float32 (elements,)."""
        elements = shards.shape[1]
        self._expect(shards.shape)
        nonfinite = loses_nonfinite(self._codec, self._spec, shards)
        before = [residual.copy() for residual in self._residuals]
        payloads = [flagged(self._encode(owner, shard), nonfinite) for owner, shard in enumerate(shards)]
        received, nonfinite = unflagged(self._store.collectives.all_to_all(payloads))
        if nonfinite:
            self._residuals = before
            warn_of_nan_sum()
            return np.full(elements, np.nan, np.float32)
        self._step += 1
        if not self._codec.agrees_scales:
            return self._codec.decode_sum(received, elements)
        reply = self._codec.encode_reply(received, elements, reply="fp32")
        total, mine = self._codec.decode_reply(reply, len(received), elements, reply="fp32")
        self._scales = [np.ascontiguousarray(s) for s in self._store.collectives.all_gather(mine)]
        return total

    def _expect(self, shape: tuple[int, ...]) -> None:
        """Makes room for residuals; parameters that were frozen or thawed begin without."""
        if not self._residuals or self._residuals[0].size != shape[1]:
            self._residuals = [np.zeros(shape[1], np.float32) for _ in range(shape[0])]
            self._scales = [None] * shape[0]

    def _encode(self, owner: int, shard: Any) -> Any:
        return self._codec.encode(
            np.ascontiguousarray(shard),
            residual=self._residuals[owner] if self._codec.lossy else None,
            scales=self._scales[owner],
            key=self._number * self._store.num_workers + owner,
            rank=self._store.rank,
            step=self._step,
        )
