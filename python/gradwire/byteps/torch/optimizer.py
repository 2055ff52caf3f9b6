"""BytePS's DistributedOptimizer: step() waits for the ranks' mean gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from gradwire.byteps.lifecycle import require_init
from gradwire.horovod.torch import optimizer as horovods
from gradwire.horovod.torch.compression import Compression

_PREFIX = "Gradient."


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
) -> Any:
    """Wraps an optimizer so that step() uses the ranks' mean gradients, which are summed while backward() runs.

    Front layers are sent first. The result is an instance of the given optimizer's class and shares its parameter
    groups and state. Use the result, and no longer the optimizer that was given.

    Args:
        optimizer: any torch.optim.Optimizer. One that is distributed already is taken over.
        named_parameters: model.named_parameters(). Their sums are named "Gradient.NAME". Default: by number.
        compression: bps.Compression.none or fp16, or a codec of gradwire: "2bit", bps.Compression.codec("int8"). With a
            codec, parameters with one dimension are not compressed. With Adam and AdamW use "int8": 2bit and 1bit lose
            accuracy with them. Default: none.
        backward_passes_per_step: calls of backward() whose gradients are added up before they are sent. Default: 1.

    Returns: the optimizer. It also has synchronize(), which waits for the sums; skip_synchronize(), a context in which
        step() does not wait, for gradients that were clipped or unscaled (GradScaler) after synchronize(); and
        set_backward_passes_per_step(). If p.grad was changed between backward() and synchronize(), a RuntimeWarning
        names the first such parameter, and the change is lost.

    Raises:
        ValueError: names that are not unique or not complete, an argument that is not valid, or init() was not called.
    """
    require_init("DistributedOptimizer")
    named = None if named_parameters is None else [_gradient(pair) for pair in named_parameters]
    result = horovods.DistributedOptimizer(optimizer, named, compression, backward_passes_per_step)
    result.name_prefix = _PREFIX
    return result


def _gradient(pair: Any) -> tuple[str, torch.Tensor]:
    if not (isinstance(pair, tuple) and len(pair) == 2):
        raise ValueError(
            f"bps.DistributedOptimizer: named_parameters has a {type(pair).__name__}, expected (name, parameter) "
            "pairs; pass model.named_parameters()"
        )
    return f"{_PREFIX}{pair[0]}", pair[1]
