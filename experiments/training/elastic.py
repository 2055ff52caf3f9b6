"""The same loop where training goes on without workers that die, and takes in new ones: --on-failure continue."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import gradwire as gw
import torch

from training.flags import learning_rate
from training.loop import make_optimizer, updates_on_store, weights_sha256
from training.progress import Progress
from training.task import Task

_TOLD_EVERY = 0.05  # of the training


def _require_possible(args: argparse.Namespace, store: Any) -> None:
    """Raises ValueError for flags of loops that do not go on."""
    asked = {
        "--ddp-hook": args.ddp_hook is not None,
        "--sync-every": args.sync_every is not None,
        "--warmup-steps": args.warmup_steps > 1,
        "--update-on-kvstore": updates_on_store(args, store),
        "--slow-worker": args.slow_worker is not None,
    }
    if refused := [flag for flag, is_asked in asked.items() if is_asked]:
        raise ValueError(
            f"train: --on-failure continue was given with {refused[0]}; leave one of the two out"
        )


def _score(task: Task, model: torch.nn.Module, store: Any) -> float:
    """Rank 0's score of the model, for all: who is rank 0 later has it too."""
    own = task.score(model) if store.rank == 0 else None
    return float(json.loads(store.engine.all_gather("score", json.dumps(own).encode())[0]))


def rate(args: argparse.Namespace, epochs: float, workers: float) -> float:
    """Returns the learning rate after so many epochs, whole or in part, with so many times the workers that began.

    Source: linear scaling, Goyal et al., Accurate, Large Minibatch SGD, 2017, 2.1.
    """
    return learning_rate(args, epochs, 1) * (workers if args.scale_lr else 1)


def train(args: argparse.Namespace, store: Any, task: Task, progress: Progress) -> tuple[dict[str, Any], Any]:
    """Trains as the flags say. An epoch is every example once, whoever takes it; the learning rate goes by examples.

    Returns: the record, and the store that the job has at the end.
    """
    _require_possible(args, store)
    print(f"worker {store.rank} is process {os.getpid()}, in generation {store.generation}", flush=True)
    torch.manual_seed(args.seed)
    model = task.model().to(task.device)
    state = gw.elastic.TorchState(
        model,
        make_optimizer(args, model, store),
        store,
        sampler=gw.elastic.Sampler(task.examples, seed=args.seed),
        step=0,
        scores=[],
        generations=[],  # of each: number of workers, and the share of the training at which it began
    )
    began = time.perf_counter()

    def done() -> float:
        return float((state.sampler.epoch + state.sampler.taken / task.examples) / args.num_epochs)

    def epoch() -> None:
        told = done()
        for pick in torch.tensor(list(state.sampler)).split(args.batch_size):
            workers = state.store.num_workers / state.generations[0][0]
            for group in state.optimizer.param_groups:
                group["lr"] = rate(args, done() * args.num_epochs, workers)
            state.optimizer.zero_grad()
            task.loss(model, pick).backward()
            state.optimizer.step()
            state.sampler.record(len(pick))
            state.step += 1
            state.commit()
            if state.store.rank == 0 and done() >= told + _TOLD_EVERY:
                told = done()
                print(f"{told:.0%} of the training with {state.store.num_workers} workers", flush=True)

    @gw.elastic.run
    def epochs(state: Any) -> None:
        state.generations = [*state.generations, [state.store.num_workers, round(done(), 4)]]
        while state.sampler.epoch < args.num_epochs:
            epoch()
            state.optimizer.synchronize()
            state.scores = [*state.scores, _score(task, model, state.store)]
            state.sampler.set_epoch(state.sampler.epoch + 1)
            state.commit()
            if state.store.rank == 0:
                print(
                    f"epoch {state.sampler.epoch:2d}/{args.num_epochs}  {task.metric} {state.scores[-1]:.4f}",
                    flush=True,
                )

    epochs(state)
    seconds = time.perf_counter() - began
    record = {
        f"{task.metric}_per_epoch": state.scores,
        task.metric: state.scores[-1],
        "images_per_second": args.num_epochs * task.examples / seconds,
        "steps": state.step,
        "generations": state.generations,
        "weights_sha256": weights_sha256(model),
        "dataset": task.dataset,
        "workers": state.store.num_workers,
        "compression": str(state.store.compression),
        "arguments": {name: value for name, value in vars(args).items() if name != "json"},
    }
    return record, state.store
