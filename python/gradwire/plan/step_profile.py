"""Profiles a training job on this machine, layer by layer: what `gradwire plan -- CMD` does before it plans.

CMD runs with a clock that PyTorch's hooks read: before each module with parameters of its own goes forward, when each
parameter's gradient is complete, and after each optimizer step. It is alone, whatever store it asks for, and its
gradients stay as they are: what communication costs is the simulator's to add. Steps are real and undisturbed but for
the hooks (on a GPU, which works behind the program's back, they wait for it, so that overlap within the GPU is lost).
After STEPS steps the profile is written, and the process ended. The first few count as warm-up and are not in it.
"""

from __future__ import annotations

import io
import itertools
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradwire.launch import step_clock
from gradwire.launch.child import Guard, LocalHost, describe_exit
from gradwire.launch.process_session import signal_session
from gradwire.plan.layer_profile import Layer, Machine, Profile, load, text_of, validate

STEPS = 30
"""That a command has to take, warm-up included."""
_WARM_UP = 3  # of STEPS
_DEADLINE = 1800.0  # seconds for all of them
_KEPT_LINES, _LAST_LINES = 200, 5  # of a command that failed
_LAST_WORDS_SECONDS = 1.0  # to read what an ended command has written


@dataclass
class Step:
    """Times of one step, in seconds of one clock. Modules are named by number, in the order of their first forward."""

    forward: dict[int, float] = field(default_factory=dict)  # module -> it begins
    ready: dict[int, float] = field(default_factory=dict)  # module -> its last gradient is complete


