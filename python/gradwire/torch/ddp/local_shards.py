"""LocalShards: the ranks of one host sum a bucket first, and each then has a shard of the sum, which travels.

Between the ranks of a host, the bucket goes through torch's own collectives (NCCL on GPUs). Between hosts, ranks with
shards of the same place sum those compressed. So a host's gradients leave it once, whatever number of ranks it has, and
each rank encodes a part of them.

Each gradient is cut along the outermost dimension that it has in memory, as FSDP2 cuts parameters. Uneven shards are
padded with zeros on their way.

Threading: as BucketExchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from gradwire.torch.elements import in_memory_order, real_elements
from gradwire.torch.process_group import any_of, require_alike, store_of

if TYPE_CHECKING:
    from gradwire.kv import KVStore

# Their names before PyTorch 2.13 are deprecated.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

LocalGroup = dist.ProcessGroup | int | None
"""What HookState takes: the group of this host's ranks, or how many each host has; None: gradients travel whole."""


def require_local_group(given: LocalGroup) -> None:
    """Checks what needs no other rank.

    Raises:
        TypeError: neither a group that this rank is in nor a number.
        ValueError: a number below 1.
    """
    wanted = (
        "expected how many ranks each host has, or a process group of torch.distributed that this rank is in"
    )
    if given is not None and (isinstance(given, bool) or not isinstance(given, dist.ProcessGroup | int)):
        raise TypeError(f"gradwire.torch: HookState: local_group is {given!r}, {wanted}")
    if isinstance(given, int) and given < 1:
        raise ValueError(f"gradwire.torch: HookState: local_group is {given}, {wanted}")


def join_hosts(group: dist.ProcessGroup | None, given: LocalGroup) -> tuple[KVStore, LocalShards]:
    """Joins the ranks that have this one's place on every host. A collective of the group.

    Args:
        group: DDP's. None: torch's default group.
        given: as require_local_group() has checked it, and not None on any rank.

    Returns: the store of those ranks, and this rank's shards.

    Raises:
        ValueError: local groups do not divide the group into equal parts; or ranks give other numbers, or a number that
            does not divide all ranks. All ranks get the same text.
    """
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    own = given if isinstance(given, int) else tuple(dist.get_process_group_ranks(given))
    everyone: list[Any] = [None] * len(ranks)
    dist.all_gather_object(everyone, own, group=group)
    if isinstance(given, int) or any(isinstance(each, int) for each in everyone):
        _require_one_number(ranks, everyone)
        assert isinstance(given, int)
        local: dist.ProcessGroup = dist.new_subgroups(given)[0]  # type: ignore[no-untyped-call]
        hosts = [tuple(range(first, first + given)) for first in range(0, len(ranks), given)]
    else:
        assert isinstance(given, dist.ProcessGroup)
        local, hosts = given, sorted(set(everyone))
        if sorted(rank for host in hosts for rank in host) != sorted(ranks) or len(set(map(len, hosts))) > 1:
            raise ValueError(
                f"gradwire.torch: HookState: the local groups are of ranks {', '.join(map(str, hosts))}, expected "
                f"groups of equal size that hold each of the ranks {sorted(ranks)} once; give each rank the group of "
                "its host, or the number of ranks that each host has"
            )
    place = dist.get_rank(local)
    return store_of(group, ranks=[host[place] for host in hosts]), LocalShards(local)


def _require_one_number(ranks: Sequence[int], everyone: Sequence[Any]) -> None:
    """Raises ValueError unless all ranks give the same number, which divides the default group's ranks."""
    first, whole = everyone[0], dist.get_world_size()
    for rank, given in zip(ranks, everyone, strict=True):
        if given != first:
            raise ValueError(
                f"gradwire.torch: HookState: local_group is {first} on rank {ranks[0]} and {given} on rank {rank}; all "
                "hosts must have as many ranks: give the same number on all ranks"
            )
    if len(ranks) % first or len(ranks) < whole:
        raise ValueError(
            f"gradwire.torch: HookState: local_group is {first}, and the process group has {len(ranks)} of {whole} "
            "ranks; give a number that divides all ranks, or the process group of this host's ranks"
        )


