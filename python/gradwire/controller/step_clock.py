"""When gradients are ready: a step of the job as the simulator takes it, and how long steps are."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradwire.controller.plan import Tensor
from gradwire.plan.layer_profile import Layer


@dataclass(frozen=True)
class Step:
    """One step, from the end of the last exchange to the end of its own.

    Attributes:
        ready: seconds from the step's begin until each tensor's gradient was there, by index.
        head_waited: seconds of those before the first gradient that were spent waiting for sums.
    """

    seconds: float
    ready: Mapping[int, float]
    head_waited: float


class StepClock:
    """Notes times of the step in progress; all are of one clock, in seconds."""

    def __init__(self, now: float, waited: float) -> None:
        """waited: seconds that the store has spent waiting for sums until now."""
        self._began = now
        self._waited = waited
        self._head_waited = 0.0
        self._ready: dict[int, float] = {}

    def ready(self, index: int, now: float, waited: float) -> None:
        if not self._ready:
            self._head_waited = waited - self._waited
        self._ready.setdefault(index, now - self._began)

    def end(self, now: float) -> Step:
        return Step(now - self._began, self._ready, self._head_waited)


def layers(tensors: Sequence[Tensor], steps: Sequence[Step]) -> list[Layer]:
    """Makes a layer of each tensor, in order of their places, from the medians over steps.

    A tensor's backward takes from the gradient before it, in time, to its own. What passes before the first one, less
    what was waited for, is the optimizer, the input, the forward pass, the loss and the last layer's backward. Hooks
    on gradients cannot tell these apart: each layer's forward is taken as half its backward, as far as there is time,
    and the rest counts to the front layer, which is the first that the next forward pass needs. On CUDA gradients are
    ready when the host says so, which runs ahead of the device.
    """
    whole = [step for step in steps if step.ready]
    times = [_backward(step, len(tensors)) for step in whole]
    backward = [statistics.median(column) for column in zip(*times, strict=True)] or [0.0] * len(tensors)
    heads = [min(step.ready.values()) - step.head_waited for step in whole]
    head = max(0.0, statistics.median(heads)) if heads else 0.0
    share = min(0.5, head / sum(backward)) if sum(backward) > 0 else 0.0
    forward = [share * seconds for seconds in backward]
    order = sorted(range(len(tensors)), key=lambda index: tensors[index].place)
    forward[order[0]] += max(0.0, head - sum(forward))
    return [Layer(tensors[i].name, tensors[i].elements, forward[i], backward[i]) for i in order]


def _backward(step: Step, tensors: int) -> list[float]:
    """Seconds from each gradient's predecessor in time; 0 for the first, and for those that had none."""
    found, before = [0.0] * tensors, min(step.ready.values())
    for index, ready in sorted(step.ready.items(), key=lambda item: item[1]):
        found[index] = ready - before
        before = ready
    return found
