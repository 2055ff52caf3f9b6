"""What two ranks do in integrations_test.py with Lightning.

python -m torch.distributed.run --nproc-per-node 2 integrations_lightning_cases.py [resume]
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gradwire.torch
import pytest
import torch
import torch.distributed as dist
from gradwire.integrations.lightning import CompressedDDPStrategy
from integrations_training import (
    SAVED,
    STEPS,
    batch,
    leave_the_store,
    mean_over_ranks,
    mlp,
    require_equal,
    require_near,
    weights_file,
)
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader
from torch_programs import case, run_cases_in_a_group, say

FOLDER = Path(os.environ["TEST_FOLDER"]) / "lightning"
BATCHES = 60


class Module(LightningModule):
    """A script's model. Step n is on batch n of this rank, also where training resumes within an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.losses: list[float] = []

    def training_step(self, numbers: torch.Tensor) -> torch.Tensor:
        x, y = batch(self.global_step)
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.losses.append(mean_over_ranks(loss))
        return loss

    def train_dataloader(self) -> DataLoader[int]:
        return DataLoader(list(range(2 * BATCHES)), batch_size=1, shuffle=False)  # type: ignore[arg-type]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def trainer(strategy: DDPStrategy, steps: int, **options: Any) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    options = {"enable_checkpointing": False} | quiet | options
    return Trainer(accelerator="cpu", devices=2, strategy=strategy, max_steps=steps, **options)


def trained(strategy: DDPStrategy, steps: int = STEPS, **options: Any) -> Module:
    module = Module()
    trainer(strategy, steps, **options).fit(module)
    return module


@case
def none_has_the_bits_of_plain_ddp() -> None:
    """Also with gradients that are accumulated and clipped, and with arguments of DistributedDataParallel."""
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}
    plain = trained(DDPStrategy(), **options)
    ours = trained(CompressedDDPStrategy("none", find_unused_parameters=True), **options)
    require_equal(plain, ours)
    leave_the_store()


@case
def int8_sends_a_quarter_and_learns_as_well() -> None:
    plain = trained(DDPStrategy(), BATCHES)
    strategy = CompressedDDPStrategy()
    ours = trained(strategy, BATCHES)
    assert strategy.hook_state is not None
    stats = strategy.hook_state.stats()
    assert 0.25 < stats["bytes_encoded"] / stats["bytes_raw"] < 0.28, stats
    require_near(ours.losses, plain.losses)
    leave_the_store()


@case
def a_loss_scale_changes_no_bit() -> None:
    """A scale is a power of two, and residuals are those of gradients without it. Lightning has no 16-mixed on CPUs."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    class Float32(MixedPrecision):
        def autocast_context_manager(self) -> Any:
            return torch.autocast("cpu", enabled=False)

    scaled = trained(CompressedDDPStrategy(), plugins=[Float32("16-mixed", "cpu", scaler)])
    leave_the_store()
    plain = trained(CompressedDDPStrategy())
    assert scaler.get_scale() == 2.0**12
    require_equal(scaled, plain)
    leave_the_store()


@case
def weights_of_bfloat16_train() -> None:
    strategy = CompressedDDPStrategy("int8", precision_plugin=None, codecs={"net.0.*": "fp16"})

    class Cast(Module):
        def training_step(self, numbers: torch.Tensor) -> torch.Tensor:
            x, y = batch(self.global_step)
            return nn.functional.cross_entropy(self.net(x.bfloat16()).float(), y)

    module = Cast()
    trainer(strategy, STEPS, precision="bf16-true").fit(module)
    assert module.net[0].weight.dtype == torch.bfloat16
    leave_the_store()


@case
def a_second_fit_has_a_new_state() -> None:
    strategy = CompressedDDPStrategy()
    module = Module()
    one = trainer(strategy, 2)
    one.fit(module)
    first = strategy.hook_state
    one.fit_loop.epoch_loop.max_steps = 4
    one.fit(module)
    assert strategy.hook_state is not first
    leave_the_store()


@case
def a_run_that_saves_and_goes_on() -> None:
    """ModelCheckpoint removes what it no longer keeps, with its folder."""
    keeping = ModelCheckpoint(FOLDER, every_n_train_steps=SAVED, save_top_k=-1, save_last="link")
    dropping = ModelCheckpoint(FOLDER / "one", every_n_train_steps=1, save_top_k=1)
    module = Module()
    one = trainer(CompressedDDPStrategy(), STEPS, callbacks=[keeping, dropping], enable_checkpointing=True)
    one.fit(module)
    if dist.get_rank() == 0:
        torch.save(list(module.parameters()), weights_file("lightning"))
    one.save_checkpoint(FOLDER / "weights.ckpt", weights_only=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        one.save_checkpoint("memory://there.ckpt")
    assert sum("memory://there.ckpt is no local file" in str(each.message) for each in said) == (
        dist.get_rank() == 0
    )
    dist.barrier()
    saved = [f"epoch=0-step={step}.ckpt" for step in (SAVED, STEPS)]
    expected = sorted([*saved, *(f"{name}.gradwire" for name in saved), "last.ckpt", "one", "weights.ckpt"])
    assert sorted(os.listdir(FOLDER)) == expected
    assert sorted(os.listdir(FOLDER / "one")) == [saved[1], f"{saved[1]}.gradwire"]
    # To go back in the same process is possible, without the residuals.
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer(CompressedDDPStrategy(), STEPS).fit(Module(), ckpt_path=FOLDER / saved[0], weights_only=False)
    texts = [str(each.message) for each in said if "gradwire.integrations" in str(each.message)]
    assert len(texts) == (dist.get_rank() == 0)
    assert all("has sent gradients already" in text for text in texts)
    leave_the_store()


@case
def misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="CompressedDDPStrategy: ddp_comm_hook was given, and a Distributed"):
        CompressedDDPStrategy(ddp_comm_hook=gradwire.torch.ddp_hook)
    with pytest.raises(ValueError, match="unknown codec int9; did you mean int8"):
        CompressedDDPStrategy("int9")
    with pytest.raises(ValueError, match="CompressedDDPStrategy: on_nonfinite='stop': expected warn"):
        CompressedDDPStrategy(on_nonfinite="stop")


def resume() -> None:
    module = Module()
    one = trainer(CompressedDDPStrategy(process_group_backend="gradwire"), STEPS)
    one.fit(module, ckpt_path=FOLDER / f"epoch=0-step={SAVED}.ckpt", weights_only=False)
    for ours, theirs in zip(module.parameters(), torch.load(weights_file("lightning")), strict=True):
        assert torch.equal(ours, theirs)
    say("went on bit for bit")

    class Compressed(Module):
        """By the policy of its process group, which finds a model in its first forward pass."""

        def on_train_end(self) -> None:
            policy = gradwire.torch.group_compression()
            assert policy is not None
            assert policy.state_of(self.trainer.model).state_dict()["residuals"]

    trainer(DDPStrategy(), 1).fit(Compressed())


if __name__ == "__main__":
    run_cases_in_a_group() if len(sys.argv) == 1 else resume()
