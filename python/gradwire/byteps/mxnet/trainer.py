"""BytePS's DistributedTrainer: rank 0's parameters in the first step, and the ranks' mean gradients."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from gradwire.byteps import compression_params as words
from gradwire.byteps.lifecycle import require_init
from gradwire.horovod.mxnet import trainer as horovods
from gradwire.horovod.mxnet.compression import Compression
from gradwire.horovod.mxnet.parameters import broadcast_parameters


class DistributedTrainer(horovods.DistributedTrainer):
    """gluon.Trainer without a store. Its first step starts with one rank's parameters on all ranks.

    Each step updates with the ranks' mean gradients, which are sent while backward() runs, front layers first.
    step(batch_size) divides by the batch size of one rank, because the mean over ranks has been taken already.
    """

    _params_to_init: list[Any]  # gluon's

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        root_rank: int = 0,
        compression_params: Any = None,
    ) -> None:
        """
        Args:
            params: net.collect_params(), or a list of Parameters in the same order on all ranks; dense, on one device.
            optimizer, optimizer_params: as gluon.Trainer's.
            root_rank: whose parameters all get.
            compression_params: BytePS's, {"compressor": "onebit", "scaling": True, "momentum": "nesterov"}, or those of
                a codec of gradwire's, "2bit" or {"type": "2bit"}. GRADWIRE_COMPRESSION overrides the codec. With one
                parameters of one dimension travel uncompressed. Nesterov's momentum is that of optimizer_params, and is
                taken from the optimizer.

        Raises:
            TypeError, ValueError: what was given; no init().
        """
        require_init("DistributedTrainer")
        wanted = words.read(compression_params)
        self._momentum = 0.0
        if wanted.has_momentum:
            self._momentum, optimizer_params = _without_momentum(optimizer, optimizer_params)
        self._velocities: dict[int, Any] = {}
        self._root_rank = root_rank
        compression = wanted.codec or (Compression.fp16 if wanted.is_half else Compression.none)
        super().__init__(
            params, optimizer, optimizer_params, compression=compression, prefix=horovods.own_prefix()
        )

    def _init_params(self) -> None:
        given = self._params_to_init
        ready = [parameter for parameter in given if not parameter._deferred_init]
        if ready:
            named = {f"parameter_{self._param2idx[parameter.name]}": parameter for parameter in ready}
            broadcast_parameters(named, self._root_rank)
        self._params_to_init = [parameter for parameter in given if parameter._deferred_init]

    def _allreduce_grads(self) -> None:
        """Momentum is of what is sent, where a codec acts, and else of the mean, as BytePS has it."""
        self._add_momentum(is_compressed=True)
        super()._allreduce_grads()
        self._add_momentum(is_compressed=False)

    def _add_momentum(self, *, is_compressed: bool) -> None:
        if not self._momentum:
            return
        for i, parameter in enumerate(self._params):
            if parameter.grad_req == "null" or self.is_compressed(parameter) != is_compressed:
                continue
            gradient = parameter.list_grad()[0]
            velocity = self._velocities.setdefault(i, mx.nd.zeros_like(gradient))
            velocity += gradient
            velocity *= self._momentum
            gradient += velocity


def _without_momentum(
    optimizer: Any, optimizer_params: dict[str, Any] | None
) -> tuple[float, dict[str, Any]]:
    """Returns the optimizer's momentum, and its parameters without it."""
    given = dict(optimizer_params or {})
    if not isinstance(optimizer, str) or "momentum" not in given:
        raise ValueError(
            "bps.DistributedTrainer: momentum='nesterov' in compression_params takes the optimizer's momentum; give "
            "the optimizer by name and optimizer_params={'momentum': 0.9, ...}"
        )
    momentum = float(given.pop("momentum"))
    return momentum, given
