"""The training loop that the scripts share: data-parallel SGD or AdamW over any gradwire store."""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.result
import gradwire.torch
import torch
from gradwire.settings import definitions
from gradwire.stores import backend, connect
from gradwire.stores.connect import applies_at_once

from training.flags import compression, learning_rate
from training.order import batches
from training.progress import Meter, Progress, socket_bytes, usual_bytes
from training.slow_worker import Slowness
from training.store_sgd import StoreSgd
from training.task import Task


def weights_sha256(model: torch.nn.Module) -> str:
    """Returns a digest of every name and value, the same exactly when all weights are the same."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def make_sgd(args: argparse.Namespace, model: torch.nn.Module) -> torch.optim.SGD:
    """Makes the SGD that the flags ask for."""
    return torch.optim.SGD(
        model.parameters(),
        lr=args.lr,
        momentum=args.momentum,
        weight_decay=args.wd,
        nesterov=args.optimizer == "nag" and args.momentum > 0,
    )


def make_inner(args: argparse.Namespace, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Makes the optimizer that the flags ask for, as a worker alone would have it."""
    if args.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.wd)
    return make_sgd(args, model)


def make_outer(args: argparse.Namespace, weights: list[torch.Tensor]) -> torch.optim.SGD:
    """Makes the outer optimizer that the flags ask for."""
    momentum = args.outer_momentum
    return torch.optim.SGD(weights, lr=args.outer_lr, momentum=momentum, nesterov=momentum > 0)


def make_optimizer(args: argparse.Namespace, model: torch.nn.Module, store: Any) -> Any:
    """Wraps the optimizer that the flags ask for."""
    if args.sync_every is not None:
        return gw.torch.LocalStepOptimizer(
            make_inner(args, model),
            named_parameters=model.named_parameters(),
            compression=compression(args),
            store=store,
            sync_every=args.sync_every,
            outer=functools.partial(make_outer, args),
            fragments=args.sync_fragments,
            merge_after=args.sync_merge_after,
        )
    return gw.torch.DistributedOptimizer(
        make_inner(args, model),
        named_parameters=model.named_parameters(),
        compression=compression(args),
        store=store,
        momentum_correction={"auto": "auto", "on": True, "off": False}[args.momentum_correction],
        overlap_step=args.overlap_step,
    )


def updates_on_store(args: argparse.Namespace, store: Any) -> bool:
    """Tells whether the store's servers have the optimizer."""
    if args.update_on_kvstore is None:
        return applies_at_once(store.type)
    return bool(args.update_on_kvstore)


def slowness_of(args: argparse.Namespace, model: torch.nn.Module, store: Any) -> Slowness:
    """Makes this worker as slow as the flags say.

    Raises: ValueError: they name no worker.
    """
    slow = args.slow_worker
    if slow is not None and slow.rank >= store.num_workers:
        raise ValueError(
            f"train: --slow-worker {slow.rank}:{slow.factor:g} names no worker of this job; expected 0 to "
            f"{store.num_workers - 1}"
        )
    return Slowness(model, slow.factor if slow is not None and slow.rank == store.rank else 1)


def finish_epoch(args: argparse.Namespace, optimizer: Any, *, is_last: bool) -> None:
    """Waits for what is under way; with local steps ends rounds only where no other step follows."""
    if args.ddp_hook is None and (args.sync_every is None or is_last):
        optimizer.synchronize()


