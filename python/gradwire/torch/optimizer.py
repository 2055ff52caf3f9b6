"""DistributedOptimizer: any torch optimizer, stepping on the workers' mean gradient."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch

from gradwire import kv
from gradwire.torch import session
from gradwire.torch.momentum import WorkerMomentum
from gradwire.torch.reducer import GradientReducer, OnNonfinite, warn_of_nonfinite

_bound: weakref.WeakKeyDictionary[Any, weakref.ref[_Distributed]] = weakref.WeakKeyDictionary()  # by store


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: session.Wanted | None = None,
    store: Any = None,
    *,
    momentum_correction: bool | Literal["auto"] = False,
    backward_passes_per_step: int = 1,
    on_nonfinite: OnNonfinite = "warn",
) -> Any:
    """Makes an optimizer whose `p.grad` is the workers' mean as soon as `backward()` returns.

    A collective: every worker calls it at the same place. The result is an instance of the given optimizer's
    class and shares its parameter groups and state; use it, and not the one given, from here on. One at a
    time per store; its `close()` makes room for another.

    Args:
        optimizer: any torch.optim.Optimizer, with all its parameter groups. Parameters may be float32, or
            bfloat16, float16 and float64 (sent as float32), on any device; their gradients must be dense.
        named_parameters: `model.named_parameters()`. The names stand in error texts; the order is the order
            of urgency, front layers first. Default: the optimizer's parameters by number.
        compression: "none", "fp16", "bf16", "2bit", a spec such as "2bit:threshold=auto,reply=2bit" or a
            mapping with "type". For 2bit the threshold is "auto" unless given. GRADWIRE_COMPRESSION overrides
            it. Default: what the store has.
        store: from `gradwire.kv.create()`. Default: the one that this process has created to join its job;
            else, inside a job, `dist_sync` if it has servers and `allreduce` if not; outside `local`.
        momentum_correction: True: each worker sends its own momentum in place of its gradient, and SGD
            applies the mean; p.grad is then the mean momentum, gradients are clipped before they enter it
            only if you clip them in a hook of your own, and GradScaler cannot be used (the momentum would
            hold gradients of several scales). Recommended with SGD, momentum and 2bit: in
            experiments/auto_threshold it removes most of the loss of accuracy. "auto": on for SGD with
            momentum when the compression is 2bit with threshold auto. Momentum is kept in state_dict() under
            SGD's own name, each worker its own.
        backward_passes_per_step: calls of backward() whose gradients are added up before they are sent.
        on_nonfinite: a rank met a NaN or an infinity: "warn"; "ignore"; or "skip_step": step() does nothing
            on any rank, and a NaN is left in the first gradient so that GradScaler sees it and lowers its
            scale everywhere. Alone and without compression gradients are looked at for "skip_step" only.

    A parameter that got no gradient counts as zeros, and is still summed, since other ranks may have used it:
    `p.grad` is then never None after backward(). `with optimizer.no_sync():` keeps gradients local.
    Re-entrant checkpoints (`use_reentrant=True`) and sparse gradients are refused.

    Raises:
        ValueError: an argument is not valid; parameters that named_parameters lacks; ranks that differ, all
            of which get the same text, naming the first difference.
    """
    if isinstance(optimizer, _Distributed):
        raise ValueError("gradwire.torch: this optimizer is a DistributedOptimizer already; wrap it once")
    if on_nonfinite not in ("warn", "skip_step", "ignore"):
        raise ValueError(f"gradwire.torch: on_nonfinite={on_nonfinite!r}: expected warn, skip_step or ignore")
    if momentum_correction not in (True, False, "auto"):
        raise ValueError(
            f"gradwire.torch: momentum_correction={momentum_correction!r}: expected True, False or 'auto'"
        )
    if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
        raise ValueError(
            f"gradwire.torch: backward_passes_per_step={backward_passes_per_step!r}: expected 1 or more"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"gradwire.torch: optimizer is a {type(optimizer).__name__}, expected a torch.optim.Optimizer"
        )
    if store is not None and not isinstance(store, kv.KVStore):
        raise TypeError(
            f"gradwire.torch: store is {store!r}, expected what gradwire.kv.create() returns, or None"
        )
    named = _name_parameters(optimizer, named_parameters)
    store = session.default_store() if store is None else store
    if (other := _bound.get(store, lambda: None)()) is not None and other._reducer is not None:
        raise ValueError(
            "gradwire.torch: this store serves a DistributedOptimizer already, and it can serve one; give it "
            "all parameters in groups, or close() the other first"
        )
    session.set_compression(store, compression)
    base = type(optimizer)
    wrapped: Any = object.__new__(type(f"Distributed{base.__name__}", (_Distributed, base), {}))
    # An LR scheduler made earlier has patched step() on the instance; its patch calls the class it knew.
    wrapped.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    if momentum_correction == "auto":
        momentum_correction = "threshold=auto" in store.compression.spec and _has_momentum(optimizer)
    momentum = WorkerMomentum(wrapped) if momentum_correction else None
    wrapped._attach(store, named, momentum, passes=backward_passes_per_step, on_nonfinite=on_nonfinite)
    _bound[store] = weakref.ref(wrapped)
    return wrapped


def _has_momentum(optimizer: torch.optim.Optimizer) -> bool:
    return isinstance(optimizer, torch.optim.SGD) and all(g["momentum"] > 0 for g in optimizer.param_groups)


def _name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.Tensor]]:
    """Returns the optimizer's parameters with their names, in named_parameters' order."""
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named_parameters is None:
        return [(f"parameter.{index}", parameter) for index, parameter in enumerate(own)]
    named = list(named_parameters)
    if any(not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)) for pair in named):
        raise ValueError(
            "gradwire.torch: named_parameters holds something that is not a (name, parameter) pair"
        )
    names = [name for name, _ in named]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"gradwire.torch: named_parameters has {duplicates[0]!r} more than once")
    wanted = set(own)
    found = [(name, parameter) for name, parameter in named if parameter in wanted]
    if missing := wanted.difference(parameter for _, parameter in found):
        shape = tuple(next(iter(missing)).shape)
        raise ValueError(
            f"gradwire.torch: {len(missing)} of the optimizer's {len(wanted)} parameters are not in "
            f"named_parameters, one has shape {shape}; pass model.named_parameters() of the whole model"
        )
    return found


class _Distributed(torch.optim.Optimizer):
    """What DistributedOptimizer adds to an optimizer's class."""

    _reducer: GradientReducer | None
    _momentum: WorkerMomentum | None
    _unsent: list[tuple[str, torch.Tensor]]
    _skips_nonfinite: bool  # where no reducer looks

    def _attach(
        self,
        store: Any,
        named: list[tuple[str, torch.Tensor]],
        momentum: WorkerMomentum | None,
        *,
        passes: int,
        on_nonfinite: OnNonfinite,
    ) -> None:
        sent = [(name, p) for name, p in named if p.requires_grad and p.numel() > 0]
        self._unsent = [(name, p) for name, p in named if not p.requires_grad]
        self._reducer = self._momentum = None
        self._skips_nonfinite = False
        if other := [name for name, p in sent if not p.is_floating_point()]:
            raise ValueError(
                f"gradwire.torch: {other[0]!r} is {dict(sent)[other[0]].dtype}, expected float32, bfloat16, float16 "
                "or float64; hold real and imaginary parts as two real parameters"
            )
        if store.passthrough:  # alone and uncompressed: nothing to exchange
            self._skips_nonfinite = on_nonfinite == "skip_step"
            return
        self._momentum = momentum
        self._reducer = GradientReducer(
            store, sent, passes=passes, on_nonfinite=on_nonfinite, momentum=momentum
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the wrapped optimizer's step on the means, unless on_nonfinite="skip_step" vetoes it."""
        loss = None
        if closure is not None and not isinstance(self, torch.optim.LBFGS):
            with torch.enable_grad():
                loss = closure()
            closure = None
        for name, parameter in self._unsent if self._reducer is not None else ():
            if parameter.grad is not None:
                raise RuntimeError(
                    f"gradwire.torch: {name!r} was frozen when the DistributedOptimizer was made and "
                    "has a gradient now, which the other workers do not see; close() it and make another "
                    "after unfreezing"
                )
        if self._reducer is not None and self._reducer.take_veto():
            return loss
        if self._skips_nonfinite and self._has_nonfinite():
            warn_of_nonfinite("skip_step")
            return loss
        with contextlib.nullcontext() if self._momentum is None else self._momentum.applied():
            result = super().step() if closure is None else super().step(closure)
        return result if loss is None else loss

    def _has_nonfinite(self) -> bool:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        return not all(bool(torch.isfinite(gradient).all()) for gradient in gradients)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keeps the gradients of backward() calls inside it local; the next one outside sends the total."""
        if self._reducer is None:
            yield
            return
        before, self._reducer.sync = self._reducer.sync, False
        try:
            yield
        finally:
            self._reducer.sync = before

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuses: groups are agreed between the workers when the DistributedOptimizer is made."""
        raise RuntimeError("gradwire.torch: add parameter groups before making the DistributedOptimizer")

    @property
    def momentum_correction(self) -> bool:
        """True where workers send momentum, and p.grad is its mean."""
        return self._momentum is not None

    def close(self) -> None:
        """Takes the hooks off the parameters: gradients stay local, and the store is free for another."""
        if self._reducer is not None:
            self._reducer.close()
            self._reducer = self._momentum = None
