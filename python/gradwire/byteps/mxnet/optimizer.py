"""BytePS's DistributedOptimizer: an optimizer of MXNet that updates with the ranks' mean gradients."""

from __future__ import annotations

from typing import Any

from gradwire.byteps.lifecycle import require_init
from gradwire.horovod.mxnet import optimizer as horovods


class DistributedOptimizer(horovods.DistributedOptimizer):
    """Sums the gradients that it is given, and passes them on; for Module.fit(..., kvstore=None) and updaters.

    For gluon, use DistributedTrainer. Attributes of the wrapped optimizer can be read and set on this one.
    """

    def __init__(self, optimizer: Any) -> None:
        """
        Args:
            optimizer: any of MXNet's.

        Raises:
            TypeError: it is none.
            ValueError: no init().
        """
        require_init("DistributedOptimizer")
        super().__init__(optimizer)
