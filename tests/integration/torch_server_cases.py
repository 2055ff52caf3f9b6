"""What two ranks with two servers do in torch_ranks_test.py: the basics, beside DistributedDataParallel where it is an
oracle.

python torch_server_cases.py FOLDER    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_programs import CASES, Net, case


def wrap(model: nn.Module, store: gw.kv.KVStore, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), store=store, **options)


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 3, 7, 7, generator=generator), torch.randint(0, 4, (6,), generator=generator)


def backward(model: nn.Module, seed: int) -> None:
    images, labels = batch(seed)
    nn.functional.cross_entropy(model(images), labels).backward()


def equal_models() -> tuple[nn.Module, nn.Module]:
    """One to wrap in gradwire, one in DDP, with the same weights on all ranks."""
    torch.manual_seed(0)
    model = Net()
    return model, DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=True)


def used(model: nn.Module) -> list[torch.Tensor]:
    return [p for name, p in model.named_parameters() if "unused" not in name]


def require_close(ours: nn.Module, theirs: nn.Module, what: Callable[..., Any], **allowed: float) -> None:
    for a, b in zip(used(ours), used(theirs), strict=True):
        # By default what two float32 sums of the same values, taken in another order, are apart.
        torch.testing.assert_close(what(a), what(b), **(allowed or {"rtol": 2e-6, "atol": 1e-7}))


@case
def gradients_and_weights_are_ddps(store: gw.kv.KVStore) -> None:
    """Gradients after backward() and weights after step() are DDP's, however gradients were cleared."""
    for kind, options in ((torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (torch.optim.AdamW, {"lr": 0.01})):
        ours, theirs = equal_models()
        oracle = kind(theirs.parameters(), **options)
        optimizer = kind(ours.parameters(), **options)
        optimizer = gw.torch.DistributedOptimizer(optimizer, ours.named_parameters(), store=store)
        for step in range(6):
            for model, each in ((ours, optimizer), (theirs, oracle)):
                each.zero_grad(set_to_none=step % 2 == 0)
                backward(model, 10 * step + store.rank)
            require_close(ours, theirs, lambda p: p.grad)
            optimizer.step()
            oracle.step()
        # Adam divides by the root of tiny numbers, so weights may be further apart than gradients.
        require_close(ours, theirs, lambda p: p, rtol=1e-4, atol=1e-5)
        assert all(bool((p.grad == 0).all()) for p in ours.unused.parameters())
        optimizer.close()


@case
def several_passes_are_one_step(store: gw.kv.KVStore) -> None:
    """backward_passes_per_step and no_sync() both send the total of several passes."""
    for passes in (3, 1):
        ours, theirs = equal_models()
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD(ours.parameters(), lr=0.1),
            ours.named_parameters(),
            store=store,
            backward_passes_per_step=passes,
        )
        for step in range(2):
            optimizer.zero_grad()
            theirs.zero_grad()
            for part in range(2):
                with theirs.no_sync():
                    backward(theirs, 10 * step + 2 * part + store.rank)
                with contextlib.nullcontext() if passes == 3 else optimizer.no_sync():
                    backward(ours, 10 * step + 2 * part + store.rank)
            backward(theirs, 10 * step + 9)
            backward(ours, 10 * step + 9)
            require_close(ours, theirs, lambda p: p.grad)
        optimizer.close()


@case
def momentum_of_workers_is_that_of_the_mean(store: gw.kv.KVStore) -> None:
    """Without a codec, momentum taken on every worker gives the weights of momentum taken after the mean."""
    for options in ({"nesterov": True}, {"dampening": 0.3}, {"maximize": True}):
        ours, theirs = equal_models()
        options |= {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
        oracle = torch.optim.SGD(theirs.parameters(), **options)
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD(ours.parameters(), **options),
            ours.named_parameters(),
            store=store,
            momentum_correction=True,
        )
        schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, 8) for each in (optimizer, oracle)]
        for step in range(8):
            for model, each in ((ours, optimizer), (theirs, oracle)):
                each.zero_grad()
                backward(model, 10 * step + store.rank)
                each.step()
            for schedule in schedules:
                schedule.step()
        require_close(ours, theirs, lambda p: p, rtol=1e-4, atol=1e-6)
        assert optimizer.param_groups[0]["momentum"] == 0.9  # SGD's own settings are back after each step
        optimizer.close()


@case
def half_precision_is_summed_in_float32(store: gw.kv.KVStore) -> None:
    """bfloat16 parameters travel as float32 and come back as bfloat16."""
    torch.manual_seed(0)
    model = nn.Linear(64, 8).bfloat16()
    optimizer = wrap(model, store)
    inputs = [torch.randn(4, 64, generator=torch.Generator().manual_seed(r)).bfloat16() for r in range(2)]
    local = []
    for x in inputs:
        alone = copy.deepcopy(model)
        alone(x).sum().backward()
        local.append(alone.weight.grad.float())
    model(inputs[store.rank]).sum().backward()
    assert model.weight.grad.dtype == torch.bfloat16
    torch.testing.assert_close(model.weight.grad, ((local[0] + local[1]) / 2).bfloat16(), rtol=0, atol=0)
    optimizer.close()


