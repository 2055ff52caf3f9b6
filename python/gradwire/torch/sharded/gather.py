"""FSDP2: compresses the all-gather of weights, through torch's own extension point.

    fully_shard(model)
    gradwire.torch.compress_reduce_scatter(model, codec="int8")  # gradients
    gradwire.torch.compress_all_gather(model, codec="int8")      # weights

FSDP2 gathers a module's weights before its forward pass, and again before its backward pass: two thirds of all that
travels. Here each rank encodes its own shard of every matrix, and all ranks compute with what the codes stand for, its
owner too: so all have the same bits, in both passes. The optimizer steps on the exact shard, so nothing of a small step
is lost.

Codes travel in torch's own process group, by whatever backend it has, so this works inside a host too, and without a
gradwire job. Vectors (biases, norms) travel as they are.

Source: Wang et al. 2023, "ZeRO++" (2306.10013), section 3.1: weights in blocks of 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultAllocMixin
from torch.utils._python_dispatch import _disable_current_modes

from gradwire.torch import session
from gradwire.torch.process_group import require_alike
from gradwire.torch.sharded.layout import parameter_groups, sharded_modules
from gradwire.torch.sharded.replica_group import ReplicaGroup
from gradwire.torch.sharded.weight_codes import WeightCodes

_WHO = "gradwire.torch: compress_all_gather"
_BITS = {"int8": 8, "int4": 4}
_ENCODED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def compress_all_gather(model: torch.nn.Module, codec: session.Wanted = "int8") -> None:
    """Compresses the weights that every FSDP module of a model gathers. A collective, after fully_shard().

    There is no state: a checkpoint holds the exact shards, as without. An evaluation of the model in training computes
    with the rounded weights.

    Args:
        model: the module that fully_shard() was called on, with its parts.
        codec: "int8" or "int4", with its block size: "int8:block=128". Default: "int8".

    Raises:
        ValueError: no module of the model is an FSDP module; another codec; ranks differ.
        TypeError: codec has the wrong type.
    """
    modules = sharded_modules(_WHO, model).values()
    groups = [(module, group) for module in modules for group in parameter_groups(module)]
    codes, failure = None, None
    try:
        codes = _codes(codec)
    except (TypeError, ValueError) as error:  # the other ranks must hear of it
        failure = error
    require_alike(_WHO, _process_groups([group for _, group in groups]), {"codec": codec}, failure)
    assert codes is not None
    for module, group in groups:
        module.set_custom_all_gather(CompressedAllGather(group, codes))


def _process_groups(groups: Sequence[Any]) -> list[dist.ProcessGroup]:
    """Returns those that reach, one after the other, all ranks which have parts of FSDP's parameter groups."""
    found = {}
    for name in ("shard_process_group", "replicate_process_group"):
        for group in groups:
            each = getattr(group.mesh_info, name, None)
            each = each.group if isinstance(each, ReplicaGroup) else each
            if each is not None and each.size() > 1:
                found[name, tuple(dist.get_process_group_ranks(each))] = each
    return list(found.values())


def _codes(wanted: session.Wanted) -> WeightCodes:
    """Raises: ValueError: it has no codes for weights."""
    spec = session.parse_compression(wanted).spec
    name, _, words = spec.partition(":")
    if name not in _BITS:
        raise ValueError(
            f"{_WHO}: codec is {spec!r}, expected 'int8' or 'int4', with a block size if need be ('int8:block=128'); "
            "weights are sent whole, and other codecs leave something for the next step"
        )
    parameters = dict(word.split("=") for word in words.split(","))
    return WeightCodes(_BITS[name], int(parameters["block"]))


@dataclass(frozen=True)
class _Segment:
    """Where one parameter is in what a rank gives.

    Attributes:
        start: its first element.
        elements: how many.
    """

    start: int
    elements: int

    def of(self, given: torch.Tensor) -> torch.Tensor:
        """Args: given: (..., elements of all)."""
        return given[..., self.start : self.start + self.elements]


class CompressedAllGather(DefaultAllocMixin, AllGather):
    """Gathers the weights of one FSDP module."""

    def __init__(self, group: Any, codes: WeightCodes) -> None:
        """
        Args:
            group: FSDP's parameter group.
            codes: how matrices travel.
        """
        self._codes = codes
        self._exact = DefaultAllGather()
        self._matrices: list[_Segment] = []
        self._vectors: list[_Segment] = []
        start = 0
        for parameter in group.fsdp_params:
            segment = _Segment(start, math.prod(parameter.padded_sharded_param_size))
            start += segment.elements
            if segment.elements:
                is_matrix = len(parameter.sharded_param.shape) > 1
                (self._matrices if is_matrix else self._vectors).append(segment)
        self._elements = start

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Writes all ranks' weights to output_tensor, or has the returned work do so in wait().

        Args:
            output_tensor: (ranks * elements,).
            input_tensor: (elements,), of the same dtype; may be a part of it.
        """
        is_plain = input_tensor.dtype in _ENCODED and input_tensor.numel() == self._elements
        if (
            not self._matrices or not is_plain
        ):  # a subclass's own bytes, or another mesh after the forward pass
            return self._exact(output_tensor, input_tensor, group, async_op)
        # A checkpoint that saves the script's operations would take ours for them.
        with _disable_current_modes():
            codes = self._codes.encode([each.of(input_tensor) for each in self._matrices])
            exact = [each.of(input_tensor).contiguous().view(torch.uint8) for each in self._vectors]
            given = torch.cat([codes, *exact])
            gathered = given.new_empty(group.size(), given.numel())
        # On a CPU nothing is in streams: the work is what lets the caller go on meanwhile.
        is_late = async_op or input_tensor.device.type == "cpu"
        work = self._exact(gathered.view(-1), given, group, is_late)

        def read() -> None:
            with _disable_current_modes():
                self._read(gathered, output_tensor.view(group.size(), -1))

        if not is_late:
            read()
            return None
        assert work is not None
        return _Reading(work, read)

    def _read(self, gathered: torch.Tensor, output: torch.Tensor) -> None:
        """Writes (ranks, elements)."""
        sizes = [each.elements for each in self._matrices]
        end = self._codes.payload_bytes(sizes)
        decoded = self._codes.decode(gathered[:, :end], sizes)
        for segment, values in zip(self._matrices, decoded, strict=True):
            segment.of(output).copy_(values)
        for segment in self._vectors:
            count = segment.elements * output.element_size()
            segment.of(output).copy_(gathered[:, end : end + count].contiguous().view(output.dtype))
            end += count


class _Reading(dist.Work):
    """A gather, and what reads its bytes when they are there."""

    def __init__(self, gather: dist.Work, read: Callable[[], None]) -> None:
        super().__init__()
        self._gather = gather
        self._read: Callable[[], None] | None = read

    @torch.no_grad()
    def wait(self, *timeout: Any) -> bool:
        done: bool = self._gather.wait(*timeout)
        read, self._read = self._read, None
        if read is not None:
            read()
        return done
