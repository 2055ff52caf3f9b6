"""GradientHooks: what autograd calls when a parameter has its gradient, after all other hooks of the parameter.

A hook of the user's may replace the gradient or change it, so ours has to come last; hooks run in the order in which
they were registered, and others may be registered at any time.

With torch.__future__.set_swap_module_params_on_conversion(True) a conversion (model.half(), model.to()) gives a
parameter the inside of another tensor. autograd then no longer calls its hooks, though its list of hooks is unchanged.
The list is set anew then, which brings back the user's hooks too.

Threading: on the thread that trains, and on autograd's, one at a time.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Protocol

import torch


class Listener(Protocol):
    """Who is told."""

    def on_gradient(self, index: int) -> None:
        """Takes what autograd has just accumulated in a parameter's grad."""


class GradientHooks:
    """One for each parameter, known by its index in order of add()."""

    def __init__(self, listener: Listener) -> None:
        """Keeps listener only as long as others do: hooks live as long as the model, and what they kept would outlive
        the interpreter.
        """
        self._listener = weakref.ref(listener)
        self._parameters: list[torch.Tensor] = []
        self._handles: list[Any] = []
        self._insides: list[int] = []  # what autograd knows the hooks of

    def add(self, parameter: torch.Tensor) -> None:
        """Hooks a parameter, as soon as it requires a gradient."""
        self._parameters.append(parameter)
        self._handles.append(None)
        self._insides.append(0)
        self._hook(len(self._parameters) - 1)

    def restore(self) -> None:
        """Hooks again what has lost its hook."""
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        with torch._C.DisableTorchFunctionSubclass():
            for index, parameter in enumerate(self._parameters):
                handle, hooks = self._handles[index], parameter._post_accumulate_grad_hooks
                if handle is None or hooks is None or handle.id not in hooks:
                    self._hook(index)
                elif swaps or parameter._cdata != self._insides[index]:
                    parameter._post_accumulate_grad_hooks = hooks
                    self._insides[index] = parameter._cdata

    def put_last(self, index: int) -> bool:
        """Has a parameter's hook be the last from the next backward() on. Returns whether it is already. For hooks, and
        parameters that are not guarded.
        """
        hooks, handle = self._parameters[index]._post_accumulate_grad_hooks, self._handles[index]
        if next(reversed(hooks)) == handle.id:
            return True
        handle.remove()
        self._hook(index)
        return False

    def remove(self) -> None:
        """Takes all hooks off."""
        for handle in self._handles:
            if handle is not None:
                handle.remove()
        self._parameters, self._handles, self._insides = [], [], []

    def _hook(self, index: int) -> None:
        parameter = self._parameters[index]
        # A parameter that is guarded (overlap_step) need not be updated for this.
        with torch._C.DisableTorchFunctionSubclass():
            if parameter.requires_grad:
                hook = functools.partial(_tell, self._listener, index)
                self._handles[index] = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._insides[index] = parameter._cdata


def _tell(listener: weakref.ref[Listener], index: int, parameter: torch.Tensor) -> None:
    alive = listener()
    if alive is not None:
        alive.on_gradient(index)