def scored_weights(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """Has the model be what is scored: with local steps, what all workers share."""
    shared: Any = getattr(optimizer, "shared_weights", contextlib.nullcontext)
    return shared()  # type: ignore[no-any-return]


def train(args: argparse.Namespace, store: Any, task: Task, progress: Progress) -> dict[str, Any]:
    """Trains as the flags say and returns the record; on ranks other than 0 without scores."""
    torch.manual_seed(args.seed)
    model = task.model().to(task.device)
    gw.torch.broadcast_parameters(model.state_dict(), store=store)
    steps_per_epoch = task.examples // (store.num_workers * args.batch_size)
    if steps_per_epoch == 0:
        raise ValueError(
            f"train: {task.examples} {task.unit} do not fill one step of {store.num_workers} x "
            f"{args.batch_size}; give a larger --limit or a smaller --batch-size"
        )
    on_store = args.ddp_hook is None and updates_on_store(args, store)
    runs_free = args.ddp_hook is None and applies_at_once(store.type)
    if args.ddp_hook is None:
        make = StoreSgd if on_store else make_optimizer
        network, optimizer, count = model, make(args, model, store), socket_bytes(store)
    else:
        from training import ddp  # what no other run needs

        interface = ddp.join(store)
        network = ddp.wrap(model, args.ddp_hook, steps_per_epoch * args.num_epochs)
        optimizer, count = make_inner(args, model), ddp.link_bytes(interface)
    typical = usual_bytes if args.sync_every is None else statistics.fmean
    meter, seconds, step = Meter(count, typical), 0.0, 0
    slowness, start = slowness_of(args, model, store), time.perf_counter()
    scores: list[float] = []
    record: dict[str, Any] = {"training_loss_per_epoch": [], "seconds_per_epoch": []}
    for epoch in range(args.num_epochs):
        began, losses = time.perf_counter(), []
        for pick in batches(task.examples, epoch, args.seed, store.rank, store.num_workers, args.batch_size):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(args, step, steps_per_epoch)
            optimizer.zero_grad()
            slowness.begin_step()
            loss = task.loss(network, pick)
            loss.backward()
            slowness.end_backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            meter.step()
            step += 1
            progress.move(f"epoch {epoch + 1}/{args.num_epochs}  step {step}  loss {losses[-1]:.3f}")
            gradwire.result.progress(step / (steps_per_epoch * args.num_epochs))
        finish_epoch(args, optimizer, is_last=epoch + 1 == args.num_epochs)
        if not runs_free:
            store.barrier()  # also with local steps, which need not wait for each other here
        meter.end_epoch()
        now = time.perf_counter()  # where nobody waits, others train on while rank 0 evaluates
        seconds = now - start if runs_free else seconds + now - began
        if store.rank == 0:
            with scored_weights(optimizer):
                scores.append(task.score(model))
            record["training_loss_per_epoch"].append(statistics.fmean(losses))
            record["seconds_per_epoch"].append(seconds)
            tell_score(task, scores[-1], (epoch + 1) / args.num_epochs)
            progress.say(
                f"epoch {epoch + 1:2d}/{args.num_epochs}  {task.metric} {scores[-1]:.4f}  "
                f"training loss {record['training_loss_per_epoch'][-1]:.4f}  "
                f"{step * args.batch_size * store.num_workers / seconds:,.0f} {task.unit}/s{meter.text()}"
            )
        if not runs_free:
            store.barrier()  # nobody trains on while rank 0 evaluates, which is not timed
    final = scores[-1] if scores else None
    if runs_free:
        store.barrier()
        seconds = time.perf_counter() - start  # of the last worker
        optimizer.refresh()
        final = task.score(model) if store.rank == 0 else None
        record["staleness_per_worker"] = staleness_per_worker(store)
    return record | {
        f"{task.metric}_per_epoch": scores,
        task.metric: final,
        "images_per_second": step * args.batch_size * store.num_workers / seconds,
        "bytes_per_step": meter.typical(),
        "bytes_total": meter.total(),
        "codec_seconds": store.engine.codec_seconds() if args.ddp_hook is None else None,
        "steps": step,
        "weights_sha256": weights_sha256(model),
        "dataset": task.dataset,
        "workers": store.num_workers,
        "compression": str(store.compression) if args.ddp_hook is None else f"DDP's hook {args.ddp_hook}",
        "decisions": store.decisions if args.ddp_hook is None else [],
        "momentum_correction": getattr(optimizer, "momentum_correction", False),
        "overlap_step": getattr(optimizer, "overlap_step", False),
        "update_on_kvstore": on_store,
        "sync_every": args.sync_every,
        "arguments": {name: value for name, value in vars(args).items() if name != "json"},
    }


def tell_score(task: Task, score: float, done: float) -> None:
    """Tells `gradwire ab` what the model scores at this share of the training."""
    is_accuracy = task.metric == "accuracy"
    gradwire.result.progress(
        done, accuracy=score if is_accuracy else None, loss=None if is_accuracy else score
    )


def staleness_per_worker(store: Any) -> list[dict[str, int]]:
    """Returns every worker's counts of kv.stats()["staleness"], by rank."""
    own = json.dumps(store.stats()["staleness"]).encode()
    return [json.loads(counts) for counts in store.engine.all_gather("staleness", own)]


def write_record(record: dict[str, Any], args: argparse.Namespace) -> None:
    """Writes the record where --json and `gradwire ab` want it."""
    text = json.dumps(record, indent=2)
    if args.json == "-":
        print(text)
    elif args.json:
        Path(args.json).write_text(text + "\n")
    gradwire.result.write(**record)


def run(args: argparse.Namespace, make_task: Callable[[argparse.Namespace, Progress], Task]) -> None:
    """Joins the job, trains, and lets rank 0 report."""
    if args.ddp_hook is not None and (arm := definitions.read().compression) is not None:
        raise ValueError(
            f"train: GRADWIRE_COMPRESSION={arm} is set with --ddp-hook {args.ddp_hook}, which has no codec of "
            "gradwire's: unset one of the two"
        )
    if args.ddp_hook is not None and args.overlap_step is None and definitions.read().overlap_step == "on":
        raise ValueError(
            f"train: GRADWIRE_OVERLAP_STEP=on is set with --ddp-hook {args.ddp_hook}, which waits for all sums: unset "
            "one of the two, or give --no-overlap-step"
        )
    if args.kv_store.lower() in backend.names():
        raise ValueError(
            f"train: --kv-store {args.kv_store} is a store of another maker, which has no engine whose bytes are "
            f"counted; expected one of {', '.join(connect.names())}"
        )
    store = gw.kv.create(args.kv_store, on_failure=args.on_failure)
    torch.set_num_threads(
        args.threads or int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    )
    progress = Progress(None if store.rank else sys.stderr if args.json == "-" else sys.stdout)
    task = make_task(args, progress)
    if store.goes_on:
        from training import elastic  # what no other run needs

        record, store = elastic.train(args, store, task, progress)
        progress = Progress(None if store.rank else sys.stderr if args.json == "-" else sys.stdout)
    else:
        record = train(args, store, task, progress)
    store.barrier()
    if store.rank == 0:
        write_record(record, args)
        progress.say(f"{task.metric} {record[task.metric]:.4f} after {record['steps']} steps")
    store.close()
    if args.ddp_hook is not None:
        from training import ddp

        ddp.leave()
