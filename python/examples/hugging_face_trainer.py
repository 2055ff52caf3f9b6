"""The Trainer of Hugging Face transformers with gradients compressed to 8 bits an element.

Start: torchrun --nproc-per-node 2 hugging_face_trainer.py
Or: gradwire run -n 2 python hugging_face_trainer.py
"""

import tempfile

import torch
from gradwire.integrations.transformers import CompressGradients
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

WORDS, LENGTH = 64, 16


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **objects):
        if "loss" in logs:
            print(f"rank {args.process_index} step {state.global_step}: loss {float(logs['loss']):.3f}")


torch.manual_seed(0)  # the same weights on every rank
size = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 64, "n_layer": 1, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
counting = [(start + torch.arange(LENGTH)) % WORDS for start in range(512)]
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        folder,
        max_steps=30,
        logging_steps=10,
        learning_rate=3e-3,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    data = [{"input_ids": row, "labels": row} for row in counting]
    Trainer(model, args, train_dataset=data, callbacks=[CompressGradients(codec="int8"), PrintLoss()]).train()
