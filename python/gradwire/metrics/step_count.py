"""Counts optimizer steps of this process, by PyTorch's own hook.

Threading: steps are taken on threads of the script; anybody may ask for the count.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

_of_each: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_most = 0
_is_hooked = False


def watch() -> None:
    """Counts from now on, if the script has imported torch. Call it where no optimizer is in a step."""
    global _is_hooked
    optim = sys.modules.get("torch.optim.optimizer")
    if not _is_hooked and optim is not None:
        _is_hooked = True
        optim.register_optimizer_step_post_hook(_after_step)


def steps() -> int | None:
    """Returns the steps of the optimizer that has taken the most: a GAN's two take one each. None: PyTorch is not
    used.
    """
    return _most if _is_hooked else None


def _after_step(optimizer: Any, *_: Any) -> None:
    global _most
    count = _of_each.get(optimizer, 0) + 1
    _of_each[optimizer] = count
    if count > _most:
        _most = count
