"""Error feedback and momentum correction in NumPy, around any function that compresses.

Sources: Karimireddy et al. 2019, "Error feedback fixes SignSGD", algorithm 2, with the learning rate left to the
optimizer; Lin et al. 2018, "Deep gradient compression", sections 3.1 to 3.3 and algorithm 4. Nesterov's form is that
of torch.optim.SGD: what is sent is g + m * u.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Floats = np.ndarray  # float32, shape (n,)
Compress = Callable[[Floats], Floats]  # what a payload of x stands for


def bf16(values: Floats) -> Floats:
    """Rounded to bfloat16, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def ef_sgd(compress: Compress, grad: Floats, error: Floats) -> tuple[Floats, Floats]:
    """p = g + e; send C(p); keep p - C(p). Returns what was sent and the new error."""
    p = error + grad
    sent = compress(p)
    return sent, p - sent


def ef21(compress: Compress, grad: Floats, estimate: Floats) -> tuple[Floats, Floats]:
    """c = C(g - h); h = h + c. Returns what was sent and the new h. Source: Richtarik et al. 2021, algorithm 2."""
    sent = compress(grad - estimate)
    return sent, estimate + sent


def momentum_correction(
    compress: Compress,
    grad: Floats,
    u: Floats,
    v: Floats,
    momentum: float,
    *,
    nesterov: bool = False,
    masking: bool = False,
) -> tuple[Floats, Floats, Floats]:
    """u = m u + g; v = v + u; send C(v); masking: where something was sent, u = 0. Returns what was sent, u and v."""
    m = np.float32(momentum)
    u = m * u + grad
    v = v + (grad + m * u if nesterov else u)
    sent = compress(v)
    v = v - sent
    if masking:
        u = np.where(sent != 0, np.float32(0), u)
    return sent, u, v
