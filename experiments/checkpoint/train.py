"""Trains the character transformer, and may stop halfway or go on from there. Run by run.py, under `gradwire run`.

train.py --seed 0 --steps 400 --batch 48 --momentum-correction on --result FILE [--stop FOLDER | --resume FOLDER]

--stop trains to the middle and saves; --resume goes on from there, with any number of workers. With momentum
correction, as is recommended for this codec, each worker has a momentum of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "char_lm"))

from conserved import Total, require_conserved
from networks import NETWORKS
from text import load
from training.loop import weights_sha256

CODEC = "2bit:threshold=auto,reply=2bit"
POINTS = 10  # in which the validation loss is taken
VALIDATION_WINDOWS = 512


def loss_of(model: torch.nn.Module, windows: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def windows_of(text: torch.Tensor, seed: int, step: int, batch: int) -> torch.Tensor:
    """The windows of all workers together in a step, whatever their number."""
    generator = torch.Generator().manual_seed(seed * 100_003 + step)
    return text[torch.randint(0, len(text), (batch,), generator=generator)]


def owed(store: Any, optimizer: Any) -> dict[str, Total]:
    """What workers have not sent yet, by name of the parameter."""
    own = optimizer.state_dict().get("gradwire", {}).get("residuals", {})
    return {
        name: Total.of(own[name].numpy() if name in own else np.zeros(parameter.numel(), np.float32), store)
        for name, parameter in optimizer.named
    }


def momentum(store: Any, optimizer: Any) -> dict[str, Total]:
    """The workers' momentum, likewise."""
    return {
        name: Total.of(optimizer.state[parameter]["momentum_buffer"].flatten().numpy(), store)
        for name, parameter in optimizer.named
    }


def saved(totals: dict[str, Total]) -> dict[str, list[torch.Tensor]]:
    return {name: [torch.from_numpy(each) for each in total] for name, total in totals.items()}


def restored(totals: dict[str, list[torch.Tensor]]) -> dict[str, Total]:
    return {name: Total(*(each.numpy() for each in total)) for name, total in totals.items()}


def require_all_there(extra: dict[str, Any], store: Any, optimizer: Any) -> float:
    """Returns the largest relative difference of a residual or a momentum. Raises ValueError: one is lost."""
    workers = extra["workers"]
    differences = [
        require_conserved(
            "the residual",
            restored(extra["owed"]),
            owed(store, optimizer),
            share=1.0,
            roundings=workers,
        ),
        # The mean enters the update, not the sum.
        require_conserved(
            "the momentum",
            restored(extra["momentum"]),
            momentum(store, optimizer),
            share=store.num_workers / workers,
            roundings=workers + 1,
        ),
    ]
    return max(differences)


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--seed", "--steps", "--batch"):
        parser.add_argument(flag, type=int, required=True)
    parser.add_argument("--momentum-correction", choices=["on", "off"], required=True)
    for flag in ("--result", "--stop", "--resume"):
        parser.add_argument(flag)
    args = parser.parse_args()
    torch.set_num_threads(1)
    store = gw.kv.create("dist_sync")
    torch.manual_seed(args.seed)
    text, model = load(), NETWORKS["tiny"]()
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        named_parameters=model.named_parameters(),
        compression=CODEC,
        store=store,
        momentum_correction=args.momentum_correction == "on",
    )
    optimizer.named = list(model.named_parameters())
    begin, end, lost = 0, args.steps, 0.0
    if args.stop:
        end = args.steps // 2
    if args.resume:
        extra = gw.torch.load_checkpoint(args.resume, model, optimizer)
        begin = extra["step"]
        lost = require_all_there(extra, store, optimizer)
    share = args.batch // store.num_workers
    losses = {}
    for step in range(begin, end):
        windows = windows_of(text.train, args.seed, step, args.batch)
        optimizer.zero_grad()
        loss_of(model, windows[store.rank * share : (store.rank + 1) * share]).backward()
        optimizer.step()
        if (step + 1) % (args.steps // POINTS) == 0 and store.rank == 0:
            with torch.no_grad():
                losses[step + 1] = float(loss_of(model, text.validation[:VALIDATION_WINDOWS]))
    if args.stop:
        extra = {"step": end, "workers": store.num_workers, "owed": saved(owed(store, optimizer))}
        extra["momentum"] = saved(momentum(store, optimizer))
        gw.torch.save_checkpoint(args.stop, model, optimizer, extra)
    if store.rank == 0 and args.result:
        record = {"losses": losses, "sha256": weights_sha256(model), "largest_difference": lost}
        Path(args.result).write_text(json.dumps(record))
    store.close()


if __name__ == "__main__":
    main()
