"""Data-parallel training in one process: every worker's real gradient, one after the other, and the real codecs.

What is trained, and with which flags, are the training scripts'. A step is what the stores make of it, without sockets:
each worker's vector, in the order of memory, is encoded with its residual, payloads are summed in rank order and
answered as a server does, and SGD steps on the mean that comes back. Parameters of one dimension are not compressed,
and 2bit with threshold auto sends momentum, as in the training scripts.

Each worker has its own running means and deviations of a batch norm, which no job averages either; worker 0's are the
model's in the end.

PowerSGD needs no workers: it is linear in what the workers have, gradients and errors, so one that has their mean gets
what they all would (Vogels et al. 2019, section 3), up to rounding.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import gradwire
import numpy as np
import torch
from arms import power_sgd_rank
from gradwire import compress
from gradwire.power_sgd import PowerSGD
from gradwire.torch.momentum import WorkerMomentum
from gradwire.torch.session import parse_compression
from numpy.typing import NDArray
from runs import EXPERIMENTS, TASKS, WORKERS

sys.path.insert(0, str(EXPERIMENTS))

from training.flags import learning_rate
from training.loop import make_sgd
from training.order import batches
from training.progress import Progress
from training.task import Task

Floats = NDArray[np.float32]
Observer = Callable[[int, int, Sequence[Floats], Floats], None]
"""Is told of a step, of a tensor by its number, what each worker gave of it, and the mean that came back."""


@dataclass(frozen=True)
class Setting:
    """What is trained.

    Attributes:
        limit, num_epochs: the first examples, and how often; None: as the task's flags say.
        lr_factor: times the training script's learning rate.
        task: one of TASKS.
    """

    arm: str
    seed: int
    limit: int | None = None
    num_epochs: int | None = None
    lr_factor: float = 1.0
    task: str = "lenet"

    def arguments(self) -> argparse.Namespace:
        """The training script's flags, with its defaults."""
        sizes = {"--limit": self.limit, "--num-epochs": self.num_epochs, "--seed": self.seed}
        own = [part for flag, size in sizes.items() if size is not None for part in (flag, str(size))]
        given: argparse.Namespace = _script(self.task).arguments([*TASKS[self.task].flags.split(), *own])
        given.lr *= self.lr_factor
        return given


def _script(task: str) -> ModuleType:
    """Imports a task's training script. They all have the same name, as have modules beside them: a process has one.

    Raises:
        ValueError: this process has another one already.
    """
    file = EXPERIMENTS / TASKS[task].script
    if "train" not in sys.modules:
        sys.path.insert(0, str(file.parent))
    module = importlib.import_module("train")
    if module.__file__ != str(file):
        raise ValueError(f"codec_accuracy: {module.__file__} is imported: simulate {task} in another process")
    return module


class Averager(Protocol):
    """Makes the workers' means of all tensors in one step, as an arm does.

    Attributes:
        takes_momentum: whether workers give their momentum in place of the gradient.
    """

    takes_momentum: bool

    def means(self, given: Sequence[Sequence[Floats]], step: int) -> list[Floats]:
        """given: of each worker, each tensor, flat. Returns each tensor's mean, flat."""
        ...


class _CodecTensor:
    """What a job keeps of one tensor: the workers' residuals, the server's, and the scales that all have agreed on."""

    def __init__(self, compression: compress.Compression, elements: int, key: int) -> None:
        self._codec = compress.make(compression.spec)
        self._reply = compression.reply
        self._key = key
        lossy = self._codec.lossy
        self._residuals = [np.zeros(elements, np.float32) if lossy else None for _ in range(WORKERS)]
        answers_in_itself = compression.reply == self._codec.name
        self._reply_residual = np.zeros(elements, np.float32) if lossy and answers_in_itself else None
        self._scales: Any = None

    def mean(self, given: Sequence[Floats], step: int) -> Floats:
        codec, elements = self._codec, given[0].size
        payloads = [
            codec.encode(own, residual=kept, scales=self._scales, key=self._key, rank=rank, step=step)
            for rank, (own, kept) in enumerate(zip(given, self._residuals, strict=True))
        ]
        reply = codec.encode_reply(payloads, elements, reply=self._reply, residual=self._reply_residual)
        total, self._scales = codec.decode_reply(reply, WORKERS, elements, reply=self._reply)
        total *= np.float32(1 / WORKERS)
        return total


class CodecAverager:
    """Of a codec."""

    def __init__(self, arm: str, parameters: Sequence[torch.Tensor]) -> None:
        chosen, dense = parse_compression(arm), compress.Compression("none", "none")
        self.takes_momentum = "threshold=auto" in chosen.spec
        self._tensors = [
            _CodecTensor(chosen if p.dim() > 1 else dense, p.numel(), key) for key, p in enumerate(parameters)
        ]

    def means(self, given: Sequence[Sequence[Floats]], step: int) -> list[Floats]:
        return [
            tensor.mean([own[index] for own in given], step) for index, tensor in enumerate(self._tensors)
        ]