@case
def every_dtype_is_broadcast(store: gw.kv.KVStore) -> None:
    """Every dtype arrives bit for bit, from any root; state of a fresh optimizer is made."""

    def noise(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(-(2**31), 2**31, (1001,), generator=generator, dtype=torch.int32)

    for root in (0, 1):
        mine = {  # "waves" is behind an odd number of 8 bytes
            "bits": noise(store.rank).view(torch.float32),  # NaNs of all kinds and denormals among them
            "waves": torch.full((3,), complex(0.5, store.rank), dtype=torch.complex128),
            "count": torch.tensor(2**40 + store.rank),
            "halves": torch.full((3, 5), 0.5 + store.rank, dtype=torch.bfloat16),
            "flags": torch.tensor([True, store.rank == 1, False]),
            "none": torch.empty(0),
            "turned": torch.arange(6.0).view(2, 3).t() * (1 + store.rank),
            "text": "not a tensor",
        }
        gw.torch.broadcast_parameters(mine, root_rank=root, store=store)
        assert torch.equal(mine["bits"].view(torch.int32), noise(root))
        assert bool((mine["waves"] == complex(0.5, root)).all())
        assert int(mine["count"]) == 2**40 + root
        assert bool((mine["halves"] == 0.5 + root).all())
        assert mine["flags"].tolist() == [True, root == 1, False]
        assert torch.equal(mine["turned"], torch.arange(6.0).view(2, 3).t() * (1 + root))
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (1 + store.rank), betas=(0.8, 0.9))
    if store.rank == 1:
        backward(model, 0)
        optimizer.step()
    gw.torch.broadcast_optimizer_state(optimizer, root_rank=1, store=store)
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    moments = b"".join(s["exp_avg"].numpy().tobytes() for s in optimizer.state_dict()["state"].values())
    everyone = store.engine.all_gather("moments", moments)
    assert len(moments) > 0
    assert everyone[0] == everyone[1]


@case
def what_differs_between_ranks_is_told_to_all(store: gw.kv.KVStore) -> None:
    """What differs between ranks is an error with the same text on both."""
    tensors = {"same": torch.zeros(2), "shape": torch.zeros(2 + store.rank)}
    with pytest.raises(ValueError, match="rank 0 has 'shape' float32 \\(2,\\) where rank 1 has"):
        gw.torch.broadcast_parameters(tensors, store=store)
    with pytest.raises(ValueError, match="root_rank=2"):
        gw.torch.broadcast_parameters(tensors, root_rank=2, store=store)
    model = nn.Linear(3 + store.rank, 2)
    with pytest.raises(ValueError, match="weight") as caught:
        wrap(model, store)
    texts = store.engine.all_gather("texts", str(caught.value).encode())
    assert texts[0] == texts[1]


# ---- compression, last: it stays --------------------------------------------------------------------------------


@case
def a_nan_vetoes_the_step_of_all(store: gw.kv.KVStore) -> None:
    """A NaN on rank 1 vetoes the step of both; GradScaler sees it on both; the next step is taken."""
    ours, _ = equal_models()
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.1),
        ours.named_parameters(),
        compression="2bit",
        store=store,
        on_nonfinite="skip_step",
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for poisoned, scaled in ((True, False), (True, True), (False, True)):
        before = [p.detach().clone() for p in used(ours)]
        optimizer.zero_grad()
        images, labels = batch(store.rank)
        if poisoned and store.rank == 1:
            images[0, 0, 0, 0] = float("nan")
        loss = nn.functional.cross_entropy(ours(images), labels)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (scaler.scale(loss) if scaled else loss).backward()
        assert any("NaN" in str(w.message) for w in caught) == poisoned
        if scaled:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        same = [torch.equal(a, b) for a, b in zip(before, used(ours), strict=True)]
        assert all(same) == poisoned
    assert scaler.get_scale() == 4.0
    optimizer.close()


@case
def two_bits_leave_one_model_that_learns(store: gw.kv.KVStore) -> None:
    """With a lossy codec all ranks still hold the same weights, bit for bit, and they learn."""
    torch.manual_seed(store.rank)
    model = Net()
    gw.torch.broadcast_parameters(model.state_dict(), store=store)
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        model.named_parameters(),
        compression="2bit",
        store=store,
        momentum_correction="auto",
    )
    assert "threshold=auto" in store.compression.spec
    assert optimizer.momentum_correction
    images, labels = batch(store.rank)
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    blobs = [p.detach().contiguous().numpy().tobytes() for p in model.parameters()]
    everyone = store.engine.all_gather("weights", b"".join(blobs))
    assert everyone[0] == everyone[1]
    assert losses[-1] < 0.5 * losses[0]
    optimizer.close()


def main(folder: str) -> None:
    torch.set_num_threads(1)
    store = gw.kv.create("dist_sync")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=store.rank, world_size=store.num_workers
    )
    for name, run in CASES.items():
        run(store)
        print(name, "passed", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
