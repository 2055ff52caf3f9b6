"""Trains a network on Fashion-MNIST over any gradwire store, with MXNet's flags.

    python experiments/fashion_mnist/train.py --network mlp                      (this process alone)
    gradwire run -n 2 -s 2 python experiments/fashion_mnist/train.py \\
        --network lenet --kv-store dist_sync --gc-type 2bit                      (2 workers, 2 servers, 2-bit
        gradients)

Every worker trains on its own share of the images; the batch size is per worker. The same seed gives the same
first weights, the same order of images and, bit for bit, the same result. Rank 0 reports; with --json, or
where GRADWIRE_RESULT names a file (as `gradwire ab` does), it writes a record.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import gradwire as gw
import gradwire.result
import gradwire.settings
import gradwire.torch
import torch
import torch.nn.functional as F
from dataset import Dataset, batches, load
from networks import NETWORKS


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--network", choices=sorted(NETWORKS), default="lenet", help="what to train (default: %(default)s)")
    add(
        "--kv-store",
        default="local",
        metavar="NAME",
        help="local, device, dist_sync, ... (default: %(default)s)",
    )
    add("--gc-type", default="none", metavar="CODEC", help="none, fp16, bf16 or 2bit (default: %(default)s)")
    add(
        "--gc-threshold",
        default="auto",
        metavar="T",
        help="2bit's threshold: a number, or auto: agreed by the workers (default: %(default)s; MXNet's 0.5 "
        "is made for gradients summed over the batch, torch's are means)",
    )
    add(
        "--gc-reply",
        metavar="KIND",
        help="how servers answer: exact, fp32 or 2bit (default: exact where it exists)",
    )
    add(
        "--momentum-correction",
        choices=["auto", "on", "off"],
        default="auto",
        help="on: workers send momentum, not gradients, which loses less accuracy; auto: on for 2bit with "
        "threshold auto (default: %(default)s)",
    )
    add(
        "--num-epochs",
        type=int,
        default=10,
        metavar="N",
        help="passes over the images (default: %(default)s)",
    )
    add(
        "--batch-size",
        type=int,
        default=64,
        metavar="N",
        help="images per step and worker (default: %(default)s)",
    )
    add("--lr", type=float, default=0.02, help="learning rate at the start (default: %(default)s)")
    add(
        "--lr-schedule",
        choices=["cosine", "step", "constant"],
        help="how it falls (default: cosine; step where --lr-step-epochs is given)",
    )
    add(
        "--lr-step-epochs",
        metavar="A,B,...",
        help="epochs after which step multiplies it (default: 60%%, 85%%)",
    )
    add("--lr-factor", type=float, default=0.1, help="what step multiplies it by (default: %(default)s)")
    add("--momentum", type=float, default=0.9, help="of SGD (default: %(default)s)")
    add(
        "--optimizer",
        choices=["nag", "sgd"],
        default="nag",
        help="nag: momentum in Nesterov's form; sgd: plain momentum (default: %(default)s)",
    )
    add("--wd", type=float, default=1e-4, help="weight decay (default: %(default)s)")
    add("--seed", type=int, help="of weights and order (default: GRADWIRE_SEED, else 0)")
    add("--limit", type=int, metavar="IMAGES", help="train on the first IMAGES only, all workers together")
    add(
        "--threads",
        type=int,
        help="torch's threads (default: OMP_NUM_THREADS, which `gradwire run` sets, else all)",
    )
    add("--json", metavar="FILE", help="write rank 0's record there; - is stdout, and then nothing else is")
    args = parser.parse_args(arguments)
    for name in ("num_epochs", "batch_size", "limit", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')}: {value} was given, expected 1 or more")
    try:
        args.gc_threshold = args.gc_threshold if args.gc_threshold == "auto" else float(args.gc_threshold)
        steps = args.lr_step_epochs.split(",") if args.lr_step_epochs else ()
        args.lr_step_epochs = [int(epoch) for epoch in steps]
    except ValueError as error:
        parser.error(f"--gc-threshold takes a number or auto, --lr-step-epochs epochs as in 6,8 ({error})")
    if args.seed is None:
        args.seed = gw.settings.read().seed or 0
    args.lr_schedule = args.lr_schedule or ("step" if args.lr_step_epochs else "cosine")
    if not args.lr_step_epochs:
        args.lr_step_epochs = [round(0.6 * args.num_epochs), round(0.85 * args.num_epochs)]
    return args


def compression(args: argparse.Namespace) -> dict[str, Any]:
    """Returns what the flags ask for, as set_gradient_compression() takes it."""
    chosen: dict[str, Any] = {"type": args.gc_type}
    if args.gc_type == "2bit":
        chosen["threshold"] = args.gc_threshold
    if args.gc_reply is not None:
        chosen["reply"] = args.gc_reply
    return chosen


def learning_rate(args: argparse.Namespace, step: int, steps_per_epoch: int) -> float:
    """Returns the learning rate of a step, counted from 0 over the whole run."""
    if args.lr_schedule == "cosine":
        return args.lr * (1 + math.cos(math.pi * step / (steps_per_epoch * args.num_epochs))) / 2
    if args.lr_schedule == "step":
        return args.lr * args.lr_factor ** sum(step >= e * steps_per_epoch for e in args.lr_step_epochs)
    return args.lr


@dataclass
class Progress:
    """Rank 0's lines, one per epoch, and a line that moves where they go to a terminal."""

    stream: TextIO | None
    shown: float = 0.0

    def say(self, text: str) -> None:
        if self.stream is not None:
            print(("\r\x1b[K" if self.stream.isatty() else "") + text, file=self.stream, flush=True)

    def move(self, text: str) -> None:
        now = time.perf_counter()
        if self.stream is not None and self.stream.isatty() and now - self.shown > 0.2:
            print(f"\r\x1b[K{text}", end="", file=self.stream, flush=True)
            self.shown = now


