"""Hooks that a user has registered on an optimizer's step: for one optimizer (register_step_pre_hook()) or for all.

torch calls them around its own step(). A step that gradwire takes in parts has to call them itself, and a step on means
has to look whether they have set gradients. An optimizer whose class never ran torch's __init__() has none of its own.

Threading: the thread that steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


@contextlib.contextmanager
def called_around(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Calls the hooks before and after the block, as torch does for a step without a closure. If the block raises an
    error, those after it are not called.
    """
    own_before = getattr(optimizer, "_optimizer_step_pre_hooks", {})
    own_after = getattr(optimizer, "_optimizer_step_post_hooks", {})
    for before in (*_global_optimizer_pre_hooks.values(), *own_before.values()):
        before(optimizer, (), {})
    yield
    for after in (*own_after.values(), *_global_optimizer_post_hooks.values()):
        after(optimizer, (), {})


@contextlib.contextmanager
def followed_by(optimizer: torch.optim.Optimizer, look: Callable[[], None]) -> Iterator[None]:
    """Calls look() in each step() of the block, behind the hooks before the step. Without such hooks it does not."""
    own = getattr(optimizer, "_optimizer_step_pre_hooks", None)
    if own is None or not (own or _global_optimizer_pre_hooks):
        yield
        return

    def last_hook(*_: Any) -> None:
        look()

    last = optimizer.register_step_pre_hook(last_hook)
    try:
        yield
    finally:
        last.remove()
