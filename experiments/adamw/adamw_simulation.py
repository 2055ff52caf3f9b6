"""Data-parallel training with AdamW in one process: every worker's real gradient, one after the other.

A step is what DDP and its hook make of it, without sockets: each worker's gradient of each tensor is encoded with its
residual, payloads are summed and answered as a server does, and AdamW steps on the mean that comes back. Tensors of
one dimension are not compressed. AdamW is torch's, written out in NumPy, so that its two moments can be given
different gradients (`tests/experiments/adamw_test.py` compares the weights with torch's).

The learning rate rises over 20 steps and falls as a cosine.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from averagers import Averager, OfCodec, OfLevels, OfPowerSgd, Turns
from numpy.typing import NDArray
from quantizers import Levels
from recipes import Recipe
from tasks import Task
from torch import nn
from training.order import batches

Floats = NDArray[np.float32]
Observer = Callable[[int, int, Floats, Floats], None]
"""Is given a step, a tensor's number, the workers' gradients (workers, elements), and the mean that came back."""

WORKERS = 2
_RISE = 20  # steps
_BETA2, _EPSILON, _DECAY = 0.999, 1e-8, 0.01
_CURVE = 40  # steps in a point of the curve
# So begin the names of tensors that are no hidden layer's.
_OUTER = ("character.", "place", "patches.", "logits.")


@dataclass(frozen=True)
class Trained:
    """How a run went.

    Attributes:
        loss, accuracy: of the task's score, after the last step.
        curve: training loss, the mean of each 40 steps.
        bits: per element of the compressed tensors and step, sent and received by one worker.
    """

    loss: float
    accuracy: float
    curve: list[float]
    bits: float


class Layout:
    """Where the tensors of a model lie in one vector, and which of them are compressed."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        named = list(model.named_parameters())
        excluded = recipe.dense.split("+") if recipe.dense else []
        self.shapes = [tuple(p.shape) for _, p in named]
        self.names = [name for name, _ in named]
        ends = np.cumsum([p.numel() for _, p in named])
        self.parts = [
            slice(int(end) - math.prod(shape), int(end)) for end, shape in zip(ends, self.shapes, strict=True)
        ]
        self.elements = int(ends[-1])
        self.compressed = [
            index
            for index, (name, p) in enumerate(named)
            if p.dim() > 1 and not any(part in name for part in excluded)
        ]
        self.is_compressed = np.zeros(self.elements, bool)
        for index in self.compressed:
            self.is_compressed[self.parts[index]] = True


class Exchange:
    """The workers' means, as a recipe makes them."""

    def __init__(self, recipe: Recipe, layout: Layout, workers: int) -> None:
        self._recipe, self._layout, self._workers = recipe, layout, workers
        self._dense_bits = 0.0
        self._first: dict[int, OfCodec] = {}
        if recipe.warm_up and recipe.first != "none":
            self._first = {
                index: OfCodec(recipe.first, math.prod(layout.shapes[index]), index, workers)
                for index in layout.compressed
            }
        self._power: OfPowerSgd | None = None
        self._averagers: dict[int, Averager] = {}
        if recipe.codec.startswith("powersgd:rank="):
            shapes = [layout.shapes[index] for index in layout.compressed]
            self._power = OfPowerSgd(int(recipe.codec.partition("=")[2]), shapes)
        else:
            self._averagers = {index: self._averager(index) for index in layout.compressed}
        self._scales = _Scales(recipe, layout)

    def _averager(self, index: int) -> Averager:
        elements = math.prod(self._layout.shapes[index])
        if self._recipe.turns == 1:
            return self._of_codec(elements, index)
        return Turns(
            self._recipe.turns,
            elements,
            self._workers,
            lambda size, part: self._of_codec(size, index * self._recipe.turns + part),
        )

    def _of_codec(self, elements: int, key: int) -> Averager:
        recipe = self._recipe
        if recipe.codec.startswith("levels:"):
            return OfLevels(Levels.parse(recipe.codec), elements, key, self._workers, decay=recipe.decay)
        return OfCodec(
            recipe.codec,
            elements,
            key,
            self._workers,
            decay=recipe.decay,
            feedback=recipe.feedback == "on",
            residuals=recipe.residuals,
        )

    def mean(self, given: Floats, step: int) -> Floats:
        """given: (workers, elements)."""
        scales = self._scales.now()
        if scales is not None:
            given = given / scales
        mean: Floats = given.mean(0)
        parts = [self._layout.parts[index] for index in self._layout.compressed]
        if step == self._recipe.warm_up:
            for index, before in self._first.items():
                averager = self._averagers[index]
                assert isinstance(averager, OfCodec | OfLevels)
                averager.take_over(before)
        if step < self._recipe.warm_up and self._first:
            self._by(self._first, given, mean, step)
        elif step < self._recipe.warm_up:
            self._dense_bits += 64.0 * sum(part.stop - part.start for part in parts)
        elif self._power is not None:
            self._power.means([mean[part] for part in parts])
        else:
            self._by(self._averagers, given, mean, step)
        if scales is not None:
            mean *= scales
        self._scales.learn(mean)
        return mean

    def _by(self, averagers: Mapping[int, Averager], given: Floats, mean: Floats, step: int) -> None:
        for index, averager in averagers.items():
            part = self._layout.parts[index]
            mean[part] = averager.mean([np.ascontiguousarray(row[part]) for row in given], step)

    def bits(self, steps: int) -> float:
        """Bits per compressed element and step; NaN where nothing counts them."""
        if self._power is not None:
            return math.nan
        elements = max(1, int(self._layout.is_compressed.sum()))
        averagers = [*self._averagers.values(), *self._first.values()]
        return (self._dense_bits + sum(each.bits for each in averagers)) / elements / steps


