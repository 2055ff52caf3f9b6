"""BytePS's DistributedDataParallel: backward() returns with the ranks' mean gradients.

    from gradwire.byteps.torch.parallel import DistributedDataParallel

If the job has a torch process group, prefer torch's DistributedDataParallel with the hook of gradwire.torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd import Variable

from gradwire.byteps.lifecycle import size
from gradwire.byteps.torch.optimizer import DistributedOptimizer
from gradwire.byteps.torch.states import broadcast_parameters
from gradwire.horovod.torch.compression import Compression
from gradwire.torch.optimizer_wrapper import NEVER


class DistributedDataParallel(torch.nn.Module):
    """A module with rank 0's weights on all ranks, whose gradients are the ranks' means after backward().

    Attributes:
        module: the wrapped module.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[Any] | None = None,
        broadcast_buffers: bool = True,
        compression: Any = Compression.none,
    ) -> None:
        """A collective of all ranks.

        Args:
            module: on one device, with all its parameters.
            device_ids: BytePS's, of one entry; the module stays where it is.
            broadcast_buffers: every forward() begins with rank 0's buffers on all ranks.
            compression: as for DistributedOptimizer.

        Raises:
            ValueError: more than one device, or what DistributedOptimizer() and broadcast_parameters() raise.
        """
        super().__init__()
        if device_ids is not None and len(device_ids) != 1:
            raise ValueError(
                f"bps.DistributedDataParallel: device_ids={list(device_ids)!r}, expected one device: start a rank for "
                "each"
            )
        self.module = module
        self._broadcasts_buffers = broadcast_buffers and size() > 1
        self._is_synchronized = self._is_queued = self._is_local = False
        broadcast_parameters(module.state_dict(), root_rank=0)
        exchange = torch.optim.SGD(
            module.parameters(), lr=0.0
        )  # never steps: it is what the sums are hung on
        self._exchange = DistributedOptimizer(exchange, module.named_parameters(), compression)
        self._hooked: set[torch.Tensor] = set()
        self._hook()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """As the module's."""
        self._is_synchronized = self._is_queued = False  # also where the last backward() has failed
        self._hook()
        buffers = list(self.module.named_buffers()) if self._broadcasts_buffers else []
        if buffers:
            broadcast_parameters(buffers, root_rank=0)
        return self.module(*inputs, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keeps gradients local inside the block. The first backward() after it sends what was added up."""
        self._is_local = True
        self._exchange.set_backward_passes_per_step(NEVER)
        try:
            yield
        finally:
            self._is_local = False
            self._exchange.set_backward_passes_per_step(1)

    def synchronize(self) -> None:
        """Waits for the sums since the last forward() or backward().

        backward() does so, unless it reached no parameter of this rank; the other ranks' sums then need this rank's
        zeros.

        Raises: RuntimeError: a sum has failed, on all ranks; says why.
        """
        if not self._is_synchronized:
            self._exchange.synchronize()
        self._is_synchronized = True

    def _hook(self) -> None:
        """Has the end of a backward() be heard of by all that require a gradient, thawed ones too."""
        for parameter in self.module.parameters():
            if parameter.requires_grad and parameter not in self._hooked:
                self._hooked.add(parameter)
                parameter.register_post_accumulate_grad_hook(self._queue_wait)  # type: ignore[no-untyped-call]

    def _queue_wait(self, _: torch.Tensor) -> None:
        if not (self._is_queued or self._is_local):
            self._is_queued = True
            Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        self._is_queued = self._is_synchronized = False  # each backward() has sent sums of its own
        self.synchronize()
