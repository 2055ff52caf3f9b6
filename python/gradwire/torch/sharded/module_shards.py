"""The shards of one FSDP module's parameters on this rank, and how their gradients can get a mean that comes late.

FSDP makes p.grad of what it reduces, as soon as the call returns. So a mean is written there later: into the same
memory where that becomes p.grad, else zeros stand in, and the mean is added to p.grad.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradwire.torch.sharded.layout import in_words

# Sums of these are divided by torch before and after they are made, and the latter before the mean is there.
_LATE_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Shard:
    """One parameter's.

    Attributes:
        index: at the exchange.
        parameter: FSDP's.
    """

    index: int
    parameter: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.parameter.sharded_size)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def is_trained(self) -> bool:
        return bool(self.parameter.sharded_param.requires_grad)

    @property
    def gradient(self) -> torch.Tensor | None:
        """p.grad's part of this rank."""
        whole = self.parameter.sharded_param.grad
        return None if whole is None else whole._local_tensor

    def add(self, mean: torch.Tensor) -> None:
        """Adds a mean to p.grad, where zeros stood in.

        Args:
            mean: (elements,).
        """
        if (gradient := self.gradient) is not None:
            gradient.add_(mean.view(self.shape).to(gradient))


class ModuleShards:
    """Those of one of FSDP's parameter groups, whose gradients come as one tensor."""

    def __init__(self, name: str, group: Any, indices: Sequence[int]) -> None:
        """
        Args:
            name: of the module, for error texts.
            group: FSDP's.
            indices: of its parameters at the exchange; of those that have no element on this rank, any.
        """
        self._name = name
        self._group = group
        self._shards = [Shard(*each) for each in zip(indices, group.fsdp_params, strict=True)]

    @property
    def trained(self) -> Sequence[Shard]:
        return [shard for shard in self._shards if shard.is_trained]

    @property
    def is_reduced(self) -> bool:
        """Whether FSDP reduces its gradients in every step: it has run, and a parameter of it is trained."""
        return any(
            shard.is_trained and hasattr(shard.parameter, "_unsharded_param") for shard in self._shards
        )

    def cut(self, flat: torch.Tensor, numbers: int) -> list[tuple[Shard, torch.Tensor]]:
        """Returns each shard that has elements, and where its gradient is in the module's.

        Args:
            flat: real (elements,): what FSDP reduces.
            numbers: of one element: 2 of a complex one, else 1.

        Raises:
            RuntimeError: it is of other parameters.
        """
        padded = [count * numbers for count in self._padded()]
        if sum(padded) != flat.numel():
            raise RuntimeError(
                f"gradwire.torch: compress_all_reduce: {in_words(self._name)} all-reduces "
                f"{flat.numel()} numbers, and its trained parameters have {sum(padded)}; freeze parameters before the "
                "first microbatch of a step; or, if some get no gradient and torch is older than 2.12, which cannot "
                "count those as zeros, freeze them"
            )
        parts = flat.split(padded)  # type: ignore[no-untyped-call]
        return [
            (shard, part[: shard.elements * numbers])
            for shard, part in zip(self.trained, parts, strict=True)
            if shard.elements
        ]

    def _padded(self) -> list[int]:
        return [math.prod(shard.parameter.padded_sharded_param_size) for shard in self.trained]

    def needs_mean_at_once(self, output: torch.Tensor) -> bool:
        """Whether FSDP, or a hook of the script, works on the gradients before backward() has ended.

        Args:
            output: what FSDP reduces.
        """
        return (
            output.dtype not in _LATE_DTYPES  # nor are complex numbers, as such or as pairs
            or output.numel() != sum(self._padded())
            or getattr(self._group, "force_sum_reduction_for_comms", False)
            or getattr(self._group, "_all_reduce_hook", None) is not None
            or any(
                getattr(shard.parameter.sharded_param, "_post_accumulate_grad_hooks", None)
                for shard in self.trained
            )
        )

    def becomes_gradients(self, output: torch.Tensor) -> bool:
        """Whether p.grad will be views of what FSDP reduces; else it is copied, or added to what is there."""
        return output.dtype == self._group._orig_dtype and not any(
            shard.gradient is not None or shard.parameter.offload_to_cpu for shard in self.trained
        )
