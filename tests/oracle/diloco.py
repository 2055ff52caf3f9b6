"""DiLoCo in one process, all workers in a loop, written from the papers: no engine, no codec, no flat buffers.

Source: Douillard et al., DiLoCo, 2023 (arXiv 2311.08105), algorithm 1; Streaming DiLoCo, 2025 (arXiv 2501.18512),
algorithm 2. The update itself is torch.optim's, as SGD's and Adam's formulas are not what is in question.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


@torch.no_grad()
def outer_step(shared: nn.Module, workers: Sequence[nn.Module], names: set[str], optimizer: Any) -> None:
    """One step of the outer optimizer on the parameters of these names: the mean is summed in rank order."""
    own = [dict(worker.named_parameters()) for worker in workers]
    for name, weight in shared.named_parameters():
        weight.grad = None
        if name in names:
            total = weight - own[0][name]
            for one in own[1:]:
                total = total + (weight - one[name])
            weight.grad = total * (1.0 / len(workers))
    optimizer.step()


@torch.no_grad()
def take_in(shared: nn.Module, workers: Sequence[nn.Module], names: set[str], mixing: float) -> None:
    """Moves the workers' parameters of these names to the shared weights, but for a share that they keep."""
    weights = dict(shared.named_parameters())
    for worker in workers:
        for name, own in worker.named_parameters():
            if name in names:
                own.copy_(torch.lerp(weights[name], own, mixing) if mixing else weights[name])


def train(
    first: nn.Module,
    workers: int,
    steps: int,
    loss: Callable[[nn.Module, int, int], torch.Tensor],
    inner: Callable[[Any], Any],
    outer: Callable[[Any], Any],
    offsets: dict[int, set[str]],
    sync_every: int,
    merge_after: int = 0,
    mixing: float = 0.0,
    *,
    synchronizes: bool = False,
) -> tuple[nn.Module, list[nn.Module]]:
    """Trains; returns the shared model and every worker's own.

    The papers leave the end open. Where it synchronizes, what is under way is merged, then every fragment in which a
    step was taken since it was sent has a round of its own, and none other: an outer step needs an outer gradient.

    Args:
        loss: of a model, a rank and a step counted from 1.
        inner, outer: make an optimizer of parameters.
        offsets: names of each fragment's parameters, by the step modulo sync_every after which it is sent.
    """
    shared, models = copy.deepcopy(first), [copy.deepcopy(first) for _ in range(workers)]
    optimizers, outer_optimizer = [inner(m.parameters()) for m in models], outer(shared.parameters())
    sent: dict[int, list[tuple[set[str], list[nn.Module]]]] = {}  # what models were, by the step of the merge
    for step in range(1, steps + 1):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss(model, rank, step).backward()
            optimizer.step()
        if (names := offsets.get(step % sync_every)) is not None:
            sent.setdefault(step + merge_after, []).append((names, [copy.deepcopy(m) for m in models]))
        for names, then in sent.pop(step, []):
            outer_step(shared, then, names, outer_optimizer)
            take_in(shared, models, names, mixing)
    if synchronizes:
        for names, then in [pair for step in sorted(sent) for pair in sent[step]]:
            outer_step(shared, then, names, outer_optimizer)
            take_in(shared, models, names, mixing)
        for offset, names in offsets.items():
            if offset != steps % sync_every:
                outer_step(shared, models, names, outer_optimizer)
            take_in(shared, models, names, 0.0)
    return shared, models
