"""Transforms of torch.func, as overlap_step meets them: they take guarded parameters, and updates happen inside them.

grad, vjp and vmap wrap what they are given by calls that __torch_function__ does not hear of, and compute on what is
inside. So these calls are replaced, for good, by ones that tell the parameters' keepers first; a call with another
tensor costs one look at its type.

Threading: as parameter_guard.py.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch import eager_transforms, vmap
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

from gradwire.torch.overlapping.parameter_guard import Access, GuardedParameter, tell_keepers

_WRAPPING = (
    (eager_transforms, "_wrap_for_grad"),
    (eager_transforms, "_wrap_functional_tensor"),
    (vmap, "_add_batch_dim"),
)


def hear_of_transforms() -> None:
    """Has the keepers of guarded parameters told before a transform wraps one. No-op after the first time."""
    for module, name in _WRAPPING:
        wrap = getattr(module, name)
        if not hasattr(wrap, _IS_TELLING):
            setattr(module, name, _telling(wrap))


_IS_TELLING = "_gradwire_is_telling"


def _telling(wrap: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(wrap)
    def tell_and_wrap(tensor: torch.Tensor, *arguments: Any) -> Any:
        if type(tensor) is GuardedParameter:
            tell_keepers([tensor], Access.VALUE)
        return wrap(tensor, *arguments)

    setattr(tell_and_wrap, _IS_TELLING, True)
    return tell_and_wrap


@contextlib.contextmanager
def outside_transforms() -> Iterator[None]:
    """Has what is computed inside be none of the transforms' that are under way on this thread."""
    with contextlib.ExitStack() as popped:
        while torch._C._functorch.peek_interpreter_stack() is not None:
            popped.enter_context(temporarily_pop_interpreter_stack())
        yield
