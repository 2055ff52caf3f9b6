"""Compressed gradients for Hugging Face Accelerate.

    accelerator = Accelerator()
    compress_gradients(accelerator, codec="int8")
    model, optimizer, data = accelerator.prepare(model, optimizer, data)

`accelerator.save_state()` and `load_state()` include what the codec has not sent yet, in the folder `gradwire`.
"""

from __future__ import annotations

import os
from typing import Any

from gradwire.integrations.gradient_compression import GradientCompression, missing
from gradwire.torch import session

try:
    from accelerate import Accelerator
    from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs, DistributedType
except ModuleNotFoundError as error:
    if error.name != "accelerate":
        raise
    raise missing("accelerate") from error

__all__ = ["GradientCompression", "compress_gradients"]

_FOLDER = "gradwire"  # in the folder of save_state()
_NOT_DDP = {
    DistributedType.FSDP,
    DistributedType.DEEPSPEED,
    DistributedType.MEGATRON_LM,
    DistributedType.XLA,
}


def compress_gradients(
    accelerator: Accelerator, codec: session.Wanted = "int8", **options: Any
) -> GradientCompression:
    """Has `accelerator.prepare()` register gradwire's hook with each DistributedDataParallel that it makes.

    Call it on all ranks before prepare(). Gradient accumulation, clipping and mixed precision keep working: the scaler
    of fp16 is the accelerator's. In a job of one process it changes nothing.

    Args:
        accelerator: one that has prepared no model. A DistributedDataParallelKwargs among its kwargs_handlers is kept.
        codec: as of HookState. With Adam and AdamW use "int8". Default: "int8".
        options: codecs, warm_up, on_nonfinite, budget, row_column_scales and local_group, as of HookState. Default:
            as there.

    Returns: the compression. Its `states` has the HookState of each model after prepare().

    Raises:
        ValueError: the accelerator uses FSDP, DeepSpeed or another wrapper than DistributedDataParallel; or has
            prepared a model; or has a communication hook already; or an option is not valid.
        TypeError: an option is unknown or has the wrong type; or accelerator is something else.
    """
    compression = GradientCompression("compress_gradients", codec, options)
    _require_usable(accelerator)
    accelerator.ddp_handler = _Handler(accelerator, compression)
    accelerator.register_save_state_pre_hook(
        lambda models, weights, folder: compression.save(os.path.join(folder, _FOLDER))
    )
    accelerator.register_load_state_pre_hook(
        lambda models, folder: compression.load(os.path.join(folder, _FOLDER))
    )
    return compression


class _Handler:
    """What an Accelerator asks for DistributedDataParallel's arguments, and to register its communication hook.

    Not a DistributedDataParallelKwargs: Accelerator(kwargs_handlers=...) takes that class and none derived from it, and
    its arguments are all that its dataclass holds.
    """

    def __init__(self, accelerator: Accelerator, compression: GradientCompression) -> None:
        self._accelerator = accelerator
        self._given = accelerator.ddp_handler or DistributedDataParallelKwargs()
        self._compression = compression

    def to_kwargs(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = self._given.to_kwargs()
        return kwargs

    def register_comm_hook(self, model: Any) -> None:
        self._compression.close(kept=self._accelerator._models)  # of those before accelerator.free_memory()
        self._compression.register(model, self._accelerator.scaler)


def _require_usable(accelerator: Accelerator) -> None:
    who = "gradwire.integrations: compress_gradients:"
    if not isinstance(accelerator, Accelerator):
        raise TypeError(
            f"{who} accelerator is a {type(accelerator).__name__}, expected an accelerate.Accelerator"
        )
    if (kind := accelerator.distributed_type) in _NOT_DDP:
        raise ValueError(
            f"{who} the accelerator uses {kind.value}, expected DistributedDataParallel, whose buckets the hook "
            "compresses; leave the plugin out, or, with FSDP2, call gradwire.torch.compress_reduce_scatter(model) "
            "after prepare() instead"
        )
    if accelerator._models:
        raise ValueError(
            f"{who} the accelerator has prepared {len(accelerator._models)} model(s) already; call it before "
            "accelerator.prepare()"
        )
    given = accelerator.ddp_handler
    if isinstance(given, _Handler):
        raise ValueError(f"{who} it was called with this accelerator before; call it once")
    if given is not None and given.comm_hook != DDPCommunicationHookType.NO:
        raise ValueError(
            f"{who} the accelerator has comm_hook={given.comm_hook.value!r}, and DistributedDataParallel takes one "
            "hook; leave comm_hook out of DistributedDataParallelKwargs"
        )
