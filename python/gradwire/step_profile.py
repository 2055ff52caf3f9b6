"""Profiles a training job on this machine, layer by layer: what `gradwire plan -- CMD` does before it plans.

CMD runs with a clock that PyTorch's hooks read: before each module with parameters of its own goes forward, when each
parameter's gradient is complete, and after each optimizer step. Steps are real and undisturbed but for the hooks (on a
GPU, which works behind the program's back, they wait for it, so that overlap within the GPU is lost). After STEPS steps
the profile is written, and the process ended.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.layer_profile import Layer, Profile, load, text_of, validate

STEPS = 30
_WARM_UP = 3
_DEADLINE = 1800.0  # seconds for all of them


@dataclass
class Step:
    """Times of one step, in seconds of one clock. Modules are named by number, in the order of their first forward."""

    forward: dict[int, float] = field(default_factory=dict)  # module -> it begins
    ready: dict[int, float] = field(default_factory=dict)  # module -> its last gradient is complete


def of_command(command: Sequence[str]) -> Profile:
    """Runs a training job here until its profile is written.

    Raises: RuntimeError: it ended, or half an hour passed, without STEPS steps of a PyTorch optimizer.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        clock = str(Path(__file__).parent / "step_clock")
        paths = os.pathsep.join(filter(None, [clock, os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": paths, "GRADWIRE_STEP_PROFILE": str(file)}
        try:
            done = subprocess.run(command, env=env, stdout=sys.stderr, timeout=_DEADLINE, check=False)
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"plan: {command[0]} took more than {_DEADLINE:.0f} s for {STEPS} steps"
            ) from None
        if not file.exists():
            raise RuntimeError(
                f"plan: {command[0]} ended with code {done.returncode} before {STEPS} steps of a PyTorch optimizer: "
                "give a command that trains for longer"
            )
        return load(file)


def profile_of(
    steps: Sequence[Step], elements: Mapping[int, int], names: Mapping[int, str], batch: int
) -> Profile:
    """Makes a profile of measured steps, each value a median over them.

    A layer goes forward from its module's start to the next one's start. Between the last module's start and its
    gradient lie its forward, the loss and its backward, which hooks cannot tell apart: half of that counts to either.
    What passes between a step's last gradient and the next one's first module (optimizer, input) counts to the front
    layer's forward, so that the sum is the step.

    Raises: ValueError: no step in which every layer went forward and back.
    """
    whole = [step for step in steps if step.ready and step.ready.keys() <= step.forward.keys()]
    if len(whole) < 2:
        raise ValueError("plan: no two steps in which every layer went forward and back once")
    order = [m for m in whole[-1].forward if m in whole[-1].ready]
    forward: dict[int, list[float]] = {module: [] for module in order}
    backward: dict[int, list[float]] = {module: [] for module in order}
    for before, step in itertools.pairwise(whole):
        if [m for m in step.forward if m in step.ready] != order:
            continue
        starts = [step.forward[module] for module in order]
        ends = sorted((step.ready[module], module) for module in order)
        turn = (starts[-1] + ends[0][0]) / 2
        for module, begins, finishes in zip(order, starts, [*starts[1:], turn], strict=True):
            forward[module].append(finishes - begins)
        forward[order[0]][-1] += max(0.0, starts[0] - max(before.ready.values()))
        since = turn
        for end, module in ends:
            backward[module].append(end - since)
            since = end
    if not forward[order[0]]:
        raise ValueError(
            "plan: no two steps in a row in which the same layers went forward in the same order"
        )
    layers = tuple(
        Layer(
            names[module],
            elements[module],
            max(0.0, statistics.median(forward[module])),
            max(0.0, statistics.median(backward[module])),
        )
        for module in order
    )
    compute = sum(layer.forward_seconds + layer.backward_seconds for layer in layers)
    if compute <= 0:
        raise ValueError("plan: the steps took no time at all")
    source = f"measured on this machine: median of {len(forward[order[0]])} steps"
    profile = Profile("measured", source, batch, batch / compute, layers)
    validate(profile)
    return profile


class StepClock:
    """Collects the steps of this process's model by global hooks of PyTorch. file: where the profile goes."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._numbers: dict[Any, int] = {}  # modules; they live as long as the process
        self._elements: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._missing: dict[int, set[int]] = {}  # module -> parameters without a gradient in this step
        self._steps: list[Step] = []
        self._step = Step()
        self._batch = 0

    def before_forward(self, module: Any, inputs: tuple[Any, ...]) -> None:
        """Notes when a module with parameters of its own begins, in a step that trains."""
        import torch

        if not self._batch:
            self._batch = next((int(x.shape[0]) for x in inputs if torch.is_tensor(x) and x.dim() > 0), 0)
        if not torch.is_grad_enabled() or not module.training:
            return
        number = self._numbers.get(module)
        if number is None:
            number = self._meet(module)
        if number >= 0 and number not in self._step.forward:
            self._step.forward[number] = self._now()
            self._missing[number] = set(range(len(list(module.parameters(recurse=False)))))

    def _meet(self, module: Any) -> int:
        """Numbers a module and watches its own parameters; -1: it has none to train, or only some others have."""
        own = list(module.parameters(recurse=False))
        wanted = [(at, p) for at, p in enumerate(own) if p.requires_grad]
        if not wanted or len(wanted) < len(own):
            self._numbers[module] = -1
            return -1
        number = len(self._elements)
        self._numbers[module] = number
        self._elements[number] = sum(parameter.numel() for parameter in own)
        self._names[number] = f"{number} {type(module).__name__}"
        for at, parameter in wanted:
            parameter.register_post_accumulate_grad_hook(lambda _, n=number, i=at: self._gradient(n, i))
        return number

    def _gradient(self, number: int, parameter: int) -> None:
        missing = self._missing.get(number)
        if missing is None:
            return
        missing.discard(parameter)
        if not missing:
            self._step.ready[number] = self._now()

    def after_step(self, *_: Any) -> None:
        """Ends a step; after the last one, writes the profile and ends the process."""
        if not self._step.ready:
            return  # another optimizer of the same step
        self._steps.append(self._step)
        self._step = Step()
        self._missing.clear()
        if len(self._steps) < _WARM_UP + STEPS:
            return
        profile = profile_of(self._steps[_WARM_UP:], self._elements, self._names, max(1, self._batch))
        Path(self._file).write_text(text_of(profile), encoding="utf-8")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # now: what training does when it is interrupted is not ours to start

    @staticmethod
    def _now() -> float:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def start_clock(file: str) -> None:
    """Hooks a StepClock into this process's PyTorch. file: where the profile goes."""
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    clock = StepClock(file)
    register_module_forward_pre_hook(clock.before_forward)
    register_optimizer_step_post_hook(clock.after_step)
