"""What is inside an optimizer that another library, or gradwire itself, has wrapped already."""

from __future__ import annotations

import torch

_NEVER = 1 << 62  # backward() passes


def own_class(optimizer: torch.optim.Optimizer) -> type:
    """Returns the class that computes the step.

    Horovod makes its DistributedOptimizer as a subclass of the user's, made for the one instance.
    """
    return type(optimizer).__bases__[0] if _is_horovods(optimizer) else type(optimizer)


def stop_others(optimizer: torch.optim.Optimizer) -> None:
    """Ends Horovod's exchange of this optimizer's gradients: two that write one p.grad at a time would race.

    Its hooks cannot be taken off: it keeps no handle of them. They count backward() passes down and act at zero,
    so they are given a count that does not end.
    """
    if _is_horovods(optimizer):
        delays = optimizer._allreduce_delay  # type: ignore[attr-defined]
        delays.update(dict.fromkeys(delays, _NEVER))


def _is_horovods(optimizer: torch.optim.Optimizer) -> bool:
    return hasattr(optimizer, "_allreduce_delay") and hasattr(optimizer, "skip_synchronize")
