"""OverlappedSums: backward() leaves sums on their way, and each parameter is updated when its own is here.

After backward() every parameter is guarded (parameter_guard.py). Until step() a read of its `grad` is an error, for
that is not the mean yet. After step() whoever reads the parameter waits for its sum and updates it first; so does the
hook of the layer that is about to use it. What arrives while a layer waits is worked off meanwhile. So whatever a
program can see is what it would see without any of this, and a forward pass waits for one layer at a time.

Threading: sums are taken in, and the optimizer runs, on the threads that use the model, one at a time; there is no
thread of its own. README.md has the reasons.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from gradwire import _core
from gradwire.torch.exchange_options import ExchangeOptions, warn_of_nonfinite
from gradwire.torch.overlapping.parameter_guard import (
    Access,
    guard,
    is_guardable,
    is_traced,
    keeper_of,
    release,
)
from gradwire.torch.overlapping.transforms import hear_of_transforms, outside_transforms

if TYPE_CHECKING:
    from gradwire.kv import KVStore
    from gradwire.torch.exchange import Exchange
    from gradwire.torch.gradient_memory import GradientMemory
    from gradwire.torch.momentum import WorkerMomentum
    from gradwire.torch.subset_step import SubsetStep

_NO_BACKWARD = -1  # autograd's number where none runs
_PAUSE = 0.002  # seconds between looks at what else has arrived
_REPLICATING = (torch.jit.ScriptModule, nn.DataParallel)


@dataclass
class _Sum:
    """One parameter's sum, on its way.

    Attributes:
        together: indices of all parameters whose sums the ticket is for, this one's too.
        gradient: what the parameter's grad was, to take the sum when it is here; None: nothing.
        cleared: zero_grad() was called since step(), with this set_to_none; None: it was not.
    """

    ticket: _core.Ticket
    together: Sequence[int]
    gradient: torch.Tensor | None
    cleared: bool | None = None


class OverlappedSums:
    """What a GradientReducer with overlap_step leaves on its way at the end of backward(): see synchronize(), step()
    and zero_grad().
    """

    def __init__(
        self,
        store: KVStore,
        exchange: Exchange,
        memory: GradientMemory,
        *,
        options: ExchangeOptions,
        momentum: WorkerMomentum | None,
    ) -> None:
        """Takes what the reducer has. Requires options without vetoes."""
        self._store, self._exchange, self._memory = store, exchange, memory
        self._options, self._momentum = options, momentum
        self._process = os.getpid()
        self._lock = threading.RLock()  # of what follows; several threads may use a model
        self._sums: dict[int, _Sum] = {}  # by index, from the end of a backward() on
        self._stepping: SubsetStep | None = None  # from step() until the last sum is here
        self._has_failed = False  # and the caller has heard of it
        self._broken_by: BaseException | None = None  # what an update has raised, so that the step is in part
        self._hook_handle: Any = None
        # Of the hook that is to run once more than usual for a compiled module: before what is compiled.
        warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global")
        hear_of_transforms()

    # -- what the optimizer asks for -------------------------------------------------------------------

    def synchronize(self) -> None:
        """Waits for every sum; updates the parameters if step() has been called, else leaves the means in p.grad."""
        with self._alone():
            self._take_when_here(list(self._sums))

    def is_due(self) -> bool:
        """False where sums are on their way for which step() has not been called; otherwise waits for those there are,
        and the optimizer may take its step in one piece.
        """
        with self._alone():
            if self._sums and self._stepping is None:
                return False
            self.synchronize()
            return True

    def step(self, stepping: SubsetStep) -> None:
        """Has parameters be updated as their sums arrive; those that are here already, at once.

        Args:
            stepping: the step, with the options that hold now.
        """
        with self._alone():
            self._require_own_process(self._sums)
            self._require_whole(self._sums)
            guarded = {self._memory.parameters[index] for index in self._sums}
            self._stepping = stepping if guarded else None
            with self._noting_failure():
                with self._updating():
                    stepping.step([p for p in stepping.parameters if p not in guarded])
                self._take_arrived()

    def zero_grad(self, *, set_to_none: bool) -> set[torch.Tensor]:
        """Has gradients that updates still need be cleared after those; returns whose they are."""
        with self._alone():
            if self._stepping is None:
                self.synchronize()
            for one in self._sums.values():
                one.cleared = set_to_none
            return {self._memory.parameters[index] for index in self._sums}

    # -- what the reducer asks for ---------------------------------------------------------------------

    @property
    def has_some(self) -> bool:
        """Whether sums are on their way."""
        return bool(self._sums)

    def await_means(self) -> None:
        """Waits for every sum for which step() has not been called, before something is added to the means."""
        if self._sums and self._stepping is None:
            self.synchronize()

    def begin(self, sums: Iterable[tuple[_core.Ticket, Sequence[int]]]) -> None:
        """Leaves sums on their way: tickets, and the indices of the parameters that each is for."""
        with self._lock:
            self._sums = {
                index: self._lay_aside(index, ticket, together)
                for ticket, together in sums
                for index in together
            }
            if self._sums:
                self._open()
            self._take_when_here([i for i in self._sums if keeper_of(self._memory.parameters[i]) is not self])

    def finish_at_close(self) -> None:
        """Ends the step before the store is closed, unless the caller has heard already that it cannot be."""
        if os.getpid() != self._process:
            return
        try:
            if self._broken_by is not None:
                self._exchange.finish()  # what the others have sent leaves the store
            elif not self._has_failed:
                self.synchronize()
        finally:
            self._abandon()

    def _lay_aside(self, index: int, ticket: _core.Ticket, together: Sequence[int]) -> _Sum:
        """Takes the gradient away from its parameter, lest the next backward() adds to what the network writes."""
        parameter = self._memory.parameters[index]
        gradient, parameter.grad = parameter.grad, None
        if is_guardable(parameter):
            guard(parameter, self)
        return _Sum(ticket, together, gradient)

    # -- while sums arrive -----------------------------------------------------------------------------

    def before(self, parameters: Sequence[torch.Tensor], access: Access) -> None:
        """Keeper's: somebody reads guarded parameters.

        Raises:
            RuntimeError: a gradient is read that is no mean yet, or this process was forked from the optimizer's.
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        if access is Access.DESCRIPTION:
            return
        indices = [self._memory.index_of[parameter] for parameter in parameters]
        with self._alone():
            if self._stepping is not None:
                waits = [i for i in indices if access is Access.VALUE or not self._is_gone(i)]
                self._take_when_here([i for i in waits if i in self._sums])
            elif access is Access.GRADIENT and any(i in self._sums for i in indices):
                self._give_gradient(indices)

    def _give_gradient(self, indices: Collection[int]) -> None:
        if torch._C._current_graph_task_id() != _NO_BACKWARD:
            self.synchronize()  # a hook of the user's, in another backward(), which adds to the means
            return
        raise RuntimeError(
            f"gradwire.torch: the gradient of {self._name(indices)} was read, or set, while its sum is on its way "
            "(overlap_step): it is no mean yet. To clip or look at gradients, also by a GradScaler, call "
            "optimizer.synchronize() between backward() and that, which waits for all sums; or leave overlap_step out"
        )

    @contextlib.contextmanager
    def letting_go(self, parameter: torch.Tensor) -> Iterator[None]:
        """Keeper's: somebody copies a guarded parameter."""
        with self._alone():
            release(parameter)
            try:
                yield
            finally:
                if self._memory.index_of[parameter] in self._sums:
                    guard(parameter, self)

    def _is_gone(self, index: int) -> bool:
        """True where grad is None whatever the update does."""
        return index in self._sums and self._sums[index].cleared is True

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        """torch's hook: a module, of any model, is about to run."""
        if is_traced() or os.getpid() != self._process:
            return
        unseen = _reads_unseen(module)
        if self._stepping is None and not unseen:
            return
        # An evaluation has nothing to gain, and layers that read those below them in ways of their own.
        whole = unseen or not (module.training or torch.is_grad_enabled())
        parameters = module.parameters() if whole else module._parameters.values()
        own = [self._memory.index_of[p] for p in parameters if p is not None and keeper_of(p) is self]
        if own:
            with self._lock:
                self._take_when_here(own)

    def _take_when_here(self, indices: Collection[int]) -> None:
        """Waits for these sums and takes them in, with those that came together with them: one update of many small
        parameters is cheaper than many.
        """
        awaited = [index for index in indices if index in self._sums]
        self._require_own_process(awaited)
        self._require_whole(awaited)
        with self._noting_failure():
            for index in awaited:
                if index in self._sums:  # not worked off while another was awaited
                    self._store.wait_until(functools.partial(self._arrives, self._sums[index].ticket))
            here = [i for index in awaited if index in self._sums for i in self._sums[index].together]
            self._take([index for index in dict.fromkeys(here) if index in self._sums])

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the lock; but not in a process that was forked: a thread that is not there may have it for ever."""
        with self._lock if os.getpid() == self._process else contextlib.nullcontext():
            yield

    def _require_own_process(self, awaited: Collection[int]) -> None:
        if awaited and os.getpid() != self._process:
            raise RuntimeError(
                f"gradwire.torch: {self._name(awaited)} was read in a process that was forked while its sum was "
                " on its way (overlap_step); call optimizer.synchronize() before processes are forked that use "
                "the model"
            )

    def _require_whole(self, awaited: Collection[int]) -> None:
        if awaited and self._broken_by is not None:
            raise RuntimeError(
                f"gradwire.torch: {self._name(awaited)} is without the last step: an update raised "
                f"{type(self._broken_by).__name__}: {self._broken_by} (overlap_step); call optimizer.close() to read "
                "weights as they are, some with that step and some without, and load a checkpoint to go on"
            ) from self._broken_by

    def _name(self, indices: Collection[int]) -> str:
        return repr(self._memory.names[next(iter(indices))])

    @contextlib.contextmanager
    def _updating(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._broken_by = error
            raise

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except (_core.TransportError, _core.TimeoutError) as error:
            self._has_failed = True
            if self._stepping is None:
                raise
            raise type(error)(
                f"{error}; call optimizer.close() to read weights as they are; the last step is then in part"
            ) from error
        except BaseException:
            self._has_failed = True
            raise

    def _arrives(self, ticket: _core.Ticket, seconds: float) -> bool:
        """Waits for a sum, and works off others meanwhile. Returns False when seconds passed first."""
        deadline = time.monotonic() + seconds
        while not ticket.wait(_PAUSE):
            self._take_arrived()
            if time.monotonic() >= deadline:
                return False
        return True

    def _take_arrived(self) -> None:
        self._take([i for i, one in self._sums.items() if one.ticket.done and one.ticket.wait(0)])

    def _take(self, indices: Collection[int]) -> None:
        """Takes in sums that are here: p.grad is the mean, and the parameter is updated if step() has been called."""
        if not indices:
            return
        sums = {index: self._sums.pop(index) for index in indices}
        try:
            with self._updating():
                self._take_in(sums)
        except BaseException:
            self._sums |= sums  # and guarded: whoever reads them is told
            raise
        for index in sums:
            release(self._memory.parameters[index])
        if not self._sums:
            self._finish()

    def _take_in(self, sums: Mapping[int, _Sum]) -> None:
        with _as_outside(self._memory.parameters[next(iter(sums))].device.type):
            later = {index: self._restore(index, one) for index, one in sums.items()}
            if self._stepping is not None:
                self._stepping.step([self._memory.parameters[index] for index in sums])
            for index, one in sums.items():
                _go_on(self._memory.parameters[index], one, later[index])

    def _restore(self, index: int, one: _Sum) -> torch.Tensor | None:
        """Has p.grad be the mean; returns what autograd has put there since."""
        parameter = self._memory.parameters[index]
        later = parameter.grad
        parameter.grad = one.gradient if self._memory.can_take(index, one.gradient) else None
        self._memory.take_mean(index)
        return later

    # -- from the first sum on its way to the last -----------------------------------------------------

    def _open(self) -> None:
        self._leave()
        self._has_failed = False  # an earlier step, as by Ctrl-C
        self._store.unfinished.add(self.finish_at_close)
        self._hook_handle = register_module_forward_pre_hook(self._before_forward)

    def _finish(self) -> None:
        self._leave()
        nonfinite = self._exchange.finish()
        if self._momentum is not None:
            self._momentum.end_step(nonfinite=nonfinite)
        if nonfinite and self._options.on_nonfinite == "warn":
            warn_of_nonfinite("warn")

    def _leave(self) -> None:
        self._stepping = None
        self._store.unfinished.discard(self.finish_at_close)
        if self._hook_handle is not None:
            self._hook_handle.remove()
            self._hook_handle = None

    def _abandon(self) -> None:
        """Leaves what has not arrived, and says so if it is of a step that others have had."""
        with self._lock:
            behind = len(self._sums) if self._stepping is not None else 0
            for index in self._sums:
                release(self._memory.parameters[index])
            self._sums.clear()
            self._broken_by = None
            self._leave()
        if behind:
            warnings.warn(
                f"gradwire.torch: {behind} of {len(self._memory)} parameters are left without the last step, which "
                "failed before they had it (overlap_step); load a checkpoint to go on from one step",
                RuntimeWarning,
                stacklevel=2,
            )


def _go_on(parameter: torch.Tensor, one: _Sum, later: torch.Tensor | None) -> None:
    """Does to p.grad what zero_grad(), and a backward() that began before the step, have done since."""
    if one.cleared is True:
        parameter.grad = later
        return
    assert parameter.grad is not None
    if one.cleared is False:
        parameter.grad.zero_()
    if later is not None:
        parameter.grad.add_(later)


def _reads_unseen(module: nn.Module) -> bool:
    """True for modules that hand parameters to what does not call torch's functions: compiled ones, replicas."""
    if isinstance(module, _REPLICATING) or "dynamo_ctx" in vars(module):  # what torch.compile(module) returns
        return True
    return any(child._compiled_call_impl is not None for child in _called(module))


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """The children that a module can call: also those in its containers, which nobody calls."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _called(child)
        else:
            yield child


@contextlib.contextmanager
def _as_outside(device_type: str) -> Iterator[None]:
    """Has an update be what it is between two forward passes, wherever in one it happens."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(outside_transforms())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(
            torch._C.DisableTorchFunctionSubclass()
        )  # what is guarded does not ask for itself
        if torch.is_autocast_enabled(device_type):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        yield
