"""Data-parallel training in one process: every worker's real gradient, one after the other, and the real codecs.

A step is what the stores make of it, without sockets: each worker's vector, in the order of memory, is encoded with its
residual, payloads are summed in rank order and answered as a server does, and SGD steps on the mean that comes back.
Parameters of one dimension are not compressed, and 2bit with threshold auto sends momentum, as in the training scripts.

PowerSGD needs no workers: it is linear in what the workers have, gradients and errors, so one that has their mean gets
what they all would (Vogels et al. 2019, section 3), up to rounding.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fashion_mnist"))

from train import add_flags, make_task
from training.flags import learning_rate, parse_arguments
from training.order import batches
from training.progress import Progress
from training.task import Task

WORKERS = 4
BATCH_SIZE = 16
Floats = NDArray[np.float32]
Observer = Callable[[int, int, Sequence[Floats], Floats], None]
"""Is told of a step, of a tensor by its number, what each worker gave of it, and the mean that came back."""


@dataclass(frozen=True)
class Setting:
    """What is trained: LeNet on the first `limit` images. lr_factor: times the training script's learning rate."""

    arm: str
    seed: int
    limit: int
    num_epochs: int
    lr_factor: float = 1.0

    def arguments(self) -> argparse.Namespace:
        """The training script's flags, with its defaults."""
        flags = f"--network lenet --batch-size {BATCH_SIZE} --seed {self.seed}"
        sizes = f"--limit {self.limit} --num-epochs {self.num_epochs}"
        given = parse_arguments(None, ["lenet"], [*flags.split(), *sizes.split()], add_flags)
        given.lr *= self.lr_factor
        return given


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
    """Loads the images; the same for all arms and seeds of one limit."""
    return make_task(setting.arguments(), Progress(None))


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
    sgd = _sgd(args, parameters)
    momenta = (
        [WorkerMomentum(_sgd(args, parameters)) for _ in range(WORKERS)] if averager.takes_momentum else []
    )
    given = [[np.zeros(p.numel(), np.float32) for p in parameters] for _ in range(WORKERS)]
    steps_per_epoch = task.examples // (WORKERS * BATCH_SIZE)
    for step, picks in enumerate(_picks(task, setting)):
        for group in sgd.param_groups:
            group["lr"] = learning_rate(args, step, steps_per_epoch)
        for worker, pick in enumerate(picks):
            sgd.zero_grad()
            task.loss(model, pick).backward()
            _take(parameters, given[worker], momenta[worker] if momenta else None)
        means = averager.means(given, step)
        for parameter, mean in zip(parameters, means, strict=True):
            parameter.grad = _shaped(mean, parameter)
        if observe is not None:
            for index, mean in enumerate(means):
                observe(step, index, [own[index] for own in given], mean)
        _step(sgd, takes_momentum=averager.takes_momentum)
    return model


def _picks(task: Task, setting: Setting) -> Any:
    """Yields what the workers train on in each step."""
    for epoch in range(setting.num_epochs):
        yield from zip(
            *(
                batches(task.examples, epoch, setting.seed, rank, WORKERS, BATCH_SIZE)
                for rank in range(WORKERS)
            ),
            strict=True,
        )


def _sgd(args: argparse.Namespace, parameters: Sequence[torch.Tensor]) -> torch.optim.SGD:
    return torch.optim.SGD(
        parameters, lr=args.lr, momentum=args.momentum, weight_decay=args.wd, nesterov=args.optimizer == "nag"
    )


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
