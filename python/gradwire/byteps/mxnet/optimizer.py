"""DistributedOptimizer as BytePS has it: an optimizer of MXNet's that updates by the ranks' mean gradients."""

from __future__ import annotations

from typing import Any

from gradwire.byteps.lifecycle import require_init
from gradwire.horovod.mxnet import optimizer as horovods


class DistributedOptimizer(horovods.DistributedOptimizer):
    """Sums the gradients that it is given, and hands them on; for Module.fit(..., kvstore=None) and updaters.

    For gluon there is DistributedTrainer. All that can be read or set of the optimizer inside can be of this, too.
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
