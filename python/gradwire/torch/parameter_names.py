"""What the parameters of an optimizer are called, and which of them it cannot have."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

Groups = Iterable[Mapping[str, Any]]
"""An optimizer's param_groups."""


def require_pairs(named_parameters: Any) -> list[tuple[str, torch.Tensor]]:
    """Returns names with parameters as a list.

    Raises:
        TypeError: nothing to go through.
        ValueError: something in it is no pair.
    """
    if not isinstance(named_parameters, Iterable):
        raise TypeError(
            f"gradwire.torch: named_parameters is a {type(named_parameters).__name__}, expected (name, parameter) "
            "pairs; pass model.named_parameters()"
        )
    named = list(named_parameters)
    if any(not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)) for pair in named):
        raise ValueError(
            "gradwire.torch: named_parameters holds something that is not a (name, parameter) pair; pass "
            "model.named_parameters()"
        )
    return named


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.Tensor]]:
    """Returns the optimizer's parameters with their names, in named_parameters' order; tied ones once.

    Raises:
        ValueError: a name stands there twice, or a parameter of the optimizer's is not there.
        TypeError: named_parameters is nothing to go through.
    """
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named_parameters is None:
        return [(f"parameter.{index}", parameter) for index, parameter in enumerate(own)]
    named = require_pairs(named_parameters)
    names = [name for name, _ in named]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"gradwire.torch: named_parameters has {duplicates[0]!r} more than once")
    first_name: dict[torch.Tensor, str] = {}
    for name, parameter in named:
        first_name.setdefault(parameter, name)
    wanted = set(own)
    if missing := wanted.difference(first_name):
        shape = tuple(next(iter(missing)).shape)
        raise ValueError(
            f"gradwire.torch: {len(missing)} of the optimizer's {len(wanted)} parameters are not in "
            f"named_parameters, one has shape {shape}; pass model.named_parameters() of the whole model"
        )
    return [(name, parameter) for parameter, name in first_name.items() if parameter in wanted]


def warn_of_ddp(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Warns where all names are as DistributedDataParallel gives them, which exchanges the same gradients. A parameter
    does not tell whether it is in one, so another wrapper that calls what it wraps `module` is warned of too.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    names = [name for name, _ in named]
    if names and all(name.startswith("module.") for name in names):
        warnings.warn(
            f"gradwire.torch: parameters have names as {names[0]!r}, so their model seems to be in a "
            "DistributedDataParallel, which writes the same p.grad: gradients would be wrong now and then; make the "
            "optimizer of the model itself and call that, or keep DDP and register gradwire.torch.ddp_hook with it",
            RuntimeWarning,
            stacklevel=3,
        )


class GroupMembers:
    """The parameters in an optimizer's groups, to which others may be added at any time: by add_param_group() of the
    optimizer, of the one that it was made of and shares its groups with, or by hand.
    """

    def __init__(self, param_groups: Groups) -> None:
        self._ids = _ids_of(param_groups)
        self._known = {parameter for group in param_groups for parameter in group["params"]}

    def added(self, param_groups: Groups) -> list[tuple[str, torch.Tensor]]:
        """Returns parameters that have come since the last call, by the names that their group has (param_names), else
        numbers.
        """
        if (ids := _ids_of(param_groups)) == self._ids:
            return []
        self._ids = ids
        added: list[tuple[str, torch.Tensor]] = []
        first = 0
        for group in param_groups:
            numbers = [f"parameter.{first + i}" for i in range(len(group["params"]))]
            names = group.get("param_names", numbers)
            named = zip(names if len(names) == len(numbers) else numbers, group["params"], strict=True)
            added += [(name, parameter) for name, parameter in named if parameter not in self._known]
            first += len(numbers)
        self._known.update(parameter for _, parameter in added)
        return added


def _ids_of(param_groups: Groups) -> list[int]:
    return [id(parameter) for group in param_groups for parameter in group["params"]]


def require_real(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raises ValueError naming a parameter that is trained and holds no real numbers."""
    for name, parameter in named:
        if parameter.requires_grad and not parameter.is_floating_point():
            raise ValueError(
                f"gradwire.torch: {name!r} is {parameter.dtype}, expected float32, bfloat16, float16 "
                "or float64; hold real and imaginary parts as two real parameters"
            )


def require_whole(who: str, named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raises ValueError naming a parameter that is trained and of which this rank has a part.

    Args:
        who: exchanges whole ones: "DistributedOptimizer".
    """
    for name, parameter in named:
        if parameter.requires_grad and (what := _sharded(parameter)) is not None:
            raise ValueError(
                f"gradwire.torch: {name!r} is {what}, and {who} takes models of which each rank has the whole; step "
                "the plain optimizer, and have its model's gradients compressed: by compress_reduce_scatter() where "
                "fully_shard() shards it, by compress_all_reduce() where it has replicas too (HSDP), or by a HookState "
                "where DistributedDataParallel holds it whole"
            )


def _sharded(parameter: torch.Tensor) -> str | None:
    """What a parameter is that ranks have in parts; None: it is whole."""
    tensors = sys.modules.get("torch.distributed.tensor")  # without it there is none
    if tensors is not None and isinstance(parameter, tensors.DTensor):
        return "a DTensor, as of fully_shard() or tensor parallelism"
    if getattr(parameter, "_fsdp_flattened", False):  # FSDP's own mark, with and without use_orig_params
        return "a part of a flat parameter of FullyShardedDataParallel"
    return None
