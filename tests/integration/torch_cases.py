"""What two ranks do in torch_ranks_test.py, each case beside DistributedDataParallel, which is the oracle.

python torch_cases.py FOLDER    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch_step_cases  # noqa: F401 (its cases are in the table)
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch_hook_models import shared_folder
from torch_programs import CASES, Net, case, images


def twins(make: Callable[[], nn.Module]) -> tuple[nn.Module, DistributedDataParallel]:
    """One model for gradwire and one in DDP, with the same weights on all ranks."""
    torch.manual_seed(0)
    model = make()
    return model, DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=True)


def wrap(model: nn.Module, store: gw.kv.KVStore, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), store=store, **options)


def require_equal_gradients(ours: nn.Module, theirs: nn.Module) -> None:
    """Two ranks: a sum of two float32 has one value, whatever the order."""
    pairs = list(zip(ours.named_parameters(), theirs.parameters(), strict=True))
    assert pairs
    for (name, a), b in pairs:
        if b.grad is None:
            assert a.grad is None or not a.grad.any(), name
        else:
            assert a.grad is not None, name
            torch.testing.assert_close(
                a.grad, b.grad, rtol=0, atol=0, msg=lambda text, n=name: f"{n}: {text}"
            )


def require_one_model(store: gw.kv.KVStore, model: nn.Module) -> None:
    """All ranks hold the same bits."""
    blob = b"".join(p.detach().float().contiguous().numpy().tobytes() for p in model.parameters())
    everyone = store.engine.all_gather("weights", blob)
    assert len(set(everyone)) == 1


# ---- which parameters take part ------------------------------------------------------------------------------


@case
def frozen_then_unfrozen(store: gw.kv.KVStore) -> None:
    torch.manual_seed(0)
    ours = Net()
    ours.conv.requires_grad_(False)
    ours.twice.requires_grad_(False)
    optimizer = wrap(ours, store)
    for step in range(5):
        if step == 2:
            ours.conv.requires_grad_(True)
        if step == 4:
            ours.last.requires_grad_(False)
        optimizer.zero_grad()
        theirs = DistributedDataParallel(copy.deepcopy(ours), find_unused_parameters=True)  # it cannot change
        for model in (ours, theirs):
            model(images(10 * step + store.rank)).square().sum().backward()
        require_equal_gradients(ours, theirs)
        assert (ours.conv.weight.grad is None) == (step < 2)
        assert (ours.last.weight.grad is None) == (step == 4)
    optimizer.close()


@case
def tied_weights(store: gw.kv.KVStore) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Embedding(9, 4)
            self.out = nn.Linear(4, 9, bias=False)
            self.out.weight = self.into.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.into(x))

    ours, theirs = twins(Tied)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    both_names = ours.named_parameters(remove_duplicate=False)
    optimizer = gw.torch.DistributedOptimizer(optimizer, both_names, store=store)
    for model in (ours, theirs):
        model(torch.arange(3) + store.rank).square().sum().backward()
    require_equal_gradients(ours, theirs)
    optimizer.close()


@case
def groups_added_later(store: gw.kv.KVStore) -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(6, 6), nn.Linear(6, 2)
    theirs = DistributedDataParallel(copy.deepcopy(nn.Sequential(body, head)))
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(body.parameters(), lr=0.1), body.named_parameters(), store=store
    )
    oracle = torch.optim.SGD(theirs.parameters(), lr=0.1)
    optimizer.add_param_group({"params": list(head.parameters()), "lr": 0.1})
    ours = nn.Sequential(body, head)
    for step in range(3):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + store.rank))
        for model, each in ((ours, optimizer), (theirs, oracle)):
            each.zero_grad()
            model(x).square().sum().backward()
        require_equal_gradients(ours, theirs)
        optimizer.step()
        oracle.step()
    require_one_model(store, ours)
    optimizer.close()


@case
def what_was_not_sent_goes_with_its_owner(store: gw.kv.KVStore) -> None:
    """A second trial's residual_norm counted the first's, and each trial kept a model's size of memory."""
    for trial in (1, 2):
        model = nn.Linear(30, 20)
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            store=store,
            compression="int8",
        )
        model(trial * torch.ones(4, 30)).square().sum().backward()
        optimizer.step()
        assert store.stats()["residual_norm"] > 0
        optimizer.close()
        assert store.stats()["residual_norm"] == 0


# ---- how often backward() runs -------------------------------------------------------------------------------


