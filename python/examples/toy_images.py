"""The model and data of the examples: a small network that separates bright from dark random images."""

import torch


def network() -> torch.nn.Module:
    torch.manual_seed(0)  # the same weights on every rank
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
    )


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int = 30) -> None:
    """Trains on the rank's own images, and prints the loss."""
    generator = torch.Generator().manual_seed(rank)
    images = torch.randn(256, 1, 28, 28, generator=generator)
    labels = (images.mean((1, 2, 3)) > 0).long()
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"rank {rank} step {step + 1}: loss {loss.item():.3f}")