class LocalShards:
    """The shards of every gradient on the ranks of one host; of one rank without a group, which has all of it.

    Attributes:
        place, count: which shard this rank has, and of how many.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """
        Args:
            group: of the host's ranks. None: gradients travel whole.
        """
        self._group = group
        self.place = 0 if group is None else dist.get_rank(group)
        self.count = 1 if group is None else dist.get_world_size(group)

    def require_alike(self, who: str, options: Mapping[str, Any]) -> None:
        """As process_group.require_alike(), on the host's ranks."""
        if self._group is not None:
            require_alike(who, [self._group], options)

    def any_of(self, own: bool) -> bool:
        """Whether it is so on any rank of the host. A collective of its ranks."""
        return own if self._group is None else any_of(self._group, own)

    def shard_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """Returns what stands for this rank's shard of a gradient: a tensor of its shape and dtype, without memory. The
        parameter itself where it is whole.
        """
        if self._group is None:
            return parameter
        shape = in_memory_order(parameter, parameter.stride()).shape or (1,)
        padded = -(-shape[0] // self.count)
        rows = min(max(shape[0] - self.place * padded, 0), padded)
        return torch.empty((rows, *shape[1:]), dtype=parameter.dtype, device="meta")

    def cut(self, flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """Returns this rank's shard of a whole gradient, as a part of its memory.

        Args:
            flat: real (elements,), in the order of memory.
        """
        begin = self.place * self._padded(parameter)
        return flat[begin : begin + self._elements(parameter)]

    def reduce_scatter(
        self, flat: torch.Tensor, parameters: Sequence[torch.Tensor], dtype: torch.dtype
    ) -> torch.Tensor:
        """Returns this rank's shards of the mean over the host's ranks, padded, one after the other; without a group
        the bucket itself. A collective of the host's ranks.

        Args:
            flat: real (elements,): the gradients of these parameters, one after the other.
            dtype: in which ranks sum.
        """
        if self._group is None:
            return flat
        packed = flat.new_empty((self.count, sum(map(self._padded, parameters))), dtype=dtype)
        for run, columns in self._pairs(flat, packed, parameters):
            columns.copy_(F.pad(run, (0, columns.numel() - run.numel())).view(columns.shape))
        packed.div_(self.count)  # before the sum, as DDP does: float16 overflows later
        shards = packed.new_empty(packed.shape[1])
        if shards.numel():
            _reduce_scatter(shards, packed.view(-1), group=self._group)
        return shards

    def all_gather(
        self, shards: torch.Tensor, flat: torch.Tensor, parameters: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Returns a bucket that has the shards of all ranks, as reduce_scatter() returned them, on any device. A
        collective of the host's ranks.

        Args:
            shards: this rank's.
            flat: filled and returned; without a group it stays as it is, and shards are returned.
        """
        if self._group is None:
            return shards
        packed = flat.new_empty((self.count, shards.numel()), dtype=shards.dtype)
        if shards.numel():
            _all_gather(packed.view(-1), shards.to(flat.device), group=self._group)
        for run, columns in self._pairs(flat, packed, parameters):
            run.copy_(columns.reshape(-1)[: run.numel()])
        return flat

    def split(self, shards: torch.Tensor, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the shard of each parameter, without its padding, as a part of what reduce_scatter() returned."""
        runs = _split(shards, map(self._padded, parameters))
        return [run[: self._elements(p)] for run, p in zip(runs, parameters, strict=True)]

    def _pairs(
        self, flat: torch.Tensor, packed: torch.Tensor, parameters: Sequence[torch.Tensor]
    ) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Returns each gradient of a bucket, and its columns in (ranks, padded elements)."""
        whole = _split(flat, map(real_elements, parameters))
        return zip(whole, _split(packed, map(self._padded, parameters), dim=1), strict=True)

    def _elements(self, parameter: torch.Tensor) -> int:
        """Real numbers in this rank's shard of a parameter."""
        padded = self._padded(parameter)
        return min(max(real_elements(parameter) - self.place * padded, 0), padded)

    def _padded(self, parameter: torch.Tensor) -> int:
        """Real numbers in each rank's shard, with its padding."""
        if self._group is None:
            return real_elements(parameter)
        rows, *others = in_memory_order(parameter, parameter.stride()).shape or (1,)
        numbers = 2 if parameter.is_complex() else 1
        return -(-rows // self.count) * math.prod(others) * numbers


def _split(tensor: torch.Tensor, sizes: Iterable[int], dim: int = 0) -> Sequence[torch.Tensor]:
    found: Sequence[torch.Tensor] = tensor.split(list(sizes), dim)  # type: ignore[no-untyped-call]
    return found
