"""Trains with overlap_step where the front layer is small and what follows is large: overlap_trace_worker.py [drain].

The front layer takes FORWARD_SECONDS, so that a trace shows when it worked.
"""

from __future__ import annotations

import sys
import time

import gradwire as gw
import gradwire.torch
import torch

STEPS = 6
FORWARD_SECONDS = 0.02


class Front(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_SECONDS)
        return super().forward(x)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(Front(16, 16), torch.nn.Linear(16, 300_000), torch.nn.Linear(300_000, 1))
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-9),
        model.named_parameters(),
        overlap_step=sys.argv[1:] != ["drain"],
    )
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
