"""Trains a GPT of 124 million parameters with AdamW and simulated workers; prints a line `MODEL {...}`.

    python experiments/gpu/language_model.py --codec nf4 --steps 400

Each worker's gradient is real: they are computed one after the other, encoded with the worker's residual, summed, and
answered as a server does. So the loss is that of a job of as many workers, and needs no network. On a GPU only payloads
leave the device.
Tensors of one dimension are not compressed. The text is the source of the PyTorch that is installed, in pairs of bytes;
the last part of it is not trained on, and the loss at the end is of that part.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gradwire import compress
from gradwire.torch.session import parse_compression
from gradwire.torch.sharded.shard_codec import shard_codec
from torch import nn
from torch.nn import functional
from transformer import SIZES, Size, Transformer

RATE = 6e-4
_RISE = 40  # steps
_HELD_OUT = 0.05  # of the text
_SCORED = 8  # batches
_POINT = 20  # steps in a point of the curve


class Text:
    """Words: the most frequent pairs of bytes; the last word is every other pair."""

    def __init__(self, size: Size, device: torch.device) -> None:
        files = sorted(Path(torch.__file__).parent.rglob("*.py"))
        given = b"".join(file.read_bytes() for file in files)
        pairs = np.frombuffer(given[: len(given) // 2 * 2], np.uint16)
        counts = np.bincount(pairs, minlength=65_536)
        kept = np.argsort(-counts, kind="stable")[: size.vocabulary - 1]
        word_of = np.full(65_536, size.vocabulary - 1, np.int64)
        word_of[kept] = np.arange(len(kept))
        words = torch.from_numpy(word_of[pairs])
        end = int(len(words) * (1 - _HELD_OUT))
        self._size, self._device = size, device
        self.trained, self.held_out = words[:end], words[end:]

    def batch(self, words: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what is read and what comes next, (batch, context) each, drawn by number."""
        draw = torch.Generator().manual_seed(number)
        begins = torch.randint(0, len(words) - self._size.context - 1, (self._size.batch,), generator=draw)
        rows = torch.stack([words[begin : begin + self._size.context + 1] for begin in begins])
        return rows[:, :-1].to(self._device), rows[:, 1:].to(self._device)


class Tensor:
    """The workers' gradients of one parameter, and how their mean comes back."""

    def __init__(self, parameter: nn.Parameter, spec: str, workers: int) -> None:
        chosen = parse_compression(spec)
        made = compress.make(chosen.spec)
        self._is_compressed = parameter.dim() > 1 and made.lossy
        self.parameter = parameter
        device, elements = parameter.device, parameter.numel()
        self.rows = torch.zeros(workers, elements, device=device)
        if self._is_compressed:
            answers_alike = chosen.reply == made.name
            self._there = _Way(chosen.spec, workers, elements, device)
            self._back = _Way(chosen.spec, 1, elements, device) if answers_alike else None

    def deliver(self, step: int) -> float:
        """Has the parameter's gradient be the mean. Returns the bytes of a worker's payload and of the reply."""
        if not self._is_compressed:
            total, sent = self.rows.sum(0), 8.0 * self.rows.shape[1]
        else:
            total, sent = self._there.total(self.rows, step)
            if self._back is None:
                sent += 4.0 * self.rows.shape[1]
            else:
                total, answered = self._back.total(total[None], step)
                sent += answered
        self.parameter.grad = (total / len(self.rows)).view_as(self.parameter)
        return sent


class _Way:
    """A codec with the residuals of those who encode by it."""

    def __init__(self, spec: str, rows: int, elements: int, device: torch.device) -> None:
        self._codec = shard_codec(spec, device)
        self._residuals = [torch.zeros(elements, device=device) for _ in range(rows)]
        self._agreed: torch.Tensor | None = None

    def total(self, rows: torch.Tensor, step: int) -> tuple[torch.Tensor, float]:
        """Returns the sum of what the rows' payloads stand for, and the bytes of one."""
        ready, wait = self._codec.ready(rows)
        with self._codec.at_work():
            wait()
            agreed = None if self._agreed is None else self._agreed.to(rows.device)
            payloads, _ = self._codec.encode(
                ready, self._residuals, [agreed] * len(rows), first_key=0, rank=0, step=step
            )
            total, self._agreed = self._codec.total(payloads, rows.shape[1])
        return total.to(rows.device), float(len(payloads[0]))


def train(size: Size, device: torch.device, codec: str, workers: int, steps: int) -> dict[str, Any]:
    """Returns the record of a run."""
    torch.manual_seed(0)
    text, model = Text(size, device), Transformer(size).to(device)
    tensors = [Tensor(parameter, codec, workers) for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)

    def loss_of(words: torch.Tensor, number: int) -> torch.Tensor:
        given, next_words = text.batch(words, number)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return functional.cross_entropy(model(given).flatten(0, 1).float(), next_words.flatten())

    losses, sent, began = [], 0.0, time.perf_counter()
    for step in range(steps):
        of_step = torch.zeros((), device=device)
        for worker in range(workers):
            optimizer.zero_grad()
            loss = loss_of(text.trained, step * workers + worker)
            loss.backward()
            of_step += loss.detach() / workers
            for tensor in tensors:
                assert tensor.parameter.grad is not None
                tensor.rows[worker] = tensor.parameter.grad.flatten()
        sent = sum(tensor.deliver(step) for tensor in tensors)
        rate = RATE * min(1.0, (step + 1) / _RISE) * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        losses.append(float(of_step))
    seconds = time.perf_counter() - began
    with torch.no_grad():
        final = sum(float(loss_of(text.held_out, -1 - number)) for number in range(_SCORED)) / _SCORED
    return {
        "codec": codec,
        "workers": workers,
        "steps": steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "loss": round(final, 4),
        "curve": [
            round(float(np.mean(losses[first : first + _POINT])), 4) for first in range(0, steps, _POINT)
        ],
        "bytes_a_step": round(sent),
        "ms_a_step": round(1e3 * seconds / steps, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--codec", default="none")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--size", choices=list(SIZES), default="124m")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    given = parser.parse_args()
    device = torch.device(given.device, 0) if given.device == "cuda" else torch.device(given.device)
    print(
        "MODEL",
        json.dumps(train(SIZES[given.size], device, given.codec, given.workers, given.steps)),
        flush=True,
    )


if __name__ == "__main__":
    main()
