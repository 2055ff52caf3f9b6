"""Options that DistributedOptimizer takes beside those of an exchange: checked, or read, before anything changes."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from gradwire.torch import closures
from gradwire.torch.exchange_options import ExchangeOptions, GivenOptions, SparseGradients

if TYPE_CHECKING:
    from gradwire.kv import KVStore


# Of HookState, and what does that here.
_OF_THE_HOOK = {
    "codec": "it is called compression here",
    "local_group": "set GRADWIRE_HIERARCHY=host, which has the ranks of a host sum first",
    "process_group": "it joins by store, or has the store that this process has joined already",
}


def refuse_unknown(function: Callable[..., Any], others: Mapping[str, Any]) -> None:
    """Raises TypeError for arguments that a function does not have; says what it has.

    Args:
        function: DistributedOptimizer or LocalStepOptimizer.
        others: what it was given beside its own arguments.
    """
    if not others:
        return
    who, name = function.__name__, next(iter(others))
    if name in _OF_THE_HOOK:
        raise TypeError(f"gradwire.torch: {who} has no {name}, which is HookState's: {_OF_THE_HOOK[name]}")
    parameters = inspect.signature(function).parameters.values()
    known = sorted(each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD)
    raise TypeError(f"gradwire.torch: {who} has no argument {name!r}; it has {', '.join(known)}")


def require_valid(
    optimizer: torch.optim.Optimizer,
    given: GivenOptions,
    momentum_correction: object,
    backward_passes_per_step: object,
    max_grad_norm: float | None,
) -> None:
    """Checks the options that only DistributedOptimizer takes.

    Raises: ValueError: one is not valid, or cannot be combined with another.
    """
    if momentum_correction not in (True, False, "auto"):
        raise ValueError(
            f"gradwire.torch: momentum_correction={momentum_correction!r}: expected True, False or 'auto'"
        )
    if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
        raise ValueError(
            f"gradwire.torch: backward_passes_per_step={backward_passes_per_step!r}: expected 1 or more"
        )
    if max_grad_norm is not None and not (isinstance(max_grad_norm, numbers.Real) and max_grad_norm > 0):
        raise ValueError(f"gradwire.torch: max_grad_norm={max_grad_norm!r}: expected a number above 0")
    for name, other in (("max_grad_norm", max_grad_norm), ("grad_scaler", given.grad_scaler)):
        if other is not None and momentum_correction is True:
            raise ValueError(
                f"gradwire.torch: momentum_correction=True was given with {name}, which acts on gradients where "
                "p.grad is then the momentum; leave one of the two out"
            )
    if isinstance(optimizer, torch.optim.LBFGS):
        closures.require_possible(
            torch.optim.LBFGS, given.on_nonfinite, given.grad_scaler, sends_momentum=False
        )


def require_unscaled(arguments: Mapping[str, Any]) -> None:
    """Refuses max_grad_norm where gradients still have a GradScaler's scale, which the step itself takes out.

    Args:
        arguments: of step(), other than its closure.

    Raises: ValueError: a grad_scaler is among them.
    """
    if arguments.get("grad_scaler") is not None:
        raise ValueError(
            "gradwire.torch: max_grad_norm was given, and step(grad_scaler=...) leaves the scale in the gradients; "
            "leave max_grad_norm out, and clip after scaler.unscale_(optimizer)"
        )


def has_momentum(optimizer: torch.optim.Optimizer) -> bool:
    """True for SGD with momentum in all groups, which momentum_correction needs."""
    return isinstance(optimizer, torch.optim.SGD) and all(g["momentum"] > 0 for g in optimizer.param_groups)


def sparse_gradients(
    store: KVStore, options: ExchangeOptions, *, as_dense: bool, reads_dense: bool
) -> SparseGradients:
    """Returns how sparse gradients are sent.

    Args:
        as_dense: sparse_as_dense was given.
        reads_dense: an option of the optimizer needs dense gradients.
    """
    if as_dense:
        return "dense"
    return "warn" if reads_dense or options.controller is not None or not store.engine.has_rows else "rows"


def known_sparse(sparse_parameters: Iterable[str], names: Iterable[str]) -> frozenset[str]:
    """Returns the names of sparse_parameters.

    Raises:
        ValueError: one is not the name of a parameter.
    """
    given = frozenset(sparse_parameters)
    if unknown := sorted(given.difference(names)):
        raise ValueError(
            f"gradwire.torch: sparse_parameters has {unknown[0]!r}, which is no name in named_parameters"
        )
    return given
