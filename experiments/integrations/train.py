"""Trains one small GPT by one framework on two ranks: plain, or with gradwire's integration. run.py starts it.

python -m torch.distributed.run --nproc-per-node 2 train.py lightning int8 --folder checkpoints --json record.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "char_lm"))

import text
import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel

BATCH = 8  # windows of 64 characters, for each rank
LEARNING_RATE = 1e-3


def network(seed: int) -> GPT2LMHeadModel:
    """Has 110 336 parameters, and no dropout, so that runs are pairs."""
    torch.manual_seed(seed)
    size = {"vocab_size": 96, "n_positions": text.WINDOW, "n_embd": 64, "n_layer": 2, "n_head": 4}
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**size, **none))


@dataclass
class Run:
    """What a framework is to do, and what it reports.

    Attributes:
        codec: None: the framework alone.
        save_after, kill_after: steps; 0: never.
        losses: of this rank, by step.
        state: the HookState, once training has begun.
    """

    codec: str | None
    seed: int
    steps: int
    folder: Path
    save_after: int
    kill_after: int
    resumes: bool
    windows: torch.Tensor
    losses: list[float] = field(default_factory=list)
    state: Any = None

    def batch(self, step: int) -> torch.Tensor:
        """A rank's windows in a step: other ones in each, also where training resumes."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + step) * 2 + dist.get_rank())
        return self.windows[torch.randint(len(self.windows), (BATCH,), generator=generator)]

    def after_step(self, step: int, loss: torch.Tensor) -> None:
        """Counts a step, or dies as by a power failure."""
        self.losses.append(float(loss.detach()))
        if self.kill_after and step + 1 == self.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)


def accelerate(run: Run) -> torch.nn.Module:
    from accelerate import Accelerator
    from gradwire.integrations.accelerate import compress_gradients  # gradwire

    accelerator = Accelerator(cpu=True)
    if run.codec is not None:
        compression = compress_gradients(accelerator, run.codec)  # gradwire
    model = network(run.seed)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE))
    if run.resumes:
        accelerator.load_state(str(run.folder))
    for step in range(run.save_after if run.resumes else 0, run.steps):
        ids = run.batch(step)
        loss = model(input_ids=ids[:, :-1], labels=ids[:, :-1]).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == run.save_after and not run.resumes:
            accelerator.save_state(str(run.folder))
        run.after_step(step, loss)
    if run.codec is not None:
        (run.state,) = compression.states
    return accelerator.unwrap_model(model)


def lightning(run: Run) -> torch.nn.Module:
    from gradwire.integrations.lightning import CompressedDDPStrategy  # gradwire
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(run.seed)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            ids = run.batch(self.global_step)[:, :-1]
            loss: torch.Tensor = self.net(input_ids=ids, labels=ids).loss
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            run.after_step(self.global_step - 1, outputs["loss"])

        def train_dataloader(self) -> torch.utils.data.DataLoader[Any]:
            return torch.utils.data.DataLoader(torch.arange(2 * run.steps))  # type: ignore[arg-type]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=LEARNING_RATE)

    strategy: Any = "ddp"
    if run.codec is not None:
        strategy = CompressedDDPStrategy(codec=run.codec)  # gradwire
    saving = ModelCheckpoint(
        run.folder, filename="saved", every_n_train_steps=run.save_after or run.steps + 1
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        max_steps=run.steps,
        strategy=strategy,
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, ckpt_path=run.folder / "saved.ckpt" if run.resumes else None, weights_only=False)
    run.state = getattr(strategy, "hook_state", None)
    return module.net


def transformers(run: Run) -> torch.nn.Module:
    from gradwire.integrations.transformers import CompressGradients  # gradwire
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Windows(torch.utils.data.Dataset[Any]):
        """Holds all steps of both ranks in order: the Trainer deals its batches out in turns."""

        def __len__(self) -> int:
            return 2 * BATCH * run.steps

        def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
            ids = run.batch(place // (2 * BATCH))[place % BATCH, :-1]
            return {"input_ids": ids, "labels": ids}

    class InOrder(Trainer):
        def _get_train_sampler(self, *given: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    class Steps(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **objects: Any) -> None:
            if "loss" in logs:
                run.after_step(state.global_step - 1, torch.tensor(logs["loss"]))

    callbacks: list[Any] = [Steps()]
    if run.codec is not None:
        callbacks += [compress := CompressGradients(codec=run.codec)]  # gradwire
    args = TrainingArguments(
        output_dir=str(run.folder),
        use_cpu=True,
        max_steps=run.steps,
        per_device_train_batch_size=BATCH,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.01,  # torch's default, which the other two have
        max_grad_norm=0,
        logging_steps=1,
        save_strategy="steps" if run.save_after else "no",
        save_steps=run.save_after or 1,
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
        seed=run.seed,
    )
    trainer = InOrder(network(run.seed), args, train_dataset=Windows(), callbacks=callbacks)
    saved = str(run.folder / f"checkpoint-{run.save_after}")
    trainer.train(resume_from_checkpoint=saved if run.resumes else None)
    run.state = compress.hook_state if run.codec is not None else None
    return trainer.model  # type: ignore[no-any-return]


FRAMEWORKS: dict[str, Callable[[Run], torch.nn.Module]] = {
    "accelerate": accelerate,
    "lightning": lightning,
    "transformers": transformers,
}


def lines_changed() -> dict[str, int]:
    """Counts what a script adds for gradwire: the lines that say so, by framework."""
    return dict(zip(FRAMEWORKS, _marked(Path(__file__).read_text(encoding="utf-8")), strict=True))


def _marked(source: str) -> Iterator[int]:
    for name in FRAMEWORKS:
        body = source.split(f"\ndef {name}(")[1].split("\ndef ")[0]
        yield sum(line.rstrip().endswith("# gradwire") for line in body.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("codec", help="plain: the framework alone")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="of checkpoints")
    parser.add_argument("--save-after", type=int, default=0)
    parser.add_argument("--kill-after", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run = Run(
        None if given.codec == "plain" else given.codec,
        *(given.seed, given.steps, given.folder, given.save_after, given.kill_after, given.resume),
        text.load().train,
    )
    model = FRAMEWORKS[given.framework](run)
    last = torch.tensor(run.losses[-50:]).mean()
    dist.all_reduce(last)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    stats = run.state.stats(residuals=False) if run.state is not None else None
    record = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": round(last.item() / 2, 4),
        "loss_first_step": round(run.losses[0], 4),
        "bytes_per_step": stats and round(stats["bytes_encoded"] / len(run.losses)),
        "bytes_uncompressed": stats and round(stats["bytes_raw"] / len(run.losses)),
        "weights": digest.hexdigest()[:16],
    }
    if dist.get_rank() == 0:
        given.json.write_text(json.dumps(record), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
