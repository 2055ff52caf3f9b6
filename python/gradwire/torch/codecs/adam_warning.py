"""Warns, once in a process, where an optimizer like Adam steps on gradients that travelled by 2bit or 1bit.

Adam divides each element by the root of its second moment, so small elements count as much as large ones. Under these
codecs, which have one level for thousands of elements, small ones are zero in most steps and large in the others
(experiments/adamw).

Where an exchange has the optimizer, it calls warn_of_adam(): DistributedOptimizer. Where it has only parameters, it
calls watch(): the DDP hook, FSDP2's sums, and Horovod's, which BytePS's DistributedDataParallel uses. watch() registers
one global hook of torch, which looks at each optimizer in its first step. It stays, and does nothing once it has warned
or all watched models are judged: torch iterates over its hooks while it runs, so it cannot remove itself.

The codec that counts is the one that follows a warm-up. 2bit with row_column_scales, which loses less, does not warn.
An optimizer that steps on float32 copies of half-precision parameters does not warn.

Threading: one call at a time, of watch() or of a step. Lifetime: keeps no model, parameter or optimizer alive.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._compile import _disable_dynamo
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradwire.compress import FEW_LEVELS

if TYPE_CHECKING:
    from gradwire.kv import KVStore
    from gradwire.torch.exchange_options import ExchangeOptions

Find = Callable[[], torch.Tensor | None]
"""Returns a parameter as the optimizer has it, or None once it is gone: a weakref.ref() of the parameter is one."""

# Every optimizer of torch.optim that divides by a running mean of past gradients' sizes, as Adam does.
_ADAMS = tuple(
    kind
    for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "SparseAdam")
    if (kind := getattr(torch.optim, name, None)) is not None
)
_FRAMES_OF_A_HOOK = 7  # from a call of step() to warnings.warn(), both included; torch's are among them


@dataclass(eq=False)
class _Model:
    """What one watch() was given."""

    parameters: list[tuple[Find, str]]

    def codecs(self, held: Collection[int]) -> set[str]:
        """Returns the codecs of the parameters with these id()s."""
        return {codec for find, codec in self.parameters if id(find()) in held}


_has_warned = False  # in this process
_watched: list[_Model] = []
_seen: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[_Model]] = weakref.WeakKeyDictionary()
"""Optimizers that have stepped since the last watch(), each with the models of which it has parameters."""
_is_hooked = False


def warn_of_adam(
    optimizer: torch.optim.Optimizer,
    named: Iterable[tuple[str, torch.Tensor]],
    options: ExchangeOptions,
    store: KVStore,
) -> None:
    """Warns if an optimizer is like Adam and any of its parameters has 2bit or 1bit.

    Args:
        optimizer: which steps on the mean.
        named, options, store: as of few_levels().
    """
    if is_like_adam(optimizer):
        _warn(optimizer, few_levels(named, options, store).values(), frames=4)


def watch(parameters: Iterable[tuple[Find, str]]) -> None:
    """Has the first step of each optimizer that holds any of these parameters warn if it is like Adam. Costs nothing if
    none has 2bit or 1bit.

    Args:
        parameters: of one model: what finds each, and its codec with or without options, as "2bit:threshold=0.5".
    """
    global _is_hooked
    few = [(find, name) for find, codec in parameters if (name := _name_of(codec)) in FEW_LEVELS]
    if not few or _has_warned:
        return
    _watched.append(_Model(few))
    _seen.clear()  # an optimizer that has stepped already may hold these too
    if not _is_hooked:
        register_optimizer_step_pre_hook(_before_step)
        _is_hooked = True


def few_levels(
    named: Iterable[tuple[str, torch.Tensor]], options: ExchangeOptions, store: KVStore
) -> dict[str, str]:
    """Returns "2bit" or "1bit" for each parameter that has one of them, by name.

    Args:
        named: parameters, or tensors of their dimensions, with the names by which codecs are chosen.
        options: the codecs.
        store: whose codec counts where the options name none.
    """
    default = options.default or store.own_compression
    codecs = {name: _name_of((options.codecs.of(name, p) or default).spec) for name, p in named}
    scaled = ("2bit",) if options.row_column_scales else ()  # the user has chosen what loses least
    return {name: codec for name, codec in codecs.items() if codec in FEW_LEVELS and codec not in scaled}


def is_like_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Returns True for Adam, what derives from it, and any other optimizer that has betas."""
    return (
        isinstance(optimizer, _ADAMS)
        or "betas" in optimizer.defaults
        or any("betas" in group for group in optimizer.param_groups)
    )


@_disable_dynamo  # a compiled step() calls it uncompiled
def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    # A class of torch's may stand in front of an optimizer without having been initialised: it holds nothing.
    if _watched and not _has_warned and hasattr(optimizer, "param_groups"):
        _judge(optimizer)
    if _has_warned or not _watched:
        _watched.clear()
        _seen.clear()


def _judge(optimizer: torch.optim.Optimizer) -> None:
    """Warns in an optimizer's first step. Its second one ends the watch over its models: their other optimizers, as
    AdamW beside Muon, have had their first by then.
    """
    if (models := _seen.get(optimizer)) is not None:
        _watched[:] = [model for model in _watched if model not in models]
        return
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    codecs = {model: found for model in _watched if (found := model.codecs(held))}
    _seen[optimizer] = list(codecs)
    if is_like_adam(optimizer):
        _warn(optimizer, set().union(*codecs.values()), frames=_FRAMES_OF_A_HOOK)


def _warn(optimizer: torch.optim.Optimizer, codecs: Collection[str], *, frames: int) -> None:
    """Warns, unless this process has had the warning, or there are no codecs.

    Args:
        codecs: of FEW_LEVELS.
        frames: from the user's to this function's, both included.
    """
    global _has_warned
    if _has_warned or not codecs:
        return
    _has_warned = True
    kind = next(base for base in type(optimizer).__mro__ if not base.__module__.startswith("gradwire."))
    first = next(codec for codec in FEW_LEVELS if codec in codecs)
    warnings.warn(
        f"gradwire.torch: {kind.__name__} loses accuracy with the codec {first}, which does not keep the size of "
        'gradients that it divides by; use "int8", "nf4" or "nf2" instead',
        RuntimeWarning,
        stacklevel=frames,
    )


def _name_of(codec: str) -> str:
    return codec.partition(":")[0]
