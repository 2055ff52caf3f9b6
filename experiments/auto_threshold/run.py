"""Simulates the rule of `2bit:threshold=auto` in one process, to choose its constants.

Two workers train LeNet on Fashion-MNIST with the codec's arithmetic written out in torch (see `Rule`): no
network, no gradwire code. Every arm of one seed starts from the same weights and sees the same batches, so
that differences to `none` are paired. Prints a line per run and appends it to results.csv.

    python experiments/auto_threshold/run.py --arm none --arm exact:a=1.5,mc=1 --seeds 3 --images 20000
    --epochs 5
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import time
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F

DATA = Path("/usr/share/datasets/fashion-mnist")
HERE = Path(__file__).parent
WORKERS, BATCH = 2, 64
SHAPES = {
    "conv1.weight": (20, 1, 5, 5),
    "conv1.bias": (20,),
    "conv2.weight": (50, 20, 5, 5),
    "conv2.bias": (50,),
    "fc1.weight": (500, 800),
    "fc1.bias": (500,),
    "fc2.weight": (10, 500),
    "fc2.bias": (10,),
}


@dataclass(frozen=True)
class Rule:
    """What an arm does. Reply none means no compression; the other fields are the constants under search."""

    reply: str = "none"  # none | exact | 2bit
    a: float = 1.5  # worker threshold: a * mean |gradient + residual| of the round before
    b: float = 1.5  # server threshold: b * mean |sum + residual| of this round
    c: float = 1.0  # worker level: c * mean selected |gradient + residual|
    d: float = 1.0  # server level: d * mean selected |sum + residual|
    k: float = 4.0  # sends everything at its mean where that carries k times the energy of what was selected
    g: float = 0.5  # no element is sent below g * level
    t: float = 0.0  # above 0: a fixed threshold, which is the level too
    mc: int = 0  # 0: compress gradients; 1: compress the worker's momentum; 2: likewise, Nesterov's form
    # (none:mc=2 is uncompressed SGD with Nesterov's momentum, the baseline of other arms with mc=2)
    warm: int = 1  # rounds sent dense before compression starts
    decay: float = 1.0  # worker residual is multiplied by this every round
    sdecay: float = 1.0  # server residual likewise
    min: int = 1024  # tensors with fewer elements are sent dense
    unit: int = 65536  # elements that share one threshold and level
    lag: int = 1  # 1: scales agreed one round ahead; 0: scales of this very round (needs another exchange)
    lrcomp: int = 0  # 1: residuals are kept in units of the update (scaled by lr of their round)

    @classmethod
    def parse(cls, text: str) -> Rule:
        name, _, rest = text.partition(":")
        types = {f.name: type(f.default) for f in fields(cls)}
        pairs = (item.split("=") for item in rest.split(",") if item)
        return cls(reply=name, **{k: types[k](v) for k, v in pairs})


def round8(value: torch.Tensor) -> torch.Tensor:
    """Rounds to 8 significant bits, as the codec does so that k * level is exact."""
    mantissa, exponent = torch.frexp(value)
    return torch.ldexp(torch.round(mantissa * 256) / 256, exponent)


class Data:
    """Fashion-MNIST, standardised with the training mean and deviation; NHWC patches are built per batch."""

    def __init__(self, images: int) -> None:
        def read(name: str, header: int) -> torch.Tensor:
            raw = gzip.decompress((DATA / name).read_bytes())[header:]
            return torch.frombuffer(bytearray(raw), dtype=torch.uint8)

        def pictures(name: str) -> torch.Tensor:
            return (read(name, 16).view(-1, 28, 28).float() / 255 - 0.2860) / 0.3530

        self.x = pictures("train-images-idx3-ubyte.gz")[:images]
        self.y = read("train-labels-idx1-ubyte.gz", 8)[:images].long()
        self.test_x = pictures("t10k-images-idx3-ubyte.gz")
        self.test_y = read("t10k-labels-idx1-ubyte.gz", 8).long()


def forward(w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """LeNet (20 and 50 filters of 5x5, 500 hidden, ReLU) on (n, 28, 28); layer 1 as a matrix product."""
    n = x.shape[0]
    patches = x.contiguous().as_strided((n, 24, 24, 5, 5), (784, 28, 1, 28, 1)).reshape(-1, 25)
    h = (
        (patches @ w["conv1.weight"].view(20, 25).t() + w["conv1.bias"])
        .view(n, 24, 24, 20)
        .permute(0, 3, 1, 2)
    )
    h = F.relu(F.max_pool2d(h, 2))
    h = F.conv2d(h, w["conv2.weight"].contiguous(memory_format=torch.channels_last), w["conv2.bias"])
    h = F.relu(F.max_pool2d(h, 2)).contiguous().flatten(1)
    h = F.relu(F.linear(h, w["fc1.weight"], w["fc1.bias"]))
    return F.linear(h, w["fc2.weight"], w["fc2.bias"])


class Units:
    """The codec units of the flat weight vector: (begin, end) of each run that is compressed."""

    def __init__(self, rule: Rule) -> None:
        self.runs: list[tuple[int, int]] = []
        offset = 0
        for shape in SHAPES.values():
            size = math.prod(shape)
            if size >= rule.min:
                for begin in range(0, size, rule.unit):
                    self.runs.append((offset + begin, offset + min(begin + rule.unit, size)))
            offset += size
        self.total = offset


class Reducer:
    """Sums the workers' vectors as the codec would. Its state is the residuals and the agreed scales."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.units = rule, Units(rule)
        total = self.units.total
        self.residual = torch.zeros(WORKERS, total)
        self.server = torch.zeros(total)
        self.scales = [(0.0, 0.0)] * len(self.units.runs)
        self.round = 0
        self.sent = 0  # elements that were not zero, for the density column
        self.offered = 0

    def mean(self, vectors: torch.Tensor) -> torch.Tensor:
        """Returns the workers' mean of vectors (workers, total) as every worker receives it."""
        out = vectors.sum(0)
        if self.rule.reply != "none":
            for i, (begin, end) in enumerate(self.units.runs):
                self._unit(i, vectors[:, begin:end], out[begin:end], begin, end)
            self.round += 1
        return out / WORKERS

    def _unit(self, i: int, g: torch.Tensor, out: torch.Tensor, begin: int, end: int) -> None:
        rule, n = self.rule, WORKERS * (end - begin)
        residual = self.residual[:, begin:end]
        x = g + residual * rule.decay if rule.decay != 1 else g + residual
        size = x.abs()
        mean = float(size.sum()) / n
        if self.round < rule.warm:  # dense round: scales come from a selection at a * mean of this round
            threshold = rule.a * mean
            chosen = size >= threshold
            self._agree(i, mean, size, chosen)
            return
        if rule.lag == 0:
            chosen = size >= rule.a * mean
            level = float(round8(rule.c * size[chosen].sum() / max(1, int(chosen.sum()))))
        else:
            threshold, level = self.scales[i]
            chosen = size >= threshold
            self._agree(i, mean, size, chosen)
        code = torch.sign(x) * chosen
        torch.sub(x, code, alpha=level, out=residual)
        self.sent += int(chosen.sum())
        self.offered += n
        total = code.sum(0) * level
        if rule.reply == "2bit":
            total += self.server[begin:end] * rule.sdecay
            size = total.abs()
            mean = float(size.mean())
            chosen = size >= max(rule.b * mean, 1e-30)
            threshold, reply = self._scale(rule.b, rule.d, mean, size, chosen)
            chosen = size >= max(threshold, 1e-30)
            code = torch.sign(total) * chosen * reply
            torch.sub(total, code, out=self.server[begin:end])
            total = code
        out.copy_(total)

    def _agree(self, i: int, mean: float, size: torch.Tensor, chosen: torch.Tensor) -> None:
        self.scales[i] = self._scale(self.rule.a, self.rule.c, mean, size, chosen)

    def _scale(
        self, factor: float, lift: float, mean: float, size: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[float, float]:
        """Threshold and level after a selection of `chosen` among `size`, whose mean is `mean`."""
        rule, count = self.rule, int(chosen.sum())
        if rule.t:
            return rule.t, rule.t
        selected = float((size * chosen).sum()) / max(1, count)
        if rule.k and size.numel() * mean**2 > rule.k * count * selected**2:
            threshold, level = min(factor, 0.5) * mean, lift * mean
        else:
            level = lift * selected if count else factor * mean
            threshold = max(factor * mean, rule.g * level)
        scales = round8(torch.tensor([threshold, level]))
        return float(scales[0]), float(scales[1])


def train(rule: Rule, seed: int, data: Data, args: argparse.Namespace) -> dict[str, object]:
    """Trains one arm from one seed; returns its row for results.csv."""
    torch.manual_seed(seed)
    units = Units(rule)
    flat = torch.empty(units.total)
    w, offset = {}, 0
    grads = torch.zeros(WORKERS, units.total)
    fan_in = {"conv1": 25, "conv2": 500, "fc1": 800, "fc2": 500}
    for name, shape in SHAPES.items():
        size = math.prod(shape)
        bound = 1 / math.sqrt(fan_in[name.split(".")[0]])
        w[name] = flat[offset : offset + size].view(shape).uniform_(-bound, bound).requires_grad_()
        offset += size
    reducer, m = Reducer(rule), args.momentum
    velocity = torch.zeros(WORKERS if rule.mc else 1, units.total)
    per_epoch = len(data.y) // (WORKERS * BATCH)
    total_steps, step = per_epoch * args.epochs, 0
    started, accuracy, previous_lr = time.perf_counter(), [], args.lr
    for epoch in range(args.epochs):
        order = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(seed * 1000 + epoch))
        for i in range(per_epoch):
            for rank in range(WORKERS):
                pick = order[(i * WORKERS + rank) * BATCH :][:BATCH]
                offset = 0
                for p in w.values():
                    p.grad = grads[rank, offset : offset + p.numel()].view_as(p)
                    offset += p.numel()
                grads[rank].zero_()
                F.cross_entropy(forward(w, data.x[pick]), data.y[pick]).backward()
            if args.wd:
                grads.add_(flat, alpha=args.wd)
            if args.schedule == "cosine":
                lr = args.lr * (1 + math.cos(math.pi * step / total_steps)) / 2
            else:
                lr = args.lr * 0.1 ** ((step >= 0.6 * total_steps) + (step >= 0.85 * total_steps))
            if rule.lrcomp:
                reducer.residual *= previous_lr / lr
                reducer.server *= previous_lr / lr
            previous_lr = lr
            if rule.mc:
                velocity.mul_(m).add_(grads)
                update = reducer.mean(grads + m * velocity if rule.mc == 2 else velocity)
            else:
                velocity.mul_(m).add_(reducer.mean(grads))
                update = velocity[0]
            flat.sub_(update, alpha=lr)
            step += 1
        with torch.no_grad():
            hits = sum(
                int((forward(w, x).argmax(1) == y).sum())
                for x, y in zip(data.test_x.split(1000), data.test_y.split(1000), strict=True)
            )
        accuracy.append(round(hits / len(data.test_y) * 100, 2))
    return {
        "seed": seed,
        "images": len(data.y),
        "epochs": args.epochs,
        "lr": args.lr,
        "schedule": args.schedule,
        "accuracy": accuracy[-1],
        "density": round(reducer.sent / max(1, reducer.offered), 4),
        "residual": round(float(reducer.residual.norm() / max(1e-30, float(grads.norm()))), 2),
        "server_residual": round(float(reducer.server.norm() / max(1e-30, float(grads.norm()))), 2),
        "per_epoch": " ".join(f"{v:.2f}" for v in accuracy),
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--arm", action="append", required=True, help="REPLY[:key=value,...]; keys: see class Rule"
    )
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from --first-seed on")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--images", type=int, default=20000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=0.0)
    parser.add_argument("--schedule", choices=["cosine", "step"], default="cosine")
    parser.add_argument("--results", type=Path, default=HERE / "results.csv")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    data = Data(args.images)
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for arm in args.arm:
            row = {"arm": arm, **train(Rule.parse(arm), seed, data, args)}
            print(*(f"{k}={v}" for k, v in row.items()), flush=True)
            fresh = not args.results.exists()
            with args.results.open("a", newline="") as file:
                writer = csv.DictWriter(file, row)
                if fresh:
                    writer.writeheader()
                writer.writerow(row)


if __name__ == "__main__":
    main()
