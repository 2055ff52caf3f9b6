"""The DistributedDataParallel that a HookState is registered with: what its parameters are called, and which of them no
rank used in a step.

DDP hands its hook the state and one bucket after another, and nothing of itself.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable

import torch
from torch.nn.parallel import DistributedDataParallel


class HookedModel:
    """The model of one HookState, looked for among all objects of the process."""

    def __init__(self, state: object) -> None:
        self._state = weakref.ref(state)
        self._found: weakref.ref[DistributedDataParallel] | None = None

    def find(self) -> DistributedDataParallel | None:
        """Looks for the model, unless it is known: that goes through all objects. None where no DistributedDataParallel
        says that it has this state, as where a Reducer was made by hand.
        """
        if self._ddp is None and (found := _model_with(self._state())) is not None:
            self._found = weakref.ref(found)
        return self._ddp

    def require_found(self) -> None:
        """Looks for the model, and warns where there is none."""
        if self.find() is None:
            warnings.warn(
                "gradwire.torch: HookState: it has got a bucket, and no DistributedDataParallel has it as the state of "
                "its communication hook. So parameters that it was given no names of are numbered, no bucket is sent "
                "before the last one, and residuals of layers that no rank uses may be lost; give the HookState itself "
                "to model.register_comm_hook(state, gradwire.torch.ddp_hook)",
                RuntimeWarning,
                stacklevel=2,
            )

    @property
    def _ddp(self) -> DistributedDataParallel | None:
        return None if self._found is None else self._found()

    def names(self) -> dict[torch.Tensor, str]:
        """What the module inside DDP calls its parameters; empty where there is none."""
        ddp = self.find()
        return {} if ddp is None else {parameter: name for name, parameter in ddp.module.named_parameters()}

    @property
    def leaves_out_buckets(self) -> bool:
        """Whether a step may lack buckets, or bring some that no step before had."""
        return self._ddp is None or getattr(self._ddp, "skip_all_reduce_unused_params", False)

    @property
    def may_be_unused(self) -> bool:
        """Whether a step may have parameters that no rank uses, without an error of DDP's."""
        ddp = self._ddp
        return ddp is None or ddp.find_unused_parameters or ddp.static_graph

    def unused(self, in_buckets: Collection[torch.Tensor]) -> set[torch.Tensor]:
        """Returns parameters that no rank used in the step whose backward() has ended: DDP leaves their p.grad as it
        was, whatever the hook made of their buckets.

        Args:
            in_buckets: all parameters that DDP has ever handed the hook.
        """
        ddp = self._ddp
        if ddp is None or not self.may_be_unused:
            return set()
        uses = ddp.reducer._get_local_used_map().tolist()  # by rank added up, in the reducer's order
        known = set(in_buckets)
        once = dict.fromkeys(ddp.module.parameters())
        for order in (
            [parameter for parameter in once if parameter in known],
            [parameter for parameter in once if parameter.requires_grad],  # some never came in a bucket
        ):
            if len(order) == len(uses):
                return {parameter for parameter, count in zip(order, uses, strict=True) if count == 0}
        return set()


def models_around(module: torch.nn.Module) -> list[DistributedDataParallel]:
    """Returns all DistributedDataParallels that wrap this module. Goes through all objects of the process."""
    return _models_that(lambda ddp: ddp.module is module)


def _model_with(state: object) -> DistributedDataParallel | None:
    if state is None:
        return None
    return next(iter(_models_that(lambda ddp: any(own is state for _, own in ddp._comm_hooks))), None)


def _models_that(fit: Callable[[DistributedDataParallel], bool]) -> list[DistributedDataParallel]:
    """Returns those among all objects of the process, and where there are none, among those that are frozen too."""
    found = list(filter(fit, _models(gc.get_objects())))
    if not found and gc.get_freeze_count() > 0:  # get_objects() leaves out what gc.freeze() has put away
        gc.unfreeze()
        try:
            found = list(filter(fit, _models(gc.get_objects())))
        finally:
            gc.freeze()
    return found


def _models(objects: Iterable[object]) -> Iterable[DistributedDataParallel]:
    for each in objects:
        # By type: isinstance() asks the object, which may be a proxy of something that is gone.
        if issubclass(type(each), DistributedDataParallel) and hasattr(each, "_comm_hooks"):
            yield each  # type: ignore[misc]