@case
def two_backwards_per_step(store: gw.kv.KVStore) -> None:
    ours, theirs = twins(Net)
    optimizer = wrap(ours, store)
    for set_to_none in (True, False):
        optimizer.zero_grad(set_to_none=set_to_none)
        theirs.zero_grad(set_to_none=set_to_none)
        for part in range(2):
            for model in (ours, theirs):
                model(images(10 * part + store.rank)).square().sum().backward()
        require_equal_gradients(ours, theirs)
    optimizer.close()


@case
def reentrant_checkpoints(store: gw.kv.KVStore) -> None:
    class Stack(nn.Module):
        def __init__(self, which: str) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
            self.unused = nn.Linear(3, 3)
            self.which = which

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for index, layer in enumerate(self.layers):
                inside = self.which == "all" or (self.which == "some" and index % 2 == 0)
                x = checkpoint(layer, x, use_reentrant=True) if inside else layer(x)
            return x

    for which in ("all", "some"):
        ours, theirs = twins(lambda which=which: Stack(which))
        theirs.module.which = "none"  # DDP refuses re-entrant ones with unused parameters
        optimizer = wrap(ours, store)
        for step in range(3):
            optimizer.zero_grad()
            theirs.zero_grad()
            x = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + store.rank))
            for model in (ours, theirs):
                model(x.clone().requires_grad_()).square().sum().backward()
            require_equal_gradients(ours, theirs)
        optimizer.close()


@case
def lbfgs_closure(store: gw.kv.KVStore) -> None:
    """All ranks take the same number of evaluations, though their losses differ, and learn the joint problem."""
    model = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=20, line_search_fn="strong_wolfe")
    optimizer = gw.torch.DistributedOptimizer(optimizer, model.named_parameters(), store=store)
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(store.rank)) * (1 + 9 * store.rank)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]])
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert len(set(store.engine.all_gather("calls", str(calls).encode()))) == 1
    assert calls > 3
    torch.testing.assert_close(model.weight, torch.tensor([[1.0, -2.0, 0.5]]), rtol=1e-3, atol=1e-3)
    require_one_model(store, model)
    optimizer.close()


# ---- kinds of tensors ------------------------------------------------------------------------------------------


@case
def sparse_embedding(store: gw.kv.KVStore) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 3, sparse=True)
            self.last = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.table(x))

    torch.manual_seed(0)
    model = Words()
    dense = copy.deepcopy(model)
    dense.table.sparse = False
    oracle = DistributedDataParallel(dense)
    optimizer, oracles = wrap(model, store), torch.optim.SGD(oracle.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        oracle.zero_grad()
        for each in (model, oracle):
            each(torch.tensor([1, 2 + step, 5 + store.rank])).square().sum().backward()
        assert model.table.weight.grad.is_sparse
        model.table.weight.grad = model.table.weight.grad.to_dense()
        require_equal_gradients(model, oracle)
        optimizer.step()
        oracles.step()
    require_one_model(store, model)
    optimizer.close()


@case
def half_precision_and_channels_last(store: gw.kv.KVStore) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(100, 2)).to(dtype)
        model = model.to(memory_format=torch.channels_last)
        local = []
        for rank in range(2):
            alone = copy.deepcopy(model)
            alone(images(rank).to(dtype)).square().mean().backward()
            wide = torch.promote_types(dtype, torch.float32)
            local.append([p.grad.to(wide) for p in alone.parameters()])
        optimizer = wrap(model, store)
        model(images(store.rank).to(dtype)).square().mean().backward()
        for p, mine, theirs in zip(model.parameters(), *local, strict=True):
            assert p.grad.dtype == dtype
            assert p.grad.stride() == p.stride()
            torch.testing.assert_close(p.grad, ((mine + theirs) / 2).to(dtype), rtol=0, atol=0)
        optimizer.close()


@case
def set_to_none_either_way(store: gw.kv.KVStore) -> None:
    ours, theirs = twins(Net)
    optimizer = wrap(ours, store)
    for step in range(4):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        theirs.zero_grad(set_to_none=step % 2 == 0)
        for model in (ours, theirs):
            model(images(10 * step + store.rank)).square().sum().backward()
        require_equal_gradients(ours, theirs)
    optimizer.close()


