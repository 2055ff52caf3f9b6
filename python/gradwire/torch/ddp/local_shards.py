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
import weakref
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

_WHO = "gradwire.torch: HookState"

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
        raise TypeError(f"{_WHO}: local_group is {given!r}, {wanted}")
    if isinstance(given, int) and given < 1:
        raise ValueError(f"{_WHO}: local_group is {given}, {wanted}")


# By torch's default group and the number of ranks: the names of torch's groups are counted, so none is made twice.
_numbered: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[int, dist.ProcessGroup]] = (
    weakref.WeakKeyDictionary()
)


def join_hosts(
    group: dist.ProcessGroup | None, given: dist.ProcessGroup | int, options: Mapping[str, Any]
) -> tuple[KVStore, LocalShards]:
    """Joins the ranks that have this one's place on every host. A collective of the group.

    Args:
        group: DDP's. None: torch's default group.
        given: as require_local_group() has checked it, and not None on any rank.
        options: what all ranks must have alike, by name.

    Returns: the store of those ranks, and this rank's shards.

    Raises:
        ValueError: local groups do not divide the group into equal parts, or a number does not divide all ranks; or
            ranks differ in a number or in options. All ranks get the same text.
    """
    all_ranks = group or dist.group.WORLD
    assert all_ranks is not None
    told = given if isinstance(given, int) else "a process group"
    require_alike(_WHO, [all_ranks], {"local_group": told, **options})
    ranks = dist.get_process_group_ranks(all_ranks)
    if isinstance(given, int):
        local = _numbered_group(len(ranks), given)
        hosts = [tuple(range(first, first + given)) for first in range(0, len(ranks), given)]
    else:
        local = given
        everyone: list[Any] = [None] * len(ranks)
        dist.all_gather_object(everyone, tuple(dist.get_process_group_ranks(local)), group=group)
        hosts = sorted(set(everyone))
        if sorted(rank for host in hosts for rank in host) != sorted(ranks) or len(set(map(len, hosts))) > 1:
            raise ValueError(
                f"{_WHO}: the local groups are of ranks {', '.join(map(str, hosts))}, expected groups of equal size "
                f"that hold each of the ranks {sorted(ranks)} once; give each rank the group of its host, or the "
                "number of ranks that each host has"
            )
    place = dist.get_rank(local)
    return store_of(group, ranks=[host[place] for host in hosts]), LocalShards(local)


def _numbered_group(ranks: int, given: int) -> dist.ProcessGroup:
    """Returns this rank's group of as many ranks as given.

    Args:
        ranks: of DDP's group.
    """
    whole = dist.get_world_size()
    if ranks % given or ranks < whole:
        raise ValueError(
            f"{_WHO}: local_group is {given}, and the process group has {ranks} of {whole} ranks; give a number that "
            "divides all ranks, or the process group of this host's ranks"
        )
    assert dist.group.WORLD is not None
    made = _numbered.setdefault(dist.group.WORLD, {})
    if given not in made:
        made[given] = dist.new_subgroups(given)[0]  # type: ignore[no-untyped-call]
    return made[given]


class Summing:
    """A sum over the host's ranks: on a GPU it may be under way, while backward() goes on."""

    def __init__(self, shards: torch.Tensor, packed: torch.Tensor | None = None, work: Any = None) -> None:
        """
        Args:
            shards: what the sum is written to.
            packed: what is summed; it is kept until then.
            work: torch's. None: the sum is there.
        """
        self._shards, self._packed, self._work = shards, packed, work

    @property
    def is_done(self) -> bool:
        """Whether wait() would return at once."""
        return self._work is None or bool(self._work.is_completed())

    def wait(self) -> torch.Tensor:
        """Returns the sum. On a GPU only what is queued behind this call waits for it."""
        if self._work is not None:
            self._work.wait()
            self._packed = self._work = None
        return self._shards


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
        self._sizes: dict[torch.Tensor, int] = {}  # _padded(), which every step asks for

    @property
    def peers(self) -> list[dist.ProcessGroup]:
        """What reaches the host's ranks, whose stores are others."""
        return [] if self._group is None else [self._group]

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

    def begin_reduce_scatter(
        self, flat: torch.Tensor, parameters: Sequence[torch.Tensor], dtype: torch.dtype
    ) -> Summing:
        """Begins to make this rank's shards of the mean over the host's ranks, padded, one after the other; without a
        group they are the bucket itself. A collective of the host's ranks.

        Args:
            flat: real (elements,): the gradients of these parameters, one after the other.
            dtype: in which ranks sum.
        """
        if self._group is None:
            return Summing(flat)
        packed = flat.new_empty((self.count, sum(map(self._padded, parameters))), dtype=dtype)
        for run, columns in self._pairs(flat, packed, parameters):
            columns.copy_(F.pad(run, (0, columns.numel() - run.numel())).view(columns.shape))
        packed.div_(self.count)  # before the sum, as DDP does: float16 overflows later
        shards = packed.new_empty(packed.shape[1])
        if not shards.numel():
            return Summing(shards)
        # Gloo never says that a sum is done, so on a CPU it is awaited here.
        work = _reduce_scatter(shards, packed.view(-1), group=self._group, async_op=flat.is_cuda)
        return Summing(shards, packed, work)

    def all_gather(
        self, shards: torch.Tensor, flat: torch.Tensor, parameters: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Returns a bucket that has the shards of all ranks, as begin_reduce_scatter() made them, on any device. A
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
        """Returns the shard of each parameter, without its padding, as a part of what begin_reduce_scatter() made."""
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
        if parameter not in self._sizes:
            rows, *others = in_memory_order(parameter, parameter.stride()).shape or (1,)
            numbers = 2 if parameter.is_complex() else 1
            self._sizes[parameter] = -(-rows // self.count) * math.prod(others) * numbers
        return self._sizes[parameter]


def _split(tensor: torch.Tensor, sizes: Iterable[int], dim: int = 0) -> Sequence[torch.Tensor]:
    found: Sequence[torch.Tensor] = tensor.split(list(sizes), dim)  # type: ignore[no-untyped-call]
    return found
