"""torch.distributed as a store: kv.create("torch"). The process group sums; codecs go through it as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gradwire.compress import Compression
from gradwire.gathered_sum import GatheredSum
from gradwire.settings import definitions as settings
from gradwire.stores.backend import AbstractKVStore
from gradwire.stores.codec_choice import naming_the_variable


class Torch(AbstractKVStore):
    """The default process group of torch.distributed; without one, one over Gloo is made, by torchrun's environment.

    Tensors are PyTorch's or NumPy's, contiguous, on devices that the group's backend takes. Uncompressed sums are in
    the group's own order. Compressed ones are of float32 on the CPU, in rank order; one to which any rank gave a NaN or
    an infinity is NaN, with a warning, and residuals are as before. Integers and complex numbers are summed
    uncompressed.
    """

    def __init__(self) -> None:
        """Raises: ValueError: there is no group, and MASTER_ADDR, MASTER_PORT, RANK or WORLD_SIZE is missing."""
        self._owns_group = not dist.is_initialized()
        if self._owns_group:
            dist.init_process_group("gloo")
        self._compressed: GatheredSum | None = None

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def num_workers(self) -> int:
        return dist.get_world_size()

    def broadcast(self, name: Any, tensor: Any, root_rank: Any = 0) -> None:
        dist.broadcast(_in_place(tensor), src=root_rank)

    def push_pull(self, name: Any, tensor: Any, output: Any = None) -> None:
        given, target = _in_place(tensor), _in_place(tensor if output is None else output)
        if self._compressed is None or not given.is_floating_point():
            if target.data_ptr() != given.data_ptr():
                target.copy_(given)
            dist.all_reduce(target)
            return
        values = np.ascontiguousarray(given.detach().cpu().float().numpy()).reshape(-1)
        total = self._compressed.add(name, values)
        target.copy_(torch.from_numpy(total).reshape(target.shape))

    def set_gradient_compression(self, compression_params: Mapping[str, Any] | str) -> None:
        """As KVStore.set_gradient_compression; GRADWIRE_COMPRESSION overrides it. Residuals begin at 0.

        Raises: ValueError: a bad type, parameter or reply.
        """
        here = settings.read()
        with naming_the_variable(here.compression):
            parsed = Compression.parse(here.compression or compression_params, reply=here.reply)
        parsed.require_whole_weights("the store 'torch' has no servers")
        dense = parsed.spec == "none"
        self._compressed = None if dense else GatheredSum(parsed, self.rank, _all_gather)

    def close(self) -> None:
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()


def _in_place(tensor: Any) -> torch.Tensor:
    """The tensor itself, or a tensor that shares a NumPy array's memory."""
    given = torch.from_numpy(tensor) if isinstance(tensor, np.ndarray) else tensor.detach()
    if not given.is_contiguous():
        raise ValueError("the store 'torch': the tensor is not contiguous; give a contiguous one")
    return given


def _all_gather(payload: Any) -> Sequence[Any]:
    """Payloads may differ in length, which torch's all_gather does not take: they are padded to the longest."""
    lengths = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([payload.size], dtype=torch.int64, device="cpu"))
    padded = np.zeros(max(int(length) for length in lengths), np.uint8)
    padded[: payload.size] = payload
    blocks = [torch.zeros(padded.size, dtype=torch.uint8, device="cpu") for _ in lengths]
    dist.all_gather(blocks, torch.from_numpy(padded))
    return [block.numpy()[: int(length)] for block, length in zip(blocks, lengths, strict=True)]
