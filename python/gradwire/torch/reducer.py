"""GradientReducer: sends every gradient the moment autograd has it, and waits for the means when backward()
ends.

Each parameter has a slot: a run of one flat float32 buffer, which the engine reads and writes in place. It lies
where the parameters do, if that is one CUDA device, else on the CPU. For float32 parameters there `p.grad` is a
view of the slot; others are converted on the way in and out.

Threading: hooks run on autograd's thread, one at a time; mark_ready() never blocks, drain() waits without the
GIL.
"""

from __future__ import annotations

import functools
import itertools
import sys
import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.autograd import Variable

from gradwire import _core

if TYPE_CHECKING:
    from gradwire.kv import KVStore
    from gradwire.torch.momentum import WorkerMomentum

OnNonfinite = Literal["warn", "skip_step", "ignore"]

_ALIGNMENT = 16  # float32 elements: slots begin on cache lines
_calls = (
    itertools.count()
)  # a store's keys are declared once, so every reducer's have a number, equal on all ranks


class GradientReducer:
    """Hooks the parameters of one model to one store's engine.

    Attributes:
        sync: False while gradients stay local.
    """

    def __init__(
        self,
        store: KVStore,
        named: Sequence[tuple[str, torch.Tensor]],
        *,
        passes: int,
        on_nonfinite: OnNonfinite,
        momentum: WorkerMomentum | None,
    ) -> None:
        """Declares the parameters (a collective) and installs the hooks.

        Args:
            store: whose engine sums; its slots are taken.
            named: parameters in order of the forward pass; the first is the most urgent.
            passes: calls of backward() that are accumulated before gradients are sent.
            on_nonfinite: what to do in a step in which any rank met a NaN or an infinity.
            momentum: what to send in place of the gradient, or None.

        Raises:
            ValueError: a rank declares other names, shapes or another order; every rank gets the same text.
        """
        self.sync = True
        self._veto = False
        self._engine = engine = store.engine
        self._rank = store.rank
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._passes = passes
        self._passes_done = 0
        self._on_nonfinite = on_nonfinite
        self._momentum = momentum
        self._ready = bytearray(len(named))
        self._graph_task: int | None = None
        prefix = f"gradient.{next(_calls)}."
        keys = engine.declare([(prefix + _wire_name(name, p), list(p.shape), "float32") for name, p in named])
        offsets, total = [], 0
        for parameter in self._parameters:
            offsets.append(total)
            total += -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
        self._device = _home(self._parameters)
        self._flat = torch.zeros(total, dtype=torch.float32, device=self._device)
        runs = [self._flat[o : o + p.numel()] for o, p in zip(offsets, self._parameters, strict=True)]
        self._slots = [
            run.as_strided(p.shape, p.stride()) if _is_channels_last(p) else run.view(p.shape)
            for run, p in zip(runs, self._parameters, strict=True)
        ]
        self._in_place = [p.dtype == torch.float32 and p.device == self._device for p in self._parameters]
        arrays: list[Any] = list(runs)  # any that speak DLPack, which the stub does not say
        engine.bind_slots(keys, arrays)
        engine.set_slot_scale(1.0 / store.num_workers)
        # Hooks live as long as the model; they must not keep the engine, or it would outlive the interpreter.
        itself = weakref.ref(self)
        self._handles = [
            p.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                functools.partial(_on_gradient, itself, i)
            )
            for i, p in enumerate(self._parameters)
        ]

    def close(self) -> None:
        """Takes the hooks off; gradients then stay local."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # -- during backward() -----------------------------------------------------------------------------

    def on_gradient(self, index: int, parameter: torch.Tensor) -> None:
        """Takes what autograd has just accumulated in a parameter's grad."""
        if not self.sync:
            return
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise ValueError(
                f"gradwire.torch: the gradient of {self._names[index]!r} is {parameter.grad.layout}, "
                "expected a dense one; make the layer with sparse=False"
            )
        self._enter_graph_task()
        if self._passes_done + 1 == self._passes:
            self._submit(index)

    def _enter_graph_task(self) -> None:
        task = torch._C._current_graph_task_id()
        if task == self._graph_task:
            return
        if any(self._ready):
            self._graph_task = None
            raise RuntimeError(
                "gradwire.torch: a backward() began while another had sent only some of its gradients: "
                "either that one failed half-way (the job has to be restarted) or it runs inside the other "
                "(use torch.utils.checkpoint with use_reentrant=False)"
            )
        self._graph_task = task
        Variable._execution_engine.queue_callback(self._on_backward_end)

    @torch.no_grad()
    def _submit(self, index: int) -> None:
        if self._ready[index]:
            raise RuntimeError(
                f"gradwire.torch: {self._names[index]!r} got its gradient twice in one backward(); "
                "use torch.utils.checkpoint with use_reentrant=False"
            )
        parameter, slot = self._parameters[index], self._slots[index]
        gradient = parameter.grad
        if self._momentum is not None:
            self._momentum.advance(parameter, gradient, out=slot)
        elif gradient is None:
            slot.zero_()
        elif gradient.data_ptr() != slot.data_ptr() or gradient.stride() != slot.stride():
            slot.copy_(gradient)
        if self._in_place[index]:
            parameter.grad = slot  # zero_grad(set_to_none=True), the default, took it away
        self._ready[index] = True
        self._engine.mark_ready(index, **self._stream())

    def _stream(self) -> dict[str, int]:
        """What the engine is told beside a slot on a device: the stream that is writing its gradient."""
        if self._device.type == "cpu":
            return {}
        return {"stream": torch.cuda.current_stream(self._device).cuda_stream}

    # -- after it --------------------------------------------------------------------------------------

    def _on_backward_end(self) -> None:
        self._graph_task = None
        self._passes_done += 1
        if self._passes_done < self._passes:
            return
        self._passes_done = 0
        for index, ready in enumerate(self._ready):
            if (
                not ready
            ):  # unused in this pass: what earlier passes left, or zeros, so that the sum is complete
                self._submit(index)
        self._drain()
        self._ready = bytearray(len(self._parameters))
        self._copy_back()
        self._veto = False  # of an earlier step, which GradScaler may have skipped without asking
        if self._engine.take_nonfinite():
            self._handle_nonfinite()

    def _drain(self) -> None:
        while not self._engine.drain(1.0):
            self._print_notices()
        self._print_notices()

    def _print_notices(self) -> None:
        for notice in self._engine.take_notices():
            print(f"gradwire: worker {self._rank}: {notice}", file=sys.stderr, flush=True)

    @torch.no_grad()
    def _copy_back(self) -> None:
        for parameter, slot, in_place in zip(self._parameters, self._slots, self._in_place, strict=True):
            if in_place:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(slot)

    def _handle_nonfinite(self) -> None:
        if self._on_nonfinite == "ignore":
            return
        warn_of_nonfinite(self._on_nonfinite)
        if self._on_nonfinite == "skip_step":
            self._veto = True
            first = self._parameters[0].grad
            if (
                first is not None
            ):  # GradScaler looks for one, to skip the step and lower its scale on every rank
                with torch.no_grad():
                    first.fill_(float("nan"))

    # -- the step --------------------------------------------------------------------------------------

    def take_veto(self) -> bool:
        """Says whether this step is to be skipped, and forgets it."""
        veto, self._veto = self._veto, False
        return veto


