"""DistributedOptimizer: an optimizer of MXNet that updates with the ranks' mean gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from gradwire.horovod.array_library import near_equal
from gradwire.horovod.mxnet.sums import allreduce_, grouped_allreduce_
from gradwire.horovod.process_sets import ProcessSet, global_process_set

_OWN = ("_optimizer", "_mean")  # all other attributes are the optimizer's


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Sums the gradients that it is given, and passes them on; for Module.fit(..., kvstore=None) and updaters.

    For gluon, use DistributedTrainer, which sums all gradients before the first update. Attributes of the wrapped
    optimizer can be read and set on this one.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """
        Args:
            optimizer: any of MXNet's.
            gradient_predivide_factor: the mean is divided by it before the sum and multiplied after it.
            num_groups: gradients of one update() travel in so many groups; 0: each by itself.
            process_set: whose members' mean it is; the others update by their own gradients.

        Raises: TypeError, ValueError: what was given.
        """
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(
                f"hvd.DistributedOptimizer: given a {type(optimizer).__name__}, expected an optimizer of MXNet's, such "
                "as mx.optimizer.create('sgd')"
            )
        mean = GroupedMean(gradient_predivide_factor, num_groups, process_set)
        self.__setstate__({"_optimizer": optimizer, "_mean": mean})

    def __getattr__(self, item: str) -> Any:
        if item in _OWN:  # while it is unpickled
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def __setattr__(self, item: str, value: Any) -> None:
        setattr(self._optimizer, item, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def create_state(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Sums grad in place, and updates weight, as MXNet's optimizers do.

        Raises: as hvd.allreduce().
        """
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As update()."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        self._optimizer.set_wd_mult(args_wd_mult)

    def _average(self, index: Any, grad: Any) -> None:
        if isinstance(index, list | tuple):
            self._mean([str(one) for one in index], list(grad))
        else:
            self._mean([str(index)], [grad])


class GroupedMean:
    """The mean of gradients over the members of a process set, in place; none where this rank is no member."""

    def __init__(self, predivide: float, num_groups: int, process_set: ProcessSet) -> None:
        """Raises ValueError: what cannot be."""
        if not predivide > 0:
            raise ValueError(f"hvd: gradient_predivide_factor={predivide!r}: expected a number above 0")
        if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
            raise ValueError(f"hvd: num_groups={num_groups!r}: expected 0 or more")
        self._scales = (1.0 / predivide, predivide)
        self._num_groups = num_groups
        self._process_set = process_set

    def __call__(self, names: Sequence[str], gradients: Sequence[Any]) -> None:
        """Starts the sums; who reads a gradient waits for its own."""
        if not self._process_set.included() or len(self._process_set.members()) == 1:
            return
        before, after = self._scales
        if self._num_groups == 0:
            for place, (name, gradient) in enumerate(zip(names, gradients, strict=True)):
                allreduce_(gradient, None, name, -place, before, after, self._process_set)
            return
        begin = 0
        for place, size in enumerate(near_equal(len(names), self._num_groups)):
            if size:
                end = begin + size
                name = f"{names[begin]}:{names[end - 1]}"
                grouped_allreduce_(gradients[begin:end], None, name, -place, before, after, self._process_set)
                begin = end
