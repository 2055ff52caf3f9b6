"""SGD that the store's servers apply: gradients are pushed, weights come back. --update-on-kvstore, and dist_async."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from training.flags import compression


class StoreSgd:
    """Stands where the loop has an optimizer. Weights are those of the store, the first ones rank 0's.

    Gradients count 1 / num_workers each, so that a push from every worker moves a weight as far as one step on their
    mean. The learning rate is the servers', and constant: all workers would have to meet to change it.
    """

    momentum_correction = overlap_step = False

    def __init__(self, args: argparse.Namespace, model: torch.nn.Module, store: Any) -> None:
        """Raises: ValueError: flags that need the optimizer in the worker."""
        asked = {
            f"--lr-schedule {args.lr_schedule}": args.lr_schedule != "constant",
            "--overlap-step": bool(args.overlap_step),
            "--momentum-correction on": args.momentum_correction == "on",
            "--optimizer adamw": args.optimizer == "adamw",
            f"--warmup-steps {args.warmup_steps}": args.warmup_steps > 1,
        }
        if refused := [flag for flag, is_asked in asked.items() if is_asked]:
            raise ValueError(
                f"train: {refused[0]} needs the optimizer in the worker, and that of {args.kv_store} is on its "
                "servers: give --lr-schedule constant, and leave the other flags out"
            )
        self.param_groups: list[dict[str, Any]] = []  # of which a schedule could change the learning rate
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._store = store
        self._names, self._parameters = [name for name, _ in named], [p for _, p in named]
        store.set_gradient_compression(compression(args))
        store.init(self._names, self._parameters)
        store.set_optimizer(
            "sgd",
            learning_rate=args.lr,
            momentum=args.momentum,
            wd=args.wd,
            nesterov=float(args.optimizer == "nag" and args.momentum > 0),
            rescale_grad=1 / store.num_workers,
        )

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Pushes what backward() left, front layers first, and waits for the weights."""
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters]
        self._store.pushpull(self._names, gradients, out=self._parameters)

    @torch.no_grad()
    def refresh(self) -> None:
        """Takes the weights as they are now, after what others have pushed since this worker's last step."""
        self._store.pull(self._names, out=self._parameters)

    def synchronize(self) -> None:
        """step() has waited."""
