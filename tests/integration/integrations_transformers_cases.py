"""What two ranks do in integrations_test.py with the Trainer of transformers.

python -m torch.distributed.run --nproc-per-node 2 integrations_transformers_cases.py [resume]
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gradwire.torch
import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from gradwire.integrations.transformers import CompressGradients
from integrations_training import SAVED, STEPS, leave_the_store, require_equal, require_near, weights_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_programs import case, run_cases_in_a_group, say
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

FOLDER = Path(os.environ["TEST_FOLDER"]) / "transformers"
LENGTH, WORDS = 16, 64

logging.set_verbosity_error()


class Sentences(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Each word of a sentence is the one before it plus a step that the sentence keeps."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        ids = (number + torch.arange(LENGTH) * (1 + number % 3)) % WORDS
        return {"input_ids": ids, "labels": ids}


def network() -> GPT2LMHeadModel:
    torch.manual_seed(11)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config)  # with dropout, whose random numbers a checkpoint has, too


def job(*callbacks: TrainerCallback, steps: int = STEPS, **options: Any) -> Trainer:
    given = {
        "output_dir": str(FOLDER),
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "optim": "adamw_torch",
        "max_steps": steps,
        "per_device_train_batch_size": 8,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "lr_scheduler_type": "constant",
        **options,
    }
    return Trainer(
        network(), TrainingArguments(**given), train_dataset=Sentences(), callbacks=list(callbacks)
    )


def trained(*callbacks: TrainerCallback, **options: Any) -> Trainer:
    """Trained before another job is made, which seeds all random numbers."""
    trainer = job(*callbacks, **options)
    trainer.train()
    return trainer


def losses_of(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@case
def none_has_the_bits_of_plain_ddp() -> None:
    """Also with gradients that are accumulated and clipped."""
    options = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1}
    plain = trained(**options)
    ours = trained(CompressGradients("none"), **options)
    require_equal(plain.model, ours.model)
    leave_the_store()


@case
def int8_sends_a_quarter_and_learns_as_well() -> None:
    plain = trained(steps=60)
    callback = CompressGradients()
    ours = trained(callback, steps=60)
    assert callback.hook_state is not None
    stats = callback.hook_state.stats()
    assert 0.25 < stats["bytes_encoded"] / stats["bytes_raw"] < 0.30, stats
    require_near(losses_of(ours), losses_of(plain))
    leave_the_store()


@case
def a_second_training_keeps_the_hook() -> None:
    """The Trainer keeps its DistributedDataParallel; another Trainer wraps the same network once more."""
    callback = CompressGradients()
    trainer = trained(callback, steps=2)
    first = callback.hook_state
    trainer.train()
    assert callback.hook_state is first
    other = CompressGradients("int4")
    again = job(other, steps=2)
    again.model = again.model_wrapped = trainer.model
    again.train()
    assert other.hook_state is not None
    assert other.hook_state is not first
    leave_the_store()


@case
def a_run_that_saves_and_goes_on() -> None:
    trainer = trained(CompressGradients(), save_strategy="steps", save_steps=SAVED)
    if dist.get_rank() == 0:
        torch.save(list(trainer.model.parameters()), weights_file("transformers"))
    folder = FOLDER / f"checkpoint-{SAVED}"
    assert (folder / "gradwire").is_dir()
    # To go back in the same process is possible, without the residuals.
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        job(CompressGradients()).train(resume_from_checkpoint=str(folder))
    texts = [str(each.message) for each in said if "gradwire" in str(each.message)]
    assert len(texts) == (dist.get_rank() == 0)
    assert all("has sent gradients already" in text for text in texts)
    leave_the_store()
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.copytree(folder, FOLDER.with_name("moved"))
    dist.barrier()


@case
def residuals_of_another_training_are_left_and_that_is_said() -> None:
    """Of the same step, in the output_dir of a Trainer that resumes from a folder elsewhere."""
    folders = [str(FOLDER.with_name(name)) for name in ("one", "other")]
    for folder, rate in zip(folders, (3e-3, 3e-2), strict=True):
        trained(
            CompressGradients(),
            steps=2,
            output_dir=folder,
            save_strategy="steps",
            save_steps=2,
            learning_rate=rate,
        )
        leave_the_store()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer = job(CompressGradients(), steps=3, output_dir=folders[0])
        trainer.train(resume_from_checkpoint=f"{folders[1]}/checkpoint-2")
    texts = [str(each.message) for each in said if "gradwire" in str(each.message)]
    assert len(texts) == (dist.get_rank() == 0), texts
    assert all("one/checkpoint-2' is of another training than the one that resumes" in text for text in texts)
    leave_the_store()


@case
def checkpoints_of_weights_alone_have_no_residuals() -> None:
    folder = FOLDER.with_name("only_model")
    trained(
        CompressGradients(), output_dir=str(folder), save_strategy="steps", save_steps=2, save_only_model=True
    )
    assert (folder / "checkpoint-2").is_dir()
    assert not (folder / "checkpoint-2" / "gradwire").exists()
    leave_the_store()


@case
def misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown codec int9; did you mean int8"):
        CompressGradients("int9")
    with pytest.raises(
        TypeError, match="CompressGradients has no option 'ratio'; it has codec, codecs, warm_up"
    ):
        CompressGradients("topk", ratio=0.1)

    class Unwrapped(Trainer):
        def _prepare_for_training(self, *given: Any) -> Any:
            prepared = super()._prepare_for_training(*given)
            self.callback_handler.model = nn.Linear(1, 1)  # as of one that FSDP has wrapped
            return prepared

    trainer = job(CompressGradients())
    trainer.__class__ = Unwrapped
    with pytest.raises(ValueError, match="has not wrapped its model in a DistributedDataParallel"):
        trainer.train()

    class Hooked(TrainerCallback):
        """A script's own."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            (model,) = (each for each in all_ddp() if each.module is objects["model"])
            model.register_comm_hook(gradwire.torch.HookState("none"), gradwire.torch.ddp_hook)

    with pytest.raises(ValueError, match="has a communication hook already"):
        trained(Hooked(), CompressGradients())
    leave_the_store()


def all_ddp() -> list[DistributedDataParallel]:
    import gc

    return [each for each in gc.get_objects() if type(each) is DistributedDataParallel]


def resume() -> None:
    """From the folder that was written, and from one that was moved."""
    dist.init_process_group("gradwire")  # the Trainer takes a group that is there
    moved = str(FOLDER.with_name("moved"))
    elsewhere = {"output_dir": str(FOLDER.with_name("elsewhere")), "resume_from_checkpoint": moved}
    for options, folder in (({}, str(FOLDER / f"checkpoint-{SAVED}")), (elsewhere, moved)):
        trainer = job(CompressGradients(), **options)
        trainer.train(resume_from_checkpoint=folder)
        for ours, theirs in zip(
            trainer.model.parameters(), torch.load(weights_file("transformers")), strict=True
        ):
            assert torch.equal(ours, theirs)
        leave_the_store()
    say("went on bit for bit")
    trainer = trained(steps=1)
    policy = gradwire.torch.group_compression()
    assert policy is not None
    assert policy.state_of(trainer.model_wrapped).state_dict()["residuals"]
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(ValueError, match="assigned backend gradwire is not available, please use gloo"):
        TrainingArguments(output_dir=str(FOLDER), use_cpu=True, ddp_backend="gradwire").device  # noqa: B018


if __name__ == "__main__":
    run_cases_in_a_group() if len(sys.argv) == 1 else resume()
