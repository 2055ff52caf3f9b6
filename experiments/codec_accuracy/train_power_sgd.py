"""Runs a training script of experiments/ as it is, but with PowerSGD in place of a codec.

    GRADWIRE_COMPRESSION=powersgd:rank=4 gradwire run -n 4 -s 0 \\
        python experiments/codec_accuracy/train_power_sgd.py fashion_mnist/train.py FLAGS...

PowerSGD's second round needs the first one's result, so it is no codec and no script has a flag for it. Model,
data, loop, flags and record are the script's; the rank is read from where an arm's codec would be.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from arms import power_sgd_rank
from gradwire.power_sgd import PowerSGD

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training import loop

EXPERIMENTS = Path(__file__).resolve().parent.parent


class AveragingOptimizer:
    """An optimizer that steps on PowerSGD's mean: what training.loop asks of an optimizer.

    Attributes:
        codec_seconds: of processor time in this thread, so that waiting for the others does not count.
    """

    momentum_correction = False

    def __init__(self, args: argparse.Namespace, model: torch.nn.Module, store: Any, rank: int) -> None:
        self._parameters = list(model.parameters())
        self._inner = loop.make_inner(args, model)
        self._power = PowerSGD(store, [tuple(p.shape) for p in self._parameters], rank=rank)
        self.codec_seconds = 0.0

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._inner.param_groups

    def zero_grad(self) -> None:
        self._inner.zero_grad()

    def step(self) -> None:
        began = time.thread_time()
        is_finite = self._power.all_reduce([parameter.grad for parameter in self._parameters])
        self.codec_seconds += time.thread_time() - began
        if is_finite:
            self._inner.step()

    def synchronize(self) -> None:
        """step() has waited."""


def main() -> None:
    arm = os.environ.pop("GRADWIRE_COMPRESSION", "")  # no codec that a store would know
    rank = power_sgd_rank(arm)
    if rank is None or len(sys.argv) < 2:
        raise SystemExit(
            f"train_power_sgd: GRADWIRE_COMPRESSION={arm!r} and arguments {sys.argv[1:]} were given: expected "
            "powersgd:rank=R and a script below experiments/, such as fashion_mnist/train.py, with its flags"
        )
    made: list[AveragingOptimizer] = []
    write_record = loop.write_record

    def make_optimizer(args: argparse.Namespace, model: torch.nn.Module, store: Any) -> AveragingOptimizer:
        made.append(AveragingOptimizer(args, model, store, rank))
        return made[-1]

    def write_own_record(record: dict[str, Any], args: argparse.Namespace) -> None:
        seconds = record["codec_seconds"] + made[-1].codec_seconds
        write_record(record | {"codec_seconds": seconds, "compression": arm}, args)

    # The loop has no parameter for either: no other script needs one.
    loop.make_optimizer = make_optimizer
    loop.write_record = write_own_record
    script = EXPERIMENTS / sys.argv[1]
    sys.argv = [str(script), *sys.argv[2:]]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
