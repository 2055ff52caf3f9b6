"""The flags of a training script: MXNet's names where MXNet has them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from typing import Any

from gradwire.settings import definitions

from training import slow_worker


def parse_arguments(
    description: str | None,
    networks: Iterable[str],
    arguments: list[str] | None = None,
    extend: Callable[[argparse.ArgumentParser], None] | None = None,
    **defaults: Any,
) -> argparse.Namespace:
    """Parses the command line of a script that trains one of networks.

    Args:
        description: what --help begins with.
        networks: names to choose from; the first is the default.
        arguments: in place of the command line's.
        extend: adds flags of the script's own.
        defaults: other defaults than fashion_mnist's, as lr=0.3.
    """
    names = list(networks)
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--network", choices=sorted(names), default=names[0], help="what to train (default: %(default)s)")
    add(
        "--kv-store",
        default="local",
        metavar="NAME",
        help="local, device, dist_sync, ... (default: %(default)s)",
    )
    add(
        "--gc-type",
        default="none",
        metavar="CODEC",
        help="none, fp16, int8, 2bit, ..., or with its parameters as topk:ratio=0.01; `gradwire doctor` names all; "
        "auto: one chosen for each tensor, see --gc-budget (default: %(default)s)",
    )
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
        "--gc-weights",
        metavar="FORM",
        help="where servers apply the optimizer (--update-on-kvstore), how they send weights: fp32, fp16, bf16 or "
        "delta:CODEC, such as delta:int8 (default: fp32)",
    )
    add(
        "--gc-budget",
        metavar="BUDGET",
        help="with --gc-type auto: what compression may cost, '0.3 points' of accuracy or '5%% error' of a step's mean "
        "(default: 0.3 points)",
    )
    add(
        "--momentum-correction",
        choices=["auto", "on", "off"],
        default="auto",
        help="on: workers send momentum, not gradients, which loses less accuracy; auto: on for 2bit with "
        "threshold auto (default: %(default)s)",
    )
    add(
        "--ddp-hook",
        choices=["none", "fp16", "powersgd"],
        help="for comparison: train by DistributedDataParallel on Gloo with this hook of PyTorch's, or none; the store "
        "only brings the workers together",
    )
    add(
        "--overlap-step",
        action=argparse.BooleanOptionalAction,
        help="update each parameter when its sum arrives, while the next forward pass begins; the weights are the same "
        "(default: GRADWIRE_OVERLAP_STEP, else no)",
    )
    add(
        "--update-on-kvstore",
        action=argparse.BooleanOptionalAction,
        help="SGD is the servers': workers push gradients and get weights; --lr-schedule constant (default: only where "
        "the store has no sums, as dist_async)",
    )
    add(
        "--slow-worker",
        metavar="RANK:FACTOR",
        help="make the steps of this worker take FACTOR times as long as it computes, as a slower machine's would",
    )
    add(
        "--on-failure",
        choices=["abort", "continue"],
        help="continue: training goes on without workers that die, and takes in new ones "
        "(default: GRADWIRE_ON_FAILURE, else abort)",
    )
    add(
        "--scale-lr",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with --on-failure continue: the learning rate is in proportion to the number of workers, as the examples "
        "of a step are; --lr is for those that began (default: yes)",
    )
    add(
        "--sync-every",
        type=int,
        metavar="H",
        help="workers take H steps of their own between two exchanges (DiLoCo); --gc-type is then of outer gradients, "
        "and scores are of the weights that all share",
    )
    add(
        "--sync-fragments",
        type=int,
        default=1,
        metavar="N",
        help="with --sync-every: parts of the model that are exchanged at different steps (default: %(default)s)",
    )
    add(
        "--sync-merge-after",
        type=int,
        default=0,
        metavar="N",
        help="with --sync-every: steps taken while a part is under way (default: %(default)s, which waits)",
    )
    add("--outer-lr", type=float, default=0.7, help="with --sync-every (default: %(default)s)")
    add(
        "--outer-momentum",
        type=float,
        default=0.9,
        help="with --sync-every; Nesterov's (default: %(default)s)",
    )
    add(
        "--num-epochs",
        type=int,
        default=10,
        metavar="N",
        help="passes over the examples (default: %(default)s)",
    )
    add(
        "--batch-size",
        type=int,
        default=64,
        metavar="N",
        help="examples per step and worker (default: %(default)s)",
    )
    add("--lr", type=float, default=0.02, help="learning rate at the start (default: %(default)s)")
    add(
        "--lr-schedule",
        choices=["cosine", "step", "constant"],
        help="how it falls (default: cosine; step where --lr-step-epochs is given)",
    )
    add(
        "--warmup-steps",
        type=int,
        default=1,
        metavar="N",
        help="first steps, in which it rises to --lr (default: %(default)s, which begins with it)",
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
        choices=["nag", "sgd", "adamw"],
        default="nag",
        help="nag: SGD, momentum in Nesterov's form; sgd: plain momentum; adamw: AdamW with torch's betas, of which "
        "--lr 0.002 and --wd 0.01 are usual (default: %(default)s)",
    )
    add("--wd", type=float, default=1e-4, help="weight decay (default: %(default)s)")
    add("--seed", type=int, help="of weights and order (default: GRADWIRE_SEED, else 0)")
    add("--limit", type=int, metavar="N", help="train on the first N examples only, all workers together")
    add(
        "--threads",
        type=int,
        help="torch's threads (default: OMP_NUM_THREADS, which `gradwire run` sets, else all)",
    )
    add(
        "--gpus",
        metavar="N,N,...",
        help="train on these CUDA devices, a worker on the one at its rank on this host, and around "
        "(default: on the CPU)",
    )
    add("--json", metavar="FILE", help="write rank 0's record there; - is stdout, and then nothing else is")
    if extend is not None:
        extend(parser)
    parser.set_defaults(**defaults)
    args = parser.parse_args(arguments)
    for name in ("num_epochs", "batch_size", "limit", "threads", "sync_every", "warmup_steps"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')}: {value} was given, expected 1 or more")
    if args.gc_budget is not None and args.gc_type != "auto":
        parser.error(
            f"--gc-budget {args.gc_budget} was given with --gc-type {args.gc_type}, which nothing is chosen for: give "
            "--gc-type auto, or leave the budget out"
        )
    every_step = {
        "--gc-type auto": args.gc_type == "auto",
        "--ddp-hook": args.ddp_hook is not None,
        "--overlap-step": bool(args.overlap_step),
        "--momentum-correction": args.momentum_correction == "on",
    }
    if args.sync_every is not None and any(every_step.values()):
        given = next(name for name, is_given in every_step.items() if is_given)
        parser.error(
            f"--sync-every was given with {given}, which is about gradients sent every step; leave one out"
        )
    if args.ddp_hook is not None and args.overlap_step:
        parser.error(
            "--overlap-step was given with --ddp-hook, which waits for all sums; leave one of the two out"
        )
    if args.ddp_hook is not None and args.update_on_kvstore:
        parser.error(
            "--update-on-kvstore was given with --ddp-hook, whose optimizer is in the worker; leave one of the two out"
        )
    if args.ddp_hook is not None and args.gc_type != "none":
        parser.error(
            f"--gc-type {args.gc_type} was given with --ddp-hook {args.ddp_hook}, which compresses by itself or not "
            "at all: leave one of the two out"
        )
    try:
        args.gc_threshold = args.gc_threshold if args.gc_threshold == "auto" else float(args.gc_threshold)
        steps = args.lr_step_epochs.split(",") if args.lr_step_epochs else ()
        args.lr_step_epochs = [int(epoch) for epoch in steps]
        args.gpus = [int(number) for number in args.gpus.split(",")] if args.gpus else []
    except ValueError as error:
        parser.error(
            "--gc-threshold takes a number or auto, --lr-step-epochs epochs as in 6,8, --gpus numbers as in 0,2 "
            f"({error})"
        )
    try:
        args.slow_worker = slow_worker.parse(args.slow_worker) if args.slow_worker else None
    except ValueError as error:
        parser.error(str(error))
    if args.seed is None:
        args.seed = definitions.read().seed or 0
    args.lr_schedule = args.lr_schedule or ("step" if args.lr_step_epochs else "cosine")
    if not args.lr_step_epochs:
        args.lr_step_epochs = [round(0.6 * args.num_epochs), round(0.85 * args.num_epochs)]
    return args


def compression(args: argparse.Namespace) -> str:
    """Returns what the flags ask for, as set_gradient_compression() takes it: 2bit:threshold=auto,reply=2bit."""
    name, _, given = args.gc_type.partition(":")
    parameters = [given] if given else []
    if name == "2bit" and "threshold=" not in given:
        parameters.append(f"threshold={args.gc_threshold}")
    if args.gc_budget is not None:
        parameters.append(f"budget={args.gc_budget}")
    if args.gc_reply is not None:
        parameters.append(f"reply={args.gc_reply}")
    if args.gc_weights is not None:
        parameters.append(f"weights={args.gc_weights}")
    return f"{name}:{','.join(parameters)}" if parameters else name


def learning_rate(args: argparse.Namespace, step: float, steps_per_epoch: int) -> float:
    """Returns the learning rate of a step, counted from 0 over the whole run; of epochs, where those have one step."""
    rise = min(1.0, (step + 1) / args.warmup_steps)
    return args.lr * rise * _scheduled(args, step, steps_per_epoch)


def _scheduled(args: argparse.Namespace, step: float, steps_per_epoch: int) -> float:
    if args.lr_schedule == "cosine":
        return (1 + math.cos(math.pi * step / (steps_per_epoch * args.num_epochs))) / 2
    if args.lr_schedule == "step":
        return float(args.lr_factor ** sum(step >= e * steps_per_epoch for e in args.lr_step_epochs))
    return 1.0