@case
def compiled_model(store: gw.kv.KVStore) -> None:
    """By inductor, which generates C++ here, and by what only traces; compiled after it is wrapped, and before."""
    for backend in ("inductor", "aot_eager"):
        ours, theirs = twins(lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)))
        theirs.module.compile(backend=backend)  # what is generated may round otherwise
        if backend == "aot_eager":
            ours.compile(backend=backend)
        optimizer = wrap(ours, store)
        if backend == "inductor":
            ours.compile(backend=backend)
        for step in range(3):
            optimizer.zero_grad()
            theirs.zero_grad()
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + store.rank))
            for model in (ours, theirs):
                model(x).square().sum().backward()
            require_equal_gradients(ours, theirs)
        optimizer.close()


@case
def forked_data_loaders(store: gw.kv.KVStore) -> None:
    """Children of a process that holds a store neither hang nor end it."""
    model = nn.Linear(4, 2)
    gw.torch.broadcast_parameters(model.state_dict(), store=store)
    optimizer = wrap(model, store, compression="fp16")
    data = TensorDataset(torch.randn(24, 4, generator=torch.Generator().manual_seed(store.rank)))
    for _ in range(2):
        for (x,) in DataLoader(data, batch_size=6, num_workers=2, multiprocessing_context="fork"):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    require_one_model(store, model)
    optimizer.close()
    store.set_gradient_compression("none")


# ---- loss scales ---------------------------------------------------------------------------------------------


@case
def grad_scaler(store: gw.kv.KVStore) -> None:
    """Steps with an infinity on one rank are taken by none and leave no residual; scales that come and go change no
    bit of the weights.
    """

    def train(scaled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 4))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, enabled=scaled)
        optimizer = wrap(model, store, compression="2bit", grad_scaler=scaler)
        scales = []
        for step in range(10):
            x = torch.randn(8, 40, generator=torch.Generator().manual_seed(10 * step + store.rank))
            bad = step in (0, 5)
            if bad and not scaled:
                continue  # as if it had not been
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if bad and store.rank == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            before = [p.detach().clone() for p in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            stayed = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            assert stayed == bad, step
            scales.append(scaler.get_scale())
        if scaled:
            assert len(set(scales)) >= 4
            assert len(set(store.engine.all_gather("scales", str(scales).encode()))) == 1
        optimizer.close()
        return [p.detach().clone() for p in model.parameters()]

    plain = train(scaled=False)
    for a, b in zip(train(scaled=True), plain, strict=True):
        assert torch.equal(a, b)
    store.set_gradient_compression("none")


@case
def optimizer_state_is_broadcast_without_residuals(store: gw.kv.KVStore) -> None:
    torch.manual_seed(0)
    model = nn.Linear(40, 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + store.rank), momentum=0.9)
    optimizer = gw.torch.DistributedOptimizer(
        optimizer, model.named_parameters(), "2bit:threshold=0.01", store
    )
    x = torch.randn(4, 40, generator=torch.Generator().manual_seed(store.rank))
    model(x).square().mean().backward()
    optimizer.step()
    before = optimizer.state_dict()["gradwire"]["residuals"]["weight"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gw.torch.broadcast_optimizer_state(optimizer, store=store)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert torch.equal(optimizer.state_dict()["gradwire"]["residuals"]["weight"], before)
    assert len(set(store.engine.all_gather("residuals", before.numpy().tobytes()))) == 2
    optimizer.close()
    store.set_gradient_compression("none")


@case
def the_hook_in_a_job_of_gradwires_own(store: gw.kv.KVStore) -> None:
    """`gradwire run`: DDP's process group and the job have the same ranks, and the hook uses the job."""
    model, theirs = twins(lambda: nn.Linear(300, 300))
    ours = DistributedDataParallel(model)
    state = gw.torch.HookState(codec="none")
    ours.register_comm_hook(state, gw.torch.ddp_hook)
    for each in (ours, theirs):
        x = torch.randn(4, 300, generator=torch.Generator().manual_seed(store.rank))
        each(x).square().sum().backward()
    require_equal_gradients(model, theirs)
    assert gw.kv.joined() is store
    state.close()


@case
def a_model_in_ddp_is_told(store: gw.kv.KVStore) -> None:
    """Both wrote p.grad, and which of them last was chance: gradients were off by a fifth in some steps."""
    wrapped = DistributedDataParallel(nn.Linear(6, 2))
    with pytest.warns(RuntimeWarning, match=r"names as 'module\.weight'.*register gradwire\.torch\.ddp_hook"):
        optimizer = wrap(wrapped, store)
    optimizer.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrap(wrapped.module, store).close()
        inner = torch.optim.SGD(wrapped.parameters(), lr=0.1)  # local steps do not write p.grad
        gw.torch.LocalStepOptimizer(inner, wrapped.named_parameters(), store=store, sync_every=2).close()


@case
def clipping(store: gw.kv.KVStore) -> None:
    ours, theirs = twins(lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2)))
    optimizer = wrap(ours, store, max_grad_norm=0.25)
    oracle = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for step in range(3):
        x = 5 * torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + store.rank))
        for model, each in ((ours, optimizer), (theirs, oracle)):
            each.zero_grad()
            model(x).square().sum().backward()
        assert float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.25)) > 0.25
        optimizer.step()
        oracle.step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    optimizer.close()