class _Scales:
    """What gradients are divided by before the codec, relative to the tensor: learned from means that came back, so all
    workers know it.
    """

    def __init__(self, recipe: Recipe, layout: Layout) -> None:
        self._recipe, self._layout = recipe, layout
        self._squares = np.zeros(layout.elements, np.float32)
        self._steps = 0

    def learn(self, mean: Floats) -> None:
        if self._recipe.whiten != "off":
            self._squares += (1 - _BETA2) * (mean * mean - self._squares)
            self._steps += 1

    def now(self) -> Floats | None:
        if self._recipe.whiten == "off" or self._steps == 0:
            return None
        scales = np.ones(self._layout.elements, np.float32)
        for index in self._layout.compressed:
            part, shape = self._layout.parts[index], self._layout.shapes[index]
            squares = self._squares[part] / (1 - _BETA2**self._steps)
            floor = self._recipe.floor**2 * squares.mean()
            mean = squares.mean() + floor + 1e-24
            if self._recipe.whiten == "elements":
                scales[part] = np.sqrt((squares + floor) / mean + 1e-12)
                continue
            matrix = squares.reshape(shape[0], -1)
            rows, columns = matrix.mean(1, keepdims=True) + floor, matrix.mean(0, keepdims=True) + floor
            scales[part] = np.sqrt((rows / mean) * (columns / mean) + 1e-12).reshape(-1)
        return scales


class Adam:
    """torch.optim.AdamW on one vector.

    Source: Loshchilov and Hutter 2019, "Decoupled weight decay regularization", algorithm 2.
    """

    def __init__(self, recipe: Recipe, layout: Layout, workers: int) -> None:
        self._recipe, self._layout, self._workers = recipe, layout, workers
        self._m = np.zeros(layout.elements, np.float32)
        self._v = np.zeros(layout.elements, np.float32)
        self._steps = 0

    def step(self, weights: Floats, mean: Floats, gradients: Floats, lr: float) -> None:
        """Changes weights. gradients: the workers' own, (workers, elements)."""
        self._steps += 1
        recipe, exact = self._recipe, gradients.mean(0)
        beta1 = recipe.momentum or recipe.beta1
        if recipe.momentum and recipe.m == "mean":
            self._m[:] = mean
        else:
            self._m += (1 - beta1) * ((exact if recipe.m == "exact" else mean) - self._m)
        self._v += (1 - _BETA2) * (self._squares(mean, exact, gradients, beta1) - self._v)
        root = np.sqrt(self._v / (1 - _BETA2**self._steps)) + np.float32(_EPSILON)
        weights *= np.float32(1 - lr * _DECAY)
        weights -= np.float32(lr / (1 - beta1**self._steps)) * self._m / root

    def _squares(self, mean: Floats, exact: Floats, gradients: Floats, beta1: float) -> Floats:
        kind = self._recipe.v
        if kind == "mean":
            return mean * mean
        squares: Floats = exact * exact
        if kind == "momentum":
            of_m = mean * mean * np.float32((1 + beta1) / (1 - beta1))
        elif kind.startswith("local"):
            of_m = (gradients * gradients).mean(0) / np.float32(self._workers if kind == "local/N" else 1)
        else:
            return squares
        return np.where(self._layout.is_compressed, of_m, squares)