def warn_of_nonfinite(what_then: OnNonfinite) -> None:
    warnings.warn(
        "gradwire.torch: a worker's gradient held a NaN or an infinity"
        + ("; no rank takes this step" if what_then == "skip_step" else ""),
        RuntimeWarning,
        stacklevel=3,
    )


def _on_gradient(reducer: weakref.ref[GradientReducer], index: int, parameter: torch.Tensor) -> None:
    alive = reducer()
    if alive is not None:
        alive.on_gradient(index, parameter)


def _home(parameters: Sequence[torch.Tensor]) -> torch.device:
    """Returns the one CUDA device that holds all parameters, if the engine can encode there; else the CPU."""
    devices = {parameter.device for parameter in parameters}
    usable = _core.build_info()["cuda_devices"] > 0
    if usable and len(devices) == 1 and (device := devices.pop()).type == "cuda":
        return device
    return torch.device("cpu")


def _is_channels_last(parameter: torch.Tensor) -> bool:
    """True for channels_last memory; the gradient lies in it likewise, so that autograd adds in place."""
    if parameter.is_contiguous():
        return False
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return parameter.dim() in formats and parameter.is_contiguous(memory_format=formats[parameter.dim()])


def _wire_name(name: str, parameter: torch.Tensor) -> str:
    """Returns a name that differs where memory is laid out in another way, so that such ranks do not mix."""
    return f"{name} (channels last)" if _is_channels_last(parameter) else name