def of_command(command: Sequence[str], copies: int = 1) -> Profile:
    """Runs a training job here until its profile is written.

    Args:
        copies: run at once, each with its share of the cores, as `gradwire run` gives it: as many as will share a
            machine. The profile is that of the slowest, which the others wait for in every step.

    Raises:
        RuntimeError: it ended, or half an hour passed, without STEPS steps of a PyTorch optimizer; where it failed,
            with its last words.
        OSError: it cannot be started.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"profile-{copy}.json" for copy in range(copies)]
        for file in files:
            _pending(file).touch()
        threads = max(1, len(os.sched_getaffinity(0)) // copies)
        shared = {} if copies == 1 else {"OMP_NUM_THREADS": str(threads)}
        environments = [{**shared, **_of_one_rank(), **os.environ, **clock_variables(file)} for file in files]
        ended = _run(command, environments, files)
        if all(file.exists() for file in files):
            slowest = max(map(load, files), key=lambda profile: profile.compute_seconds)
            assert slowest.machine is not None  # the clock writes it
            return replace(slowest, machine=replace(slowest.machine, workers=copies))
        code, last_words = next(end for file, end in zip(files, ended, strict=True) if not file.exists())
    text = f"plan: {command[0]} {describe_exit(code)} before {STEPS} steps of a PyTorch optimizer"
    if code == 0:
        raise RuntimeError(f"{text}: give a command that trains for longer")
    raise RuntimeError(f"{text}: {last_words or 'it wrote no error'}")


def _pending(file: Path) -> Path:
    """Is there as long as the copy that writes file measures: the others go on training, or its steps were too fast."""
    return file.with_suffix(".pending")


def clock_variables(file: Path) -> dict[str, str]:
    """Returns the variables of a process that is to be profiled. file: where the profile goes."""
    return {
        "PYTHONPATH": step_clock.python_path(),
        "GRADWIRE_STEP_PROFILE": str(file),
        "GRADWIRE_COMPRESSION": "none",
    }


def _of_one_rank() -> dict[str, str]:
    """Returns the variables by which a script that calls init_process_group() makes a group of itself alone. Launchers
    set them, and a script that is profiled without one would end there."""
    # Not in the profiled process, which imports this module, too.
    from gradwire.launch.rendezvous import free_port

    here = LocalHost().address
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return {**ranks, "MASTER_ADDR": here, "MASTER_PORT": str(free_port(here))}


@dataclass(frozen=True)
class _Copy:
    """A process of the command. last: what it wrote last on stderr."""

    process: subprocess.Popen[bytes]
    pidfd: int
    reader: threading.Thread
    last: deque[str]
    file: Path


def _run(
    command: Sequence[str], environments: Sequence[Mapping[str, str]], files: Sequence[Path]
) -> list[tuple[int, str]]:
    """Runs copies of a command, each in a session of its own. What they have started ends with them.

    Returns: of each its exit code, as Popen has it, and what it said last on stderr, which is this process's.

    Raises: RuntimeError: they took too long.
    """
    guard = Guard()
    copies: list[_Copy] = []
    try:
        for env, file in zip(environments, files, strict=True):
            copies.append(_start(command, env, file, guard))
        until = time.monotonic() + _DEADLINE
        waiting = {copy.pidfd: copy for copy in copies}
        while waiting:
            ended = select.select(list(waiting), [], [], max(0.0, until - time.monotonic()))[0]
            if not ended:
                raise RuntimeError(f"plan: {command[0]} took more than {_DEADLINE:.0f} s for {STEPS} steps")
            for pidfd in ended:
                _pending(waiting.pop(pidfd).file).unlink(missing_ok=True)  # also of one that failed
    finally:
        for copy in copies:
            signal_session(copy.process.pid, signal.SIGKILL)  # before the id may be another's
            guard.forget(copy.process.pid)
            os.close(copy.pidfd)
            copy.process.wait()
        guard.close()
    for copy in copies:
        copy.reader.join(_LAST_WORDS_SECONDS)  # else what left the session still writes
    return [(copy.process.returncode, _last_words(list(copy.last))) for copy in copies]


def _start(command: Sequence[str], env: Mapping[str, str], file: Path, guard: Guard) -> _Copy:
    try:
        process = LocalHost().popen(
            command, env=env, stdout=sys.stderr, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:  # the program is there: require_program() has looked
        what = f"plan: {command[0]} cannot be started ({error.strerror})"
        raise OSError(f"{what}: correct it, or the interpreter in its first line") from None
    guard.watch(process.pid)
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    reader = threading.Thread(target=_pass_on, args=(process.stderr, last), daemon=True)
    reader.start()
    return _Copy(process, os.pidfd_open(process.pid), reader, last, file)


def _pass_on(errors: Any, last: deque[str]) -> None:
    """Copies a stream to stderr as it comes, progress bars too, and keeps its last lines."""
    with io.TextIOWrapper(errors, encoding="utf-8", errors="replace", newline="") as lines:
        for line in lines:
            sys.stderr.write(line)
            sys.stderr.flush()
            if text := line.rstrip():
                last.append(text)


def _last_words(lines: Sequence[str]) -> str:
    """The error of a Python program, whatever its modules say after it, else the last lines; all in one."""
    for place in reversed(range(len(lines))):
        before, found, _ = lines[place].partition(
            "Traceback (most recent call last):"
        )  # torch puts the rank before
        if found:
            after = [line.removeprefix(before) for line in lines[place + 1 :]]
            return next((line for line in after if not line.startswith(" ")), "")
    return "; ".join(line.strip() for line in lines[-_LAST_LINES:])


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
        raise ValueError("plan: no two steps in which every layer ran forward and backward once")
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
        raise ValueError("plan: no two consecutive steps that ran the same layers in the same order")
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
    taken = _taken(whole)
    cut = len(taken) // 10
    spread = (taken[cut], taken[-1 - cut])
    profile = Profile("measured", source, batch, batch / compute, layers, spread, steps=taken)
    validate(profile)
    return profile


def _taken(steps: Sequence[Step]) -> tuple[float, ...]:
    """Returns what steps took, from last gradient to last gradient, the quickest first."""
    return tuple(
        sorted(
            max(step.ready.values()) - max(before.ready.values())
            for before, step in itertools.pairwise(steps)
        )
    )


class StepClock:
    """Collects the steps of this process's model by global hooks of PyTorch. file: where the profile goes.

    A parameter belongs to the first module with it that goes forward; one whose module never does (the out_proj of
    torch.nn.MultiheadAttention) to the innermost module around that one which does.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._numbers: dict[Any, int] = {}  # modules; they live as long as the process; -1: none to train
        self._owned: set[Any] = set()  # parameters
        self._elements: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._steps: list[Step] = []
        self._step = Step()
        self._batch = 0
        self._is_ddp = False
        self._optimizers: dict[str, bool] = {}  # by the name of the class: whether it is like Adam
        self._is_written = False

    def before_forward(self, module: Any, inputs: tuple[Any, ...]) -> None:
        """Notes when a module with parameters of its own begins, in a step that trains."""
        import torch

        if not self._batch:
            self._batch = next((int(x.shape[0]) for x in inputs if torch.is_tensor(x) and x.dim() > 0), 0)
        if not torch.is_grad_enabled() or not module.training:
            return
        self._is_ddp |= type(module).__name__ == "DistributedDataParallel"
        if module not in self._numbers:
            self._numbers[module] = -1
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad and parameter not in self._owned:
                    self._give(parameter, module)
        number = self._numbers[module]
        if number >= 0 and number not in self._step.forward:
            self._step.forward[number] = self._now()

    def _give(self, parameter: Any, module: Any) -> None:
        """Counts a parameter to a module, and watches its gradient."""
        number = self._numbers[module]
        if number < 0:
            number = self._numbers[module] = len(self._elements)
            self._elements[number] = 0
            self._names[number] = f"{number} {type(module).__name__}"
        self._owned.add(parameter)
        self._elements[number] += parameter.numel()
        parameter.register_post_accumulate_grad_hook(lambda _: self._gradient(number))

    def _gradient(self, number: int) -> None:
        if number in self._step.forward:
            self._step.ready[number] = self._now()  # the last one counts

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Ends a step; after the last one, writes the profile. Ends the process once all copies have written theirs.

        Raises: RuntimeError: the optimizer trains parameters of no module that goes forward.
        """
        if self._is_written:
            self._end_if_last()
            return
        kind = next(base for base in type(optimizer).__mro__ if not base.__module__.startswith("gradwire."))
        self._optimizers[kind.__name__] = any("betas" in group for group in optimizer.param_groups)
        self._give_the_rest(optimizer)
        if not self._step.ready:
            return  # another optimizer of the same step
        self._steps.append(self._step)
        self._step = Step()
        if len(self._steps) < STEPS:
            return
        profile = replace(
            profile_of(self._steps[_WARM_UP:], self._elements, self._names, max(1, self._batch)),
            machine=self._machine(),
            optimizer=" and ".join(self._optimizers),
            is_like_adam=any(self._optimizers.values()),
            is_ddp=self._is_ddp,
        )
        Path(self._file).write_text(text_of(profile), encoding="utf-8")
        self._is_written = True
        _pending(Path(self._file)).unlink(missing_ok=True)
        self._end_if_last()

    def _end_if_last(self) -> None:
        """Ends the process, unless a copy beside it still measures what it is to be disturbed by."""
        if any(Path(self._file).parent.glob("*.pending")):
            return
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # now: what training does when it is interrupted is not ours to start

    def _give_the_rest(self, optimizer: Any) -> None:
        """Gives what the optimizer has trained, but no module that went forward has, to the modules around it."""
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        rest = {parameter for parameter in trained if parameter not in self._owned}
        if not rest:
            return
        inner_first = sorted(self._numbers, key=lambda module: sum(1 for _ in module.modules()))
        for module in inner_first:
            for parameter in module.parameters():
                if parameter in rest:
                    rest.discard(parameter)
                    self._give(parameter, module)
        if rest:
            shapes = ", ".join(str(tuple(parameter.shape)) for parameter in trained if parameter in rest)
            raise RuntimeError(
                f"plan: the optimizer trains {len(rest)} parameters of {sum(p.numel() for p in rest)} elements that "
                f"belong to no torch.nn.Module which goes forward (shapes {shapes}): make them parameters of a module "
                "and call that, so that their layer can be timed"
            )

    @staticmethod
    def _machine() -> Machine:
        import torch

        threads = 0 if torch.cuda.is_available() else torch.get_num_threads()
        return Machine(len(os.sched_getaffinity(0)), 1, threads)

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
