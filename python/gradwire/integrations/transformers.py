"""Compressed gradients for the Trainer of Hugging Face transformers.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[CompressGradients(codec="int8")])

A folder `checkpoint-STEP` includes what the codec has not sent yet, in its folder `gradwire`.
"""

from __future__ import annotations

import json
import os
from typing import Any

from gradwire.integrations.gradient_compression import GradientCompression, missing
from gradwire.torch import HookState, session
from gradwire.torch.ddp.model import models_around

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise missing("transformers") from error

__all__ = ["CompressGradients"]

_FOLDER = "gradwire"  # in the folder of a checkpoint
_STATE = "trainer_state.json"  # the Trainer's, there


class CompressGradients(TrainerCallback):
    """Has a Trainer compress its gradient sums.

    Gradient accumulation, clipping and mixed precision keep working. In a job of one process it changes nothing. A
    checkpoint of save_only_model, or of a hyperparameter search, is without residuals, as it cannot be resumed.
    """

    def __init__(self, codec: session.Wanted = "int8", **options: Any) -> None:
        """
        Args:
            codec: as of HookState. With Adam and AdamW use "int8". Default: "int8".
            options: codecs, warm_up, on_nonfinite, budget, row_column_scales and local_group, as of HookState. Default:
                as there.

        Raises:
            ValueError: an option is not valid.
            TypeError: an option is unknown or has the wrong type.
        """
        self._compression = GradientCompression("CompressGradients", codec, options)

    @property
    def hook_state(self) -> HookState | None:
        """The HookState of the model that is trained, such as for `stats()`; None before `train()`."""
        return self._compression.states[-1] if self._compression.states else None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """Registers the hook, and restores residuals where training resumes. Called by the Trainer on all ranks.

        Args:
            args: the Trainer's.
            state: how far training is.
            control: not changed.
            objects: of the Trainer, such as the model.

        Raises:
            ValueError: several processes train, and the Trainer uses FSDP, DeepSpeed or another wrapper than
                DistributedDataParallel; or that has a communication hook already.
        """
        if args.world_size == 1:
            return
        models = models_around(objects["model"])
        if not models:
            raise ValueError(
                "gradwire.integrations: CompressGradients: the Trainer has not wrapped its model in a "
                "DistributedDataParallel, whose buckets the hook compresses; leave out fsdp, deepspeed and other "
                "wrappers, or leave out CompressGradients"
            )
        if new := [model for model in models if not model._comm_hooks]:
            self._compression.close()  # of an earlier train()
            self._compression.register(new[-1], getattr(objects["optimizer"], "scaler", None))
        elif not self._compression.states:
            raise ValueError(
                "gradwire.integrations: CompressGradients: the Trainer's DistributedDataParallel has a communication "
                "hook already, and takes one; leave the other one out"
            )
        if state.global_step > 0:
            folder = _resumed_folder(args, state)
            self._compression.load(os.path.join(folder, _FOLDER), _reason_not_to_resume(folder, state))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """Adds residuals to the checkpoint that was written. Called by the Trainer on all ranks.

        Args:
            args, state, control, objects: as of on_train_begin().
        """
        if not (args.save_only_model or state.is_hyper_param_search):
            self._compression.save(os.path.join(_checkpoint(args, state), _FOLDER))


def _checkpoint(args: TrainingArguments, state: TrainerState) -> str:
    return os.path.join(str(args.output_dir), f"checkpoint-{state.global_step}")


def _resumed_folder(args: TrainingArguments, state: TrainerState) -> str:
    """Returns the checkpoint that has the residuals. The Trainer does not say which one it resumes from."""
    given = args.resume_from_checkpoint
    is_folder = given is not None and os.path.isdir(given)
    return str(given) if is_folder else _checkpoint(args, state)


def _reason_not_to_resume(folder: str, state: TrainerState) -> str | None:
    """Returns why a checkpoint is not the one that the Trainer resumes from; None where it may be."""
    path = os.path.join(folder, _STATE)
    if not os.path.isfile(path):
        return None
    there = TrainerState.load_from_json(path)
    # As text: a NaN is not equal to itself.
    histories = [json.dumps(each.log_history) for each in (there, state)]
    if there.global_step == state.global_step and histories[0] == histories[1]:
        return None
    return (
        f"the checkpoint {folder!r} is of another training than the one that resumes, by its {_STATE}; "
        "name the right one in TrainingArguments(resume_from_checkpoint=...)"
    )