class Muon:
    """torch.optim.Muon on the matrices of hidden layers.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; step length: Liu et al. 2025,
    "Muon is scalable for LLM training" (2502.16982), section 2.2.
    """

    def __init__(self, layout: Layout) -> None:
        hidden = [index for index in layout.compressed if not layout.names[index].startswith(_OUTER)]
        self._parts = [layout.parts[index] for index in hidden]
        self._matrices = [nn.Parameter(torch.zeros(layout.shapes[index])) for index in hidden]
        self._optimizer = torch.optim.Muon(
            self._matrices, weight_decay=_DECAY, adjust_lr_fn="match_rms_adamw"
        )

    def step(self, before: Floats, weights: Floats, mean: Floats, lr: float) -> None:
        """Writes the hidden matrices of weights, which is what AdamW has made of the weights before."""
        for part, matrix in zip(self._parts, self._matrices, strict=True):
            matrix.data.view(-1).copy_(torch.from_numpy(before[part]))
            matrix.grad = torch.from_numpy(mean[part].copy()).view(matrix.shape)
        self._optimizer.param_groups[0]["lr"] = lr
        self._optimizer.step()
        for part, matrix in zip(self._parts, self._matrices, strict=True):
            weights[part] = matrix.detach().view(-1).numpy()


@contextlib.contextmanager
def _flushed_denormals() -> Iterator[None]:
    """Second moments of elements without a gradient would become denormal, and slow."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@_flushed_denormals()
def train(
    recipe: Recipe,
    seed: int,
    task: Task,
    *,
    steps: int | None = None,
    workers: int = WORKERS,
    observe: Observer | None = None,
) -> Trained:
    """Trains on one thread."""
    steps = steps or round(recipe.steps * task.steps)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = task.network()
    layout = Layout(model, recipe)
    exchange, adam = Exchange(recipe, layout, workers), Adam(recipe, layout, workers)
    muon = Muon(layout) if recipe.optimizer == "muon" else None
    parameters = list(model.parameters())
    weights = torch.nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
    gradients = np.zeros((workers, layout.elements), np.float32)
    momenta = np.zeros_like(gradients)
    losses = []
    for step, picks in zip(range(steps), _picks(task, seed, workers), strict=False):
        loss = 0.0
        for worker, pick in enumerate(picks):
            loss += _gradient(model, parameters, task, pick, gradients[worker]) / workers
        losses.append(loss)
        given = gradients
        if recipe.momentum:
            momenta += (1 - recipe.momentum) * (gradients - momenta)
            given = momenta
        mean = exchange.mean(given, step)
        if observe is not None:
            for index in layout.compressed:
                part = layout.parts[index]
                observe(step, index, given[:, part], mean[part])
        lr = recipe.lr * _learning_rate(task, step, steps)
        before = weights.copy() if muon else weights
        adam.step(weights, mean, gradients, lr)
        if muon:
            muon.step(before, weights, mean, lr)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(weights), parameters)
    final, accuracy = task.score(model)
    curve = [float(np.mean(losses[begin : begin + _CURVE])) for begin in range(0, steps, _CURVE)]
    return Trained(final, accuracy, curve, exchange.bits(steps))


def _learning_rate(task: Task, step: int, steps: int) -> float:
    return task.lr * min(1.0, (step + 1) / _RISE) * (1 + math.cos(math.pi * step / steps)) / 2


def _picks(task: Task, seed: int, workers: int) -> Iterator[Sequence[torch.Tensor]]:
    """Yields what the workers train on in each step."""
    epoch = 0
    while True:
        of_workers = (
            batches(task.examples, epoch, seed, rank, workers, task.batch_size) for rank in range(workers)
        )
        yield from zip(*of_workers, strict=True)
        epoch += 1


def _gradient(
    model: nn.Module, parameters: Sequence[nn.Parameter], task: Task, pick: torch.Tensor, out: Floats
) -> float:
    """Writes a worker's gradient to out, and returns its loss."""
    model.zero_grad()
    loss = task.loss(model, pick)
    loss.backward()  # type: ignore[no-untyped-call]
    flat = [torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1) for p in parameters]
    torch.cat(flat, out=torch.from_numpy(out))
    return float(loss.detach())
