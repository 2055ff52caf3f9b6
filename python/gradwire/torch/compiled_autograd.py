"""What torch's compiled autograd cannot be combined with: hooks that need to know when a backward() ends.

It runs a backward() as one compiled function and drops the callback by which autograd tells of its end, so that nobody
would wait for the sums.
"""

from __future__ import annotations

import sys

_MODULE = "torch._dynamo.compiled_autograd"  # not imported for this: that takes seconds


def require_eager(who: str) -> None:
    """Raises RuntimeError inside a backward() that compiled autograd runs.

    Args:
        who: exchanges gradients, for the error, as "gradwire.torch: DistributedOptimizer".
    """
    if getattr(sys.modules.get(_MODULE), "in_compiled_autograd_region", False):
        raise RuntimeError(
            f"{who} cannot be combined with compiled autograd, which does not tell when a backward() has ended; set "
            "torch._dynamo.config.compiled_autograd = False, or leave compiled_autograd._enable() out: "
            "torch.compile(model) needs neither"
        )
