"""What two ranks do in integrations_test.py with Accelerate.

python -m torch.distributed.run --nproc-per-node 2 integrations_accelerate_cases.py [resume]
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gradwire.torch
import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs
from gradwire.integrations.accelerate import GradientCompression, compress_gradients
from integrations_training import (
    BATCH,
    SAVED,
    STEPS,
    batch,
    leave_the_store,
    mean_over_ranks,
    mlp,
    require_near,
    weights_file,
)
from torch import nn
from torch_programs import case, run_cases_in_a_group, say


class Job:
    """A script that uses Accelerate, with or without gradwire."""

    def __init__(self, codec: str | None, scaler: Any = None, **given: Any) -> None:
        options = given.pop("options", {})
        self.accelerator = Accelerator(cpu=True, **given)
        self.accelerator.scaler = scaler  # fp16 needs a GPU in Accelerate; the scaler does not
        self.compression: GradientCompression | None = None
        if codec is not None:
            self.compression = compress_gradients(self.accelerator, codec, **options)
        net = mlp()
        self.model, self.optimizer = self.accelerator.prepare(
            net, torch.optim.AdamW(net.parameters(), lr=3e-3)
        )
        self.losses: list[float] = []

    def train(self, steps: range, max_norm: float | None = None, parts: int = 1) -> None:
        for step in steps:
            for part in torch.arange(BATCH).chunk(parts):
                with self.accelerator.accumulate(self.model):
                    x, y = (each[part] for each in batch(step))
                    loss = nn.functional.cross_entropy(self.model(x), y)
                    self.accelerator.backward(loss)
                    if max_norm is not None and self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(self.model.parameters(), max_norm)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            self.losses.append(mean_over_ranks(loss))

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.accelerator.unwrap_model(self.model).parameters()]


def require_equal(one: Job, other: Job) -> None:
    for a, b in zip(one.weights(), other.weights(), strict=True):
        assert torch.equal(a, b)


@case
def none_has_the_bits_of_plain_ddp() -> None:
    plain, ours = Job(None), Job("none")
    for job in (plain, ours):
        job.train(range(6))
    require_equal(plain, ours)


@case
def accumulation_and_clipping_keep_working() -> None:
    plain, ours = (Job(codec, gradient_accumulation_steps=2) for codec in (None, "none"))
    for job in (plain, ours):
        job.train(range(6), max_norm=0.1, parts=2)
    require_equal(plain, ours)
    assert ours.compression is not None
    (state,) = ours.compression.states
    sent = state.stats()["bytes_encoded"]
    with ours.accelerator.no_sync(ours.model):
        ours.model(batch(9)[0]).sum().backward()
    assert state.stats()["bytes_encoded"] == sent
    leave_the_store()


@case
def int8_sends_a_quarter_and_learns_as_well() -> None:
    plain, ours = Job(None), Job("int8")
    for job in (plain, ours):
        job.train(range(60))
    assert ours.compression is not None
    (state,) = ours.compression.states
    stats = state.stats()
    assert 0.25 < stats["bytes_encoded"] / stats["bytes_raw"] < 0.28, stats
    require_near(ours.losses, plain.losses)
    leave_the_store()


@case
def a_loss_scale_changes_no_bit() -> None:
    """A scale is a power of two, and residuals are those of gradients without it."""
    scaled = Job("int8", torch.amp.GradScaler("cpu", init_scale=2.0**12))
    plain = Job("int8")
    for job in (scaled, plain):
        job.train(range(6))
    require_equal(scaled, plain)
    leave_the_store()


@case
def ddps_own_arguments_are_kept() -> None:
    handler = DistributedDataParallelKwargs(gradient_as_bucket_view=True, find_unused_parameters=True)
    job = Job(
        "int8", kwargs_handlers=[handler], options={"codecs": {"0.*": "fp16"}, "warm_up": [("none", 1)]}
    )
    assert job.model.gradient_as_bucket_view
    assert job.model.find_unused_parameters
    job.train(range(2))
    leave_the_store()


@case
def several_models_have_a_state_each() -> None:
    """As the two of a GAN."""
    accelerator = Accelerator(cpu=True)
    compression = compress_gradients(accelerator)
    folder = weights_file("accelerate").with_name("two_models")
    models = [accelerator.prepare(mlp()) for _ in range(2)]
    for model in models:
        model(batch(0)[0]).sum().backward()
    assert len(compression.states) == 2
    accelerator.save_state(str(folder))
    before = [state.state_dict()["residuals"] for state in compression.states]
    leave_the_store()

    accelerator = Accelerator(cpu=True)
    compression = compress_gradients(accelerator)
    models = [accelerator.prepare(mlp()) for _ in range(2)]
    accelerator.load_state(str(folder))
    for state, residuals in zip(compression.states, before, strict=True):
        for name, residual in state.state_dict()["residuals"].items():
            assert torch.equal(residual, residuals[name])
    leave_the_store()


@case
def models_that_were_freed_are_no_part_of_checkpoints() -> None:
    """As after a step that ran out of memory."""
    accelerator = Accelerator(cpu=True)
    compression = compress_gradients(accelerator)
    first = accelerator.prepare(mlp())
    first(batch(0)[0]).sum().backward()
    (state,) = compression.states
    accelerator.free_memory()
    again = accelerator.prepare(mlp())
    again(batch(0)[0]).sum().backward()
    (other,) = compression.states
    assert other is not state
    assert other.state_dict()["residuals"]
    leave_the_store()


@case
def so_are_those_that_were_freed_with_a_frozen_one() -> None:
    """As of a distillation: the teacher, which has no hook, is prepared first."""
    accelerator = Accelerator(cpu=True)
    compression = compress_gradients(accelerator)
    teacher = mlp().requires_grad_(False)
    for _ in range(2):
        accelerator.prepare_model(teacher, evaluation_mode=True)
        student, other = (accelerator.prepare(mlp()) for _ in range(2))
        for model in (student, other):
            model(batch(0)[0]).sum().backward()
        assert len(compression.states) == 2, compression.states
        assert all(state.state_dict()["residuals"] for state in compression.states)
        accelerator.free_memory()
    leave_the_store()


@case
def a_checkpoint_that_does_not_fit_is_left_and_that_is_said() -> None:
    """Of a process that had trained another model before: its keys are in the checkpoint, too."""
    folder = str(weights_file("accelerate").with_name("accelerate_second"))
    for _ in range(2):
        job = Job("int8")
        job.train(range(2))
    job.accelerator.save_state(folder)
    leave_the_store()
    later = Job("int8")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        later.accelerator.load_state(folder)
    texts = [str(each.message) for each in said if "gradwire" in str(each.message)]
    assert len(texts) == (later.accelerator.process_index == 0), texts
    assert all("the checkpoint has key 'gradient.1." in text for text in texts)
    require_equal(later, job)
    later.train(range(2))
    leave_the_store()


@case
def a_run_that_saves_and_goes_on() -> None:
    job = Job("int8")
    job.train(range(SAVED))
    job.accelerator.save_state(str(weights_file("accelerate").with_name("accelerate_saved")))
    job.train(range(SAVED, STEPS))
    if job.accelerator.process_index == 0:
        torch.save(job.weights(), weights_file("accelerate"))
    # To go back in the same process is possible, without the residuals.
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        job.accelerator.load_state(str(weights_file("accelerate").with_name("accelerate_saved")))
    texts = [str(each.message) for each in said if "gradwire" in str(each.message)]
    assert len(texts) == (job.accelerator.process_index == 0)
    assert all("has sent gradients already" in text for text in texts)
    assert job.compression is not None
    assert not any(r.any() for r in job.compression.states[0].state_dict()["residuals"].values())
    job.train(range(SAVED, STEPS))
    went_on = torch.load(weights_file("accelerate")) if job.accelerator.process_index == 0 else []
    assert not any(torch.equal(a, b) for a, b in zip(job.weights(), went_on, strict=False))
    leave_the_store()


@case
def a_checkpoint_without_residuals_is_said() -> None:
    plain = Job(None)
    folder = str(weights_file("accelerate").with_name("accelerate_plain"))
    plain.accelerator.save_state(folder)
    job = Job("int8")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        job.accelerator.load_state(folder)
    texts = [str(each.message) for each in said if "gradwire" in str(each.message)]
    assert len(texts) == (job.accelerator.process_index == 0)
    assert all("accelerate_plain/gradwire': it was saved without gradwire" in text for text in texts)
    job.accelerator.save_state(folder)  # before any step
    leave_the_store()


@case
def ranks_of_a_host_sum_first() -> None:
    """Both ranks are one host. A state that was saved so is left where the layout is another, and that is said."""
    folder = str(weights_file("accelerate").with_name("accelerate_host"))
    whole, job = Job(None), Job("none", options={"local_group": 2})
    for each in (whole, job):
        each.train(range(4))
    for a, b in zip(whole.weights(), job.weights(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    job.accelerator.save_state(folder)
    leave_the_store()
    for options, said in (({}, 1), ({"local_group": 2}, 0)):
        later = Job("none", options=options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            later.accelerator.load_state(folder)
        texts = [str(each.message) for each in caught if "has 2 shards, and this job 1" in str(each.message)]
        assert len(texts) == said * (later.accelerator.process_index == 0), texts
        leave_the_store()


@case
def misuse_is_refused() -> None:
    accelerator = Accelerator(cpu=True)
    with pytest.raises(ValueError, match="local_group is 0, expected how many ranks each host has"):
        compress_gradients(accelerator, local_group=0)
    with pytest.raises(ValueError, match="unknown codec int9; did you mean int8"):
        compress_gradients(accelerator, "int9")
    with pytest.raises(TypeError, match="compress_gradients has no option 'momentum'; it has codec, codecs"):
        compress_gradients(accelerator, momentum=0.9)
    with pytest.raises(TypeError, match=r"accelerator is a Linear, expected an accelerate\.Accelerator"):
        compress_gradients(nn.Linear(1, 1))  # type: ignore[arg-type]
    compress_gradients(accelerator)
    with pytest.raises(ValueError, match="was called with this accelerator before; call it once"):
        compress_gradients(accelerator)
    hooked = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
    with pytest.raises(ValueError, match="has comm_hook='fp16', and DistributedDataParallel takes one hook"):
        compress_gradients(Accelerator(cpu=True, kwargs_handlers=[hooked]))
    late = Accelerator(cpu=True)
    late.prepare(mlp())
    with pytest.raises(ValueError, match=r"has prepared 1 model\(s\) already; call it before accelerator"):
        compress_gradients(late)


def resume() -> None:
    dist.init_process_group("gradwire")  # Accelerate takes a group that is there
    job = Job("int8")
    job.accelerator.load_state(str(weights_file("accelerate").with_name("accelerate_saved")))
    job.train(range(SAVED, STEPS))
    for ours, theirs in zip(job.weights(), torch.load(weights_file("accelerate")), strict=True):
        assert torch.equal(ours, theirs)
    say("went on bit for bit")
    plain = Job(None)
    plain.train(range(1))
    policy = gradwire.torch.group_compression()
    assert policy is not None
    assert policy.state_of(plain.model).state_dict()["residuals"]


if __name__ == "__main__":
    run_cases_in_a_group() if len(sys.argv) == 1 else resume()