class Meter:
    """Bytes that this worker's sockets have sent and received."""

    def __init__(self, store: Any) -> None:
        self._engine = store.engine
        self.per_step: list[int] = []
        self._before = self.total()

    def total(self) -> int:
        counters = self._engine.counters()
        return counters["bytes_sent"] + counters["bytes_received"]

    def step(self) -> None:
        now = self.total()
        self.per_step.append(now - self._before)
        self._before = now

    def median(self) -> int:
        """Returns the median step's bytes; the first round, which agrees on scales, is apart."""
        return int(statistics.median(self.per_step[1:] or self.per_step or [0]))


@torch.no_grad()
def evaluate(model: torch.nn.Module, data: Dataset) -> float:
    """Returns the fraction of test images that the model names rightly."""
    model.eval()
    hits = sum(
        int((model(images).argmax(1) == labels).sum())
        for images, labels in zip(data.test_images.split(1000), data.test_labels.split(1000), strict=True)
    )
    model.train()
    return hits / len(data.test_labels)


def weights_sha256(model: torch.nn.Module) -> str:
    """Returns a digest of every name and value, the same exactly when all weights are the same."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(args: argparse.Namespace, store: Any, data: Dataset, progress: Progress) -> dict[str, Any]:
    """Trains as the flags say and returns the record; on ranks other than 0 without accuracies."""
    torch.manual_seed(args.seed)
    model = NETWORKS[args.network]().to(memory_format=torch.channels_last)
    gw.torch.broadcast_parameters(model.state_dict(), store=store)
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(
            model.parameters(),
            lr=args.lr,
            momentum=args.momentum,
            weight_decay=args.wd,
            nesterov=args.optimizer == "nag" and args.momentum > 0,
        ),
        named_parameters=model.named_parameters(),
        compression=compression(args),
        store=store,
        momentum_correction={"auto": "auto", "on": True, "off": False}[args.momentum_correction],
    )
    images = len(data.train_labels)
    steps_per_epoch = images // (store.num_workers * args.batch_size)
    if steps_per_epoch == 0:
        raise ValueError(
            f"train: {images} images do not fill one step of {store.num_workers} x {args.batch_size}; "
            "give a larger --limit or a smaller --batch-size"
        )
    meter, seconds, step = Meter(store), 0.0, 0
    record: dict[str, Any] = {"accuracy_per_epoch": [], "loss_per_epoch": [], "seconds_per_epoch": []}
    for epoch in range(args.num_epochs):
        began, losses = time.perf_counter(), []
        for pick in batches(images, epoch, args.seed, store.rank, store.num_workers, args.batch_size):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(args, step, steps_per_epoch)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data.train_images[pick]), data.train_labels[pick])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            meter.step()
            step += 1
            progress.move(f"epoch {epoch + 1}/{args.num_epochs}  step {step}  loss {losses[-1]:.3f}")
        seconds += time.perf_counter() - began
        if store.rank == 0:
            record["accuracy_per_epoch"].append(evaluate(model, data))
            record["loss_per_epoch"].append(statistics.fmean(losses))
            record["seconds_per_epoch"].append(seconds)
            progress.say(
                f"epoch {epoch + 1:2d}/{args.num_epochs}  accuracy {record['accuracy_per_epoch'][-1]:.4f}  "
                f"loss {record['loss_per_epoch'][-1]:.4f}  "
                f"{step * args.batch_size * store.num_workers / seconds:,.0f} images/s  "
                f"{meter.median():,} bytes/step"
            )
    return record | {
        "accuracy": record["accuracy_per_epoch"][-1] if store.rank == 0 else None,
        "images_per_second": step * args.batch_size * store.num_workers / seconds,
        "bytes_per_step": meter.median(),
        "bytes_total": meter.total(),
        "codec_seconds": store.engine.codec_seconds(),
        "steps": step,
        "weights_sha256": weights_sha256(model),
        "dataset": data.name,
        "workers": store.num_workers,
        "compression": str(store.compression),
        "momentum_correction": optimizer.momentum_correction,
        "arguments": {name: value for name, value in vars(args).items() if name != "json"},
    }


def write_record(record: dict[str, Any], args: argparse.Namespace) -> None:
    """Writes the record where --json and `gradwire ab` want it."""
    text = json.dumps(record, indent=2)
    if args.json == "-":
        print(text)
    elif args.json:
        Path(args.json).write_text(text + "\n")
    gradwire.result.write(**record)


def main() -> None:
    args = parse_arguments()
    store = gw.kv.create(args.kv_store)
    torch.set_num_threads(
        args.threads or int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    )
    progress = Progress(None if store.rank else sys.stderr if args.json == "-" else sys.stdout)
    data = load(args.limit)
    if data.name != "fashion-mnist":
        progress.say(
            f"Fashion-MNIST is not installed (apt install dataset-fashion-mnist): training on {data.name}"
        )
    record = train(args, store, data, progress)
    store.barrier()
    if store.rank == 0:
        write_record(record, args)
        progress.say(f"accuracy {record['accuracy']:.4f} after {record['steps']} steps")
    store.close()


if __name__ == "__main__":
    main()
