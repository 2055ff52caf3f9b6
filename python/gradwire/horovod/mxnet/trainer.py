"""DistributedTrainer: gluon's Trainer whose gradients are the ranks' means."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import mxnet as mx

from gradwire import kv
from gradwire.horovod import reduce_ops, session
from gradwire.horovod.compression import codec_text, compressor_of
from gradwire.horovod.mxnet.compression import Compression
from gradwire.horovod.mxnet.optimizer import DistributedOptimizer, GroupedMean
from gradwire.horovod.mxnet.sums import start_sum
from gradwire.horovod.process_sets import ProcessSet, global_process_set
from gradwire.mxnet.agreement import Agreement
from gradwire.stores.codec_choice import chosen

# What a codec has not sent yet is kept by name, and another trainer's parameters have the same numbers: so trainers are
# counted, which gives the same numbers on all ranks.
_trainers_of: weakref.WeakKeyDictionary[kv.KVStore, Iterator[int]] = weakref.WeakKeyDictionary()


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """gluon.Trainer without a store: step() updates with the ranks' mean gradients.

    Gradients are sent while backward() runs, front layers first. step(batch_size) divides by the batch size of one
    rank, because the mean over ranks has been taken already. It is the same on all ranks, as is the learning rate: else
    the next step raises gradwire.mxnet.KVStoreError, since each rank updates its own copy of the parameters.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """
        Args:
            params: net.collect_params(), or a list of Parameters in the same order on all ranks; dense, on one device.
            optimizer, optimizer_params: as gluon.Trainer's.
            compression: hvd.Compression.none, fp16, or a codec of gradwire's, "2bit" or hvd.Compression.codec("int8").
                GRADWIRE_COMPRESSION overrides it. With a codec parameters of one dimension travel uncompressed.
            gradient_predivide_factor: the mean is divided by it before the sum and multiplied after it.
            prefix: of the gradients' names; a second trainer needs another than the first.
            num_groups: gradients travel in so many groups; 0: each by itself. Not with a codec.
            process_set: whose members' mean it is; the others update by their own gradients.

        Raises: TypeError, ValueError: what was given; hvd.init() was not called.
        """
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer._optimizer
            warnings.warn(
                "hvd.DistributedTrainer sums gradients itself, and takes the optimizer inside the "
                "DistributedOptimizer; give that one",
                stacklevel=2,
            )
        self._mean = GroupedMean(gradient_predivide_factor, num_groups, process_set)
        self._compressor = compressor_of(chosen(compression))
        self._prefix = prefix or ""
        self._scales = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
        self._compressed_prefix = f"{own_prefix()}{self._prefix}"
        self._process_set = process_set
        self._agreement: Agreement | None = None
        if codec_text(self._compressor) and (num_groups or process_set is not global_process_set):
            raise ValueError(
                "hvd.DistributedTrainer: a codec sums each parameter by itself, over all ranks; leave num_groups and "
                "process_set out, or give Compression.none or fp16"
            )
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        if self._contains_sparse_weight or self._contains_sparse_grad:
            raise ValueError(
                "hvd.DistributedTrainer: a parameter or its gradient is row_sparse; train by gradwire.mxnet.patch() "
                "and gluon.Trainer(kvstore='dist_sync'), which sums rows, or give Embedding sparse_grad=False"
            )

    def is_compressed(self, parameter: Any) -> bool:
        """Returns True if a codec compresses its gradient."""
        return bool(codec_text(self._compressor)) and len(parameter.shape) > 1

    def _update(self, *args: Any, **kwargs: Any) -> None:
        """gluon's: updates by this rank's own optimizer, which must have the other ranks' numbers."""
        ranks = self._process_set.members() if self._process_set.included() else []
        if self._agreement is None and len(ranks) > 1:
            name = f"{self._compressed_prefix}optimizer"
            self._agreement = Agreement(
                RowSums(self._process_set), name, session.current().store.rank, ranks, self._optimizer
            )
        if self._agreement is not None:
            self._agreement.compare(self._optimizer)
        super()._update(*args, **kwargs)

    def _allreduce_grads(self) -> None:
        live = [(i, parameter) for i, parameter in enumerate(self._params) if parameter.grad_req != "null"]
        if codec_text(self._compressor):
            for i, parameter in live:
                self._sum_alone(i, parameter)
            return
        gradients = [_gradient(parameter) for _, parameter in live]
        changed = [self._compressor.compress(gradient) for gradient in gradients]
        self._mean([f"{self._prefix}{i}" for i, _ in live], [tensor for tensor, _ in changed])
        for gradient, (tensor, context) in zip(gradients, changed, strict=True):
            if (total := self._compressor.decompress(tensor, context)) is not gradient:
                total.copyto(gradient)

    def _sum_alone(self, i: int, parameter: Any) -> None:
        is_compressed = self.is_compressed(parameter)
        start_sum(
            [_gradient(parameter)],
            f"{self._compressed_prefix if is_compressed else self._prefix}{i}",
            reduce_ops.Average,
            self._scales,
            global_process_set,
            in_place=True,
            priority=-i,
            codec=codec_text(self._compressor) if is_compressed else "",
        )


class RowSums:
    """The sums by which ranks compare their optimizers."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._under_way: dict[str, Any] = {}

    def declare_exact(self, name: str, shape: tuple[int, ...]) -> str:
        """The name is what it is known by."""
        return name

    def begin_exchange(self, known: str, values: Any) -> None:
        """As Sums has it."""
        (self._under_way[known],) = start_sum(
            [mx.nd.array(values, dtype="float64")],
            known,
            reduce_ops.Sum,
            (1.0, 1.0),
            self._process_set,
            in_place=True,
            priority=0,
        )

    def end_exchange(self, known: str) -> Any:
        """As Sums has it. Raises HorovodInternalError: the sum has failed."""
        return self._under_way.pop(known).asnumpy()

    def at_end(self, look: Callable[[], None]) -> None:
        """shutdown() must not fail: what differs in the last step alone is not reported."""


def own_prefix() -> str:
    """Returns what begins the names of one trainer's gradients and of no other's; the same on all ranks."""
    counted = _trainers_of.setdefault(session.current().store, itertools.count())
    return f"trainer.{next(counted)}."


def _gradient(parameter: Any) -> Any:
    gradients = parameter.list_grad()
    if len(gradients) > 1:
        raise ValueError(
            f"hvd.DistributedTrainer: {parameter.name!r} is on {len(gradients)} devices; start a rank for each, or use "
            "gradwire.mxnet.patch() and gluon.Trainer(kvstore='dist_sync')"
        )
    return gradients[0]
