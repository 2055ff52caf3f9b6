"""BackwardPass: when a backward() begins, when it has computed all its gradients, and when it has failed.

autograd calls back at the end of the innermost backward() only, and drops the callbacks of one that fails. So where one
backward() runs inside another (re-entrant checkpoints), the nodes that follow in the outer one ask for its end; and a
callback that is dropped tells of the failure.

Several optimizers at one store may get gradients in one backward(). All send what they have before any waits for sums:
ranks may come to their ends in another order, and would wait for each other.

Threading: on autograd's thread, one at a time.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.autograd import Variable

if TYPE_CHECKING:
    from gradwire.kv import KVStore


class Listener(Protocol):
    """Who is told.

    Attributes:
        sync: False while gradients stay local, and it is told of no backward() that begins.
    """

    sync: bool

    def on_backward_begin(self) -> None:
        """Runs before the first gradient is taken."""

    def on_backward_end(self) -> None:
        """Runs when all gradients are computed, those of the outermost backward() too. Sends, and does not wait."""

    def on_all_sent(self) -> None:
        """Follows on_backward_end(), once all listeners of the store have had theirs. May wait for other ranks."""

    def on_backward_failed(self) -> None:
        """Runs when an error was raised before that."""


_passes_of: weakref.WeakKeyDictionary[KVStore, list[weakref.ref[BackwardPass]]] = weakref.WeakKeyDictionary()


class BackwardPass:
    """The calls of backward() on one listener's parameters, which its gradients' hooks tell of."""

    def __init__(self, listener: Listener, store: KVStore, *, after_callbacks: bool = False) -> None:
        """Keeps listener only as long as others do: autograd's hooks live as long as the model.

        Args:
            after_callbacks: it ends after the callbacks that others have given to autograd: FSDP reduces the gradients
                of some modules there. Default: in the order in which they were given.
        """
        self._after_callbacks = after_callbacks
        self._listener = weakref.ref(listener)
        self._tasks: set[int] = set()  # of the backward() in progress, and those inside it
        self._others = _passes_of.setdefault(store, [])  # this one too, in the order in which they were made
        self._others[:] = [other for other in self._others if other() is not None]
        self._others.append(weakref.ref(self))

    def enter(self) -> None:
        """Notes the backward() that runs; for hooks. Requires is_running()."""
        task = torch._C._current_graph_task_id()
        listener = self._listener()
        if task in self._tasks or listener is None:
            return
        listener.on_backward_begin()
        self._tasks.add(task)
        Variable._execution_engine.queue_callback(_End(self, callbacks_before=self._after_callbacks))

    def end(self) -> None:
        """Notes that the backward() that runs has computed its gradients. No-op for those that have ended with
        another's.
        """
        if is_inside_another():
            call_in_outer(self._enter_outer)
            return
        ending = [
            other for each in self._others if (other := each()) is not None and other._tasks & self._tasks
        ]
        listeners = [listener for other in ending if (listener := other._listener()) is not None]
        for other in ending:
            other._tasks.clear()
        try:
            _call_each([listener.on_backward_end for listener in listeners])
        finally:
            _call_each([listener.on_all_sent for listener in listeners])

    def fail(self) -> None:
        """Notes that a backward() has raised an error."""
        self._tasks.clear()
        listener = self._listener()
        if listener is not None:
            listener.on_backward_failed()

    def _enter_outer(self) -> None:
        listener = self._listener()
        if listener is not None and listener.sync:
            self.enter()


def _call_each(functions: Iterable[Callable[[], None]]) -> None:
    """Calls all, also where one raises: the ranks that have sent must not be left waiting."""
    with contextlib.ExitStack() as stack:
        for function in reversed(list(functions)):
            stack.callback(function)


def is_running() -> bool:
    """Whether this thread is in a backward(), or in the callbacks at its end."""
    return torch._C._current_graph_task_id() != -1


def is_inside_another() -> bool:
    """Whether the backward() that has ended ran inside another one, as that of a re-entrant checkpoint. For callbacks
    at its end.
    """
    return torch._C._current_autograd_node() is not None


def call_in_outer(function: Callable[[], None]) -> None:
    """Has a function called once in the backward() around the one that has ended, before the next node there runs.
    Requires is_inside_another().
    """
    outer: Any = torch._C._current_autograd_node()
    handles: list[Any] = []

    def call_once(*_: Any) -> None:
        if handles:
            while handles:
                handles.pop().remove()
            function()

    handles += [node.register_prehook(call_once) for node, _ in outer.next_functions if node is not None]


class _End:
    """What autograd calls when a backward() ends, and drops uncalled when one fails."""

    def __init__(self, backward: BackwardPass, *, callbacks_before: bool) -> None:
        self._backward = backward
        self._callbacks_before = callbacks_before
        self._called = False

    def __call__(self) -> None:
        if self._callbacks_before:
            self._callbacks_before = False
            Variable._execution_engine.queue_callback(self)
            return
        self._called = True
        self._backward.end()

    def __del__(self) -> None:
        if not self._called:
            with contextlib.suppress(Exception):  # the interpreter may be at its end
                self._backward.fail()
