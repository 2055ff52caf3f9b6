"""Options that DistributedOptimizer takes beside those of an exchange: checked, or read, before anything changes."""

from __future__ import annotations

import inspect
import numbers
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from gradwire.compress import FEW_LEVELS
from gradwire.torch import closures
from gradwire.torch.exchange_options import ExchangeOptions, GivenOptions, SparseGradients

if TYPE_CHECKING:
    from gradwire.kv import KVStore


# Every optimizer of torch.optim that divides by a running mean of past gradients' sizes, as Adam does.
_ADAMS = tuple(
    kind
    for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "SparseAdam")
    if (kind := getattr(torch.optim, name, None)) is not None
)
# Of HookState, and what does that here.
_OF_THE_HOOK = {
    "codec": "it is called compression here",
    "process_group": "it joins by store, or has the store that this process has joined already",
}
_has_warned_of_adam = False  # in this process


def warn_of_adam(
    optimizer: torch.optim.Optimizer,
    named: Iterable[tuple[str, torch.Tensor]],
    options: ExchangeOptions,
    store: KVStore,
) -> None:
    """Warns, once in a process, where an optimizer like Adam steps on gradients of 2bit or 1bit.

    Adam divides each element by the root of its second moment, so small elements count as much as large ones. Under
    these codecs, which have one level for thousands of elements, small ones are zero in most steps and large in the
    others (experiments/adamw). 2bit with row_column_scales, which loses less, does not warn.

    Args:
        optimizer: which steps on the mean.
        named: parameters with their names, by which codecs are chosen.
        options: the codecs.
        store: whose codec counts where the options name none.
    """
    global _has_warned_of_adam
    if _has_warned_of_adam or not is_like_adam(optimizer):
        return
    default = options.default or store.own_compression
    used = {(options.codecs.of(name, p) or default).spec.partition(":")[0] for name, p in named}
    scaled = ("2bit",) if options.row_column_scales else ()  # the user has chosen what loses least
    if not (few := [codec for codec in FEW_LEVELS if codec in used and codec not in scaled]):
        return
    _has_warned_of_adam = True
    kind = next(base for base in type(optimizer).__mro__ if not base.__module__.startswith("gradwire."))
    warnings.warn(
        f"gradwire.torch: {kind.__name__} loses accuracy with the codec {few[0]}, which does not keep the size of "
        'gradients that it divides by; use "int8", "nf4" or "nf2" instead',
        RuntimeWarning,
        stacklevel=3,
    )


def is_like_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Returns True for Adam, what derives from it, and any other optimizer that has betas."""
    return (
        isinstance(optimizer, _ADAMS)
        or "betas" in optimizer.defaults
        or any("betas" in group for group in optimizer.param_groups)
    )


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
