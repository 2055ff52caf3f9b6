"""SubsetStep: the user's optimizer, on some of its parameters at a time.

Threading: one thread at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn

import torch

# Torch's own: that it has looked at the first parameter, or has warned.
_HARMLESS = ("_need_device_dtype_check_for_fused", "_warned_capturable_if_run_uncaptured")
_CALLS_HOOKS = torch.optim.Optimizer.profile_hook_step(lambda _: None).__code__


def is_divisible(optimizer: torch.optim.Optimizer) -> bool:
    """False for one that hands its step on to another, whose groups are not its own (never made by
    Optimizer.__init__()).
    """
    return "param_groups" in vars(optimizer)


class SubsetStep:
    """One step of an optimizer, in parts: with the options that its groups had when the step was called, and not those
    that a learning-rate scheduler has given them since.

    State stays where the optimizer keeps it, by parameter, so state_dict() is that of a step in one piece. This is
    right for optimizers that update each parameter by its own gradient and state.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, base: type[torch.optim.Optimizer]) -> None:
        """Keeps the options that hold now.

        Args:
            optimizer: whose groups and state count.
            base: the class that computes the step.
        """
        self._optimizer = optimizer
        self._base = base
        self._options = [
            {name: _own(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        self._group_of = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}

    @property
    def parameters(self) -> Collection[torch.Tensor]:
        """All of the optimizer's."""
        return self._group_of.keys()

    def step(self, parameters: Iterable[torch.Tensor]) -> None:
        """Takes the step for these parameters; those without a grad are left alone, as by any optimizer.

        Raises:
            ValueError: the optimizer keeps account of its steps in a group's options, or in an attribute, which parts
                would falsify.
        """
        view = self.view(parameters)
        if not view.param_groups:
            return
        before = [dict(group) for group in view.param_groups]
        own_before = dict(vars(view))
        _without_hooks(self._base)(view)
        if changed := _changed(own_before, vars(view), but=_HARMLESS):
            self._refuse(f"{changed[0]!r} of its own")
        for group, was in zip(view.param_groups, before, strict=True):
            if changed := _changed(was, group):
                self._refuse(f"{changed[0]!r} of a parameter group")

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(
            f"gradwire.torch: {self._base.__name__} changes {what} in each step, "
            "which overlap_step takes in parts, one for every sum that arrives; leave overlap_step out"
        )

    def view(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """Returns an optimizer of the user's class that has these parameters alone, and shares all else; but hooks, of
        which a step in parts is to call none.
        """
        chosen: dict[int, list[torch.Tensor]] = {}
        for parameter in parameters:
            if (group := self._group_of.get(parameter)) is not None:  # else it was taken out of the groups
                chosen.setdefault(group, []).append(parameter)
        view: torch.optim.Optimizer = object.__new__(self._base)
        view.__dict__.update({name: value for name, value in vars(self._optimizer).items() if name != "step"})
        view._optimizer_step_pre_hooks = OrderedDict()
        view._optimizer_step_post_hooks = OrderedDict()
        view.param_groups = [{**self._options[i], "params": members} for i, members in chosen.items()]
        return view


def _without_hooks(base: type[torch.optim.Optimizer]) -> Any:
    """The class's step() as it was before torch wrapped it to call the hooks that all optimizers share."""
    step: Any = base.step
    return step.__wrapped__ if getattr(step, "__code__", None) is _CALLS_HOOKS else step


def _changed(was: Mapping[str, Any], now: Mapping[str, Any], but: Collection[str] = ()) -> list[str]:
    """Names that are new, or stand for another object."""
    return [name for name in now if name not in but and (name not in was or now[name] is not was[name])]


def _own(value: Any) -> Any:
    """Schedulers write to a learning rate that is a tensor, and replace one that is a number."""
    return value.clone() if isinstance(value, torch.Tensor) else value