@case
def a_broadcast_state_leaves_each_rank_its_residuals(store: gw.kv.KVStore) -> None:
    """Also during a warm-up, whose step is agreed on by all or by none."""
    torch.manual_seed(0)
    ours = Net()
    optimizer = wrap(ours, store, compression="2bit:threshold=0.01", warm_up=[("2bit:threshold=0.02", 5)])
    ours(images(store.rank)).square().sum().backward()
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict()["gradwire"])
    gw.torch.broadcast_optimizer_state(optimizer, store=store)
    after = optimizer.state_dict()["gradwire"]
    assert after["step"] == before["step"] == 1
    assert any(residual.any() for residual in before["residuals"].values())
    assert all(torch.equal(after["residuals"][name], r) for name, r in before["residuals"].items())
    assert store.compression.spec.startswith("2bit:threshold=0.02")
    optimizer.close()
    assert store.compression.spec == "none"


@case
def torchs_checkpoints_have_each_workers_own(store: gw.kv.KVStore) -> None:
    """What workers have not sent, their momentum and their rounds; torch.distributed.checkpoint keeps one of what all
    ranks call alike.
    """

    two_bit = "2bit:threshold=0.01"

    def with_momentum(model: nn.Module) -> Any:
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        options: dict[str, Any] = {"compression": two_bit, "momentum_correction": True}
        return gw.torch.DistributedOptimizer(inner, model.named_parameters(), store=store, **options)

    def with_adam(model: nn.Module) -> Any:
        inner = torch.optim.AdamW(model.parameters())
        return gw.torch.DistributedOptimizer(inner, model.named_parameters(), two_bit, store)

    def with_rounds(model: nn.Module) -> Any:
        inner = torch.optim.AdamW(model.parameters())
        options: dict[str, Any] = {"codecs": {"*": "int4:reply=fp32"}, "sync_every": 2}
        return gw.torch.LocalStepOptimizer(inner, model.named_parameters(), store=store, **options)

    for make in (with_momentum, with_adam, with_rounds):
        folder = shared_folder()
        torch.manual_seed(0)
        model = nn.Linear(6, 4)
        optimizer = make(model)
        train_steps(model, optimizer, range(3))
        saved = copy.deepcopy(optimizer.state_dict())
        assert any(r.any() for r in saved["gradwire"]["residuals"].values())
        dcp.save({"optimizer": optimizer}, checkpoint_id=folder)
        train_steps(model, optimizer, range(3, 5))
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            dcp.load({"optimizer": optimizer}, checkpoint_id=folder)
        require_equal_states(optimizer.state_dict(), saved)
        with pytest.raises(ValueError, match=f"of 'rank 0 of 3' and not of 'rank {store.rank} of 2'"):
            optimizer.load_state_dict({**saved, "gradwire": {"rank 0 of 3": b""}})
        optimizer.close()


def train_steps(model: nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        model(torch.randn(5, 6, generator=generator)).square().mean().backward()
        optimizer.step()


def require_equal_states(one: Any, other: Any) -> None:
    tensors = [[leaf for leaf in tree_leaves(state) if torch.is_tensor(leaf)] for state in (one, other)]
    torch.testing.assert_close(*tensors, rtol=0, atol=0)


@case
def lbfgs_takes_clipped_means(store: gw.kv.KVStore) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    inner = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=4)
    optimizer = gw.torch.DistributedOptimizer(
        inner, model.named_parameters(), store=store, max_grad_norm=0.01
    )
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(store.rank))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = 100 * model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        assert torch.cat([p.grad.flatten() for p in model.parameters()]).norm() < 0.0101
    require_one_model(store, model)
    optimizer.close()


def main(folder: str) -> None:
    torch.set_num_threads(1)
    store = gw.kv.create("allreduce")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=store.rank, world_size=store.num_workers
    )
    for name, run in CASES.items():
        run(store)
        print(name, "passed", flush=True)
    dist.destroy_process_group()
    # No close(): a script that just ends must leave cleanly too.
    print("pid", os.getpid(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
