"""A worker that trains a small network by DistributedOptimizer, and may save, hang, and go on from where it was.

checkpoint_worker.py folder=F codec=2bit:threshold=auto steps=8 [save=4] [hang=6] [resume=1] [die_while_saving=1]

save: after so many steps. hang: after so many, wait to be killed. resume: go on from the folder. die_while_saving:
worker 1 dies in the middle of its file.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import gradwire
import gradwire.torch
import torch

BATCH = 8


def network() -> torch.nn.Module:
    """Some tensors travel in a bucket, one is of several codec units and cut over all servers."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 300),
        torch.nn.BatchNorm1d(300),
        torch.nn.ReLU(),
        torch.nn.Linear(300, 700),
        torch.nn.ReLU(),
        torch.nn.Linear(700, 10),
    )


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(BATCH, 20, generator=generator)
    return inputs, inputs[:, :10].argmax(1)


def weights_sha256(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def die_in_the_middle_of_a_file() -> None:
    """Has the kernel kill this process when a file of its grows longer than this, which is half of a checkpoint's."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))


def main() -> None:
    options = dict(word.split("=", 1) for word in sys.argv[1:])
    torch.set_num_threads(1)
    store = gradwire.kv.create(options.get("store", "dist_sync"))
    marks = Path(os.environ["TEST_FOLDER"])
    (marks / f"worker{store.rank}.pid").write_text(str(os.getpid()))
    model = network()
    warm_up = [("fp16", 2)] if options.get("warm_up") else None
    optimizer = gradwire.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=options["codec"],
        codecs={"*": options["codec"]} if warm_up is None else None,
        warm_up=warm_up,
        store=store,
    )
    begin = 0
    if options.get("resume"):
        begin = gradwire.torch.load_checkpoint(options["folder"], model, optimizer)["step"]
    losses = []
    for step in range(begin, int(options["steps"])):
        if step == int(options.get("hang", -1)):
            (marks / f"worker{store.rank}.running").touch()
            time.sleep(600)
        inputs, labels = batch(step, store.rank)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if step + 1 == int(options.get("save", -1)):
            if options.get("die_while_saving") and store.rank == 1:
                die_in_the_middle_of_a_file()
            gradwire.torch.save_checkpoint(options["folder"], model, optimizer, {"step": step + 1})
    record = {"rank": store.rank, "hashes": weights_sha256(model), "begin": begin, "loss": losses[-1]}
    sys.stdout.write(json.dumps(record) + "\n")
    store.close()


main()
