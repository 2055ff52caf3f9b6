"""The networks: transformers that predict the next character."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from text import ALPHABET, WINDOW
from torch import nn


class _Block(nn.Module):
    """Attention to what came before, then two dense layers, each with a norm before it and a shortcut around it.

    Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019, section 2.3.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.dense(self.norm2(x))


class CharTransformer(nn.Module):
    """Characters (batch, length) int64 -> logits of each one's successor (batch, length, alphabet)."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.character = nn.Embedding(len(ALPHABET), width)
        self.place = nn.Embedding(WINDOW, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, len(ALPHABET))
        for table in (self.character, self.place):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        places = torch.arange(characters.shape[1], device=characters.device)
        x = self.character(characters) + self.place(places)
        return self.logits(self.norm(self.blocks(x)))


def tiny() -> nn.Module:
    """2 layers of width 64, 2 heads; 116 576 parameters."""
    return CharTransformer(64, 2, 2)


def small() -> nn.Module:
    """2 layers of width 128, 4 heads; 429 664 parameters."""
    return CharTransformer(128, 2, 4)


NETWORKS = {"small": small, "tiny": tiny}