class PowerSgdAverager:
    """Of PowerSGD, over a store of one worker."""

    takes_momentum = False

    def __init__(self, rank: int, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._power = PowerSGD(gradwire.kv.create("local"), [tuple(p.shape) for p in parameters], rank=rank)

    def means(self, given: Sequence[Sequence[Floats]], step: int) -> list[Floats]:
        means = [_mean(vectors) for vectors in zip(*given, strict=True)]
        shaped = [_shaped(mean, p) for mean, p in zip(means, self._parameters, strict=True)]
        self._power.all_reduce(shaped)
        return means


def _mean(vectors: Sequence[Floats]) -> Floats:
    total = vectors[0].copy()
    for other in vectors[1:]:
        total += other
    total *= np.float32(1 / len(vectors))
    return total


def _shaped(run: Floats, parameter: torch.Tensor) -> torch.Tensor:
    """Sees a flat run, which is in the order of the parameter's memory, in its shape."""
    return torch.from_numpy(run).as_strided(parameter.shape, parameter.stride())


def load_task(setting: Setting) -> Task:
    """Loads the examples; the same for all arms and seeds of one limit."""
    task: Task = _script(setting.task).make_task(setting.arguments(), Progress(None))
    return task


class _Buffers:
    """What each worker's model has beside its parameters, and no worker tells another."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._live = list(model.buffers())
        self._kept = [[buffer.clone() for buffer in self._live] for _ in range(WORKERS)]

    @contextlib.contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """Has them be a worker's, and keeps what becomes of them."""
        self.show(worker)
        yield
        for kept, live in zip(self._kept[worker], self._live, strict=True):
            kept.copy_(live)

    def show(self, worker: int) -> None:
        for kept, live in zip(self._kept[worker], self._live, strict=True):
            live.copy_(kept)


def train(setting: Setting, task: Task, observe: Observer | None = None) -> torch.nn.Module:
    """Trains on one thread, and returns the model.

    Raises:
        ValueError: no such arm.
    """
    torch.set_num_threads(1)
    args = setting.arguments()
    torch.manual_seed(setting.seed)
    model = task.model()
    parameters = list(model.parameters())
    rank = power_sgd_rank(setting.arm)
    averager: Averager = (
        CodecAverager(setting.arm, parameters) if rank is None else PowerSgdAverager(rank, parameters)
    )
    sgd, buffers = make_sgd(args, model), _Buffers(model)
    momenta = (
        [WorkerMomentum(make_sgd(args, model)) for _ in range(WORKERS)] if averager.takes_momentum else []
    )
    given = [[np.zeros(p.numel(), np.float32) for p in parameters] for _ in range(WORKERS)]
    steps_per_epoch = task.examples // (WORKERS * args.batch_size)
    for step, picks in enumerate(_picks(task, args)):
        for group in sgd.param_groups:
            group["lr"] = learning_rate(args, step, steps_per_epoch)
        for worker, pick in enumerate(picks):
            sgd.zero_grad()
            with buffers.of(worker):
                task.loss(model, pick).backward()
            _take(parameters, given[worker], momenta[worker] if momenta else None)
        means = averager.means(given, step)
        for parameter, mean in zip(parameters, means, strict=True):
            parameter.grad = _shaped(mean, parameter)
        if observe is not None:
            for index, mean in enumerate(means):
                observe(step, index, [own[index] for own in given], mean)
        _step(sgd, takes_momentum=averager.takes_momentum)
    buffers.show(0)
    return model


def _picks(task: Task, args: argparse.Namespace) -> Any:
    """Yields what the workers train on in each step."""
    for epoch in range(args.num_epochs):
        of_ranks = (
            batches(task.examples, epoch, args.seed, rank, WORKERS, args.batch_size)
            for rank in range(WORKERS)
        )
        yield from zip(*of_ranks, strict=True)


@torch.no_grad()
def _take(
    parameters: Sequence[torch.Tensor], runs: Sequence[Floats], momentum: WorkerMomentum | None
) -> None:
    """Copies what a worker has to give, its gradients or its momentum, to runs."""
    for parameter, run in zip(parameters, runs, strict=True):
        slot = _shaped(run, parameter)
        if momentum is None:
            slot.copy_(parameter.grad)
        else:
            momentum.advance(parameter, parameter.grad, out=slot)


def _step(sgd: torch.optim.SGD, *, takes_momentum: bool) -> None:
    if not takes_momentum:
        sgd.step()
        return
    with WorkerMomentum(sgd).applied():
        sgd.step()
