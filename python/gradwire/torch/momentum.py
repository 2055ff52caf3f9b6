"""WorkerMomentum: each worker sends its own momentum in place of its gradient ("momentum correction").

With error feedback a gradient may arrive some steps late; momentum applied after the sum then delays it once
more. When every worker applies momentum first, and the codec works on the result, only the codec's delay is
left. The update is torch.optim.SGD's, weight decay, dampening and Nesterov's form included; in exact
arithmetic and without a codec the weights are the same, as momentum is linear.

Source: Lin et al., Deep Gradient Compression, 2018, section 3.2 (momentum correction); Tang et al., 1-bit
Adam, 2021. Deviation: the momentum of an element that was sent is kept (no factor masking).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

# What SGD is told while it applies the mean momentum: momentum and decay are in it already.
_APPLIED = {"momentum": 0, "weight_decay": 0, "dampening": 0, "nesterov": False, "maximize": False}


class WorkerMomentum:
    """Momentum buffers of this worker, kept where SGD keeps its own, so that checkpoints hold them."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, vetoes: bool = False) -> None:
        """Takes over the momentum of an SGD optimizer.

        Args:
            vetoes: a step in which any rank met a NaN or an infinity is not taken; what was before it is kept until
                end_step().

        Raises:
            ValueError: it is no torch.optim.SGD, or a parameter group has no momentum.
        """
        if not isinstance(optimizer, torch.optim.SGD):
            raise ValueError(
                f"gradwire.torch: momentum_correction=True was given with {type(optimizer).__name__}, "
                "expected torch.optim.SGD with momentum; leave it out for other optimizers"
            )
        for index, group in enumerate(optimizer.param_groups):
            if not group["momentum"] > 0:
                raise ValueError(
                    f"gradwire.torch: momentum_correction=True, but parameter group {index} has "
                    f"momentum={group['momentum']}, expected one above 0; leave momentum_correction out"
                )
        self._optimizer = optimizer
        self._vetoes = vetoes
        self._before: dict[torch.Tensor, torch.Tensor | None] = {}  # buffers as this step found them
        self._is_ahead = False  # has advanced since the last step
        self._group_of: dict[torch.Tensor, int] = {}
        self.find_groups()

    def find_groups(self) -> None:
        """Learns which group each parameter is in: again when groups were added."""
        self._group_of = {
            parameter: index
            for index, group in enumerate(self._optimizer.param_groups)
            for parameter in group["params"]
        }

    @torch.no_grad()
    def advance(self, parameter: torch.Tensor, gradient: torch.Tensor | None, *, out: torch.Tensor) -> None:
        """Adds a gradient to the parameter's momentum and writes what is to be sent to out.

        Args:
            gradient: this worker's own, of the parameter's shape; None counts as zero. May share memory with
                out.
            out: float32, of the parameter's shape, on the CPU.
        """
        self._is_ahead = True
        group = self._optimizer.param_groups[self._group_of[parameter]]
        step = torch.zeros_like(parameter) if gradient is None else gradient
        if group["maximize"]:
            step = -step
        if group["weight_decay"] != 0:
            step = step.add(parameter, alpha=group["weight_decay"])
        state = self._optimizer.state[parameter]
        buffer = state.get("momentum_buffer")
        if self._vetoes:
            self._before[parameter] = buffer
        if buffer is None:
            buffer = state["momentum_buffer"] = step.detach().clone()
        else:
            if self._vetoes:
                buffer = state["momentum_buffer"] = buffer.clone()
            buffer.mul_(group["momentum"]).add_(step, alpha=1 - group["dampening"])
        out.copy_(step.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer)

    def require_level(self) -> None:
        """Raises RuntimeError where momentum has advanced since catch_up(): p.grad is a mean of momentum, to which
        gradients would be added, and the sum would advance it once more.
        """
        if self._is_ahead:
            raise RuntimeError(
                "gradwire.torch: backward() was called again before step() or optimizer.zero_grad(), with "
                "momentum_correction: p.grad is the mean of the workers' momentum, to which gradients cannot be added; "
                "put all of a step's backward() calls but the last in optimizer.no_sync(), or use "
                "backward_passes_per_step, or leave momentum_correction out"
            )

    def catch_up(self) -> None:
        """Says that the step is taken for which momentum has advanced, or that its gradients are cleared."""
        self._is_ahead = False

    @torch.no_grad()
    def end_step(self, *, nonfinite: bool) -> None:
        """Ends the step of the last advance() of each parameter.

        Args:
            nonfinite: any rank met a NaN or an infinity. If such a step is not taken, momentum is what it was before;
                if it is, what is not finite begins anew at zero, or this worker could never send it again.
        """
        if nonfinite and self._vetoes:
            for parameter, buffer in self._before.items():
                del self._optimizer.state[parameter]["momentum_buffer"]
                if buffer is not None:
                    self._optimizer.state[parameter]["momentum_buffer"] = buffer
        elif nonfinite:
            for state in self._optimizer.state.values():
                if (buffer := state.get("momentum_buffer")) is not None:
                    buffer.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        self._before.clear()

    def buffers(self) -> dict[torch.Tensor, torch.Tensor]:
        """Returns copies of this worker's momentum, by parameter; none of those that had no gradient yet."""
        states = self._optimizer.state.items()
        return {
            parameter: buffer.clone()
            for parameter, state in states
            if (buffer := state.get("momentum_buffer")) is not None
        }

    def set_buffers(self, buffers: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Goes on with what buffers() returned."""
        for parameter, state in self._optimizer.state.items():
            if parameter not in buffers:
                state.pop("momentum_buffer", None)
        for parameter, buffer in buffers.items():
            self._optimizer.state[parameter]["momentum_buffer"] = buffer

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Has SGD take `p.grad`, now the mean momentum, as it is: w -= lr * p.grad."""
        groups = self._optimizer.param_groups
        kept = [{name: group[name] for name in _APPLIED} for group in groups]
        for group in groups:
            group.update(_APPLIED)
        try:
            yield
        finally:
            for group, values in zip(groups, kept, strict=True):
                group.update(values)


def inherited_momentum(
    own: Mapping[str, Any], saved: Sequence[Mapping[str, Any]], share: float
) -> dict[str, Any]:
    """Returns an SGD's state_dict with the momentum of a worker in a job of another number of workers.

    The mean over workers is what enters the update, so it stays what it was, if each worker that there was is one
    worker's to inherit and share is workers now / workers then. A worker that inherits from none begins with zeros, and
    not without momentum, or its first gradient would count in full in spite of dampening.

    Args:
        own: the state_dict that has all else; of the worker's own, or of another's where it is new.
        saved: those of the workers that it inherits from, in rank order.
    """
    state = dict(own["state"])
    for index, entry in own["state"].items():
        if (buffer := entry.get("momentum_buffer")) is None:
            continue
        total = torch.zeros_like(buffer, dtype=torch.promote_types(buffer.dtype, torch.float32))
        for each in saved:
            if (theirs := each["state"].get(index, {}).get("momentum_buffer")) is not None:
                total += theirs
        state[index] = entry | {"momentum_buffer": (total * share).to(buffer.dtype)}
    return {**own, "state": state}
