"""gradwire.torch against torch itself: DistributedDataParallel over gloo is the oracle for several ranks.

Cases named worker_* run as the ranks of a real job (see run_ranks): this file is then the program.
"""

from __future__ import annotations

import contextlib
import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.distributed
from gradwire.launch import run_job
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":  # a rank, which pytest's pythonpath does not reach
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from integration.torch_programs import Net


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


# ---- several ranks ---------------------------------------------------------------------------------------


def worker_means(store: gw.kv.KVStore) -> None:
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


def worker_accumulation(store: gw.kv.KVStore) -> None:
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


def worker_momentum(store: gw.kv.KVStore) -> None:
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


def worker_two_bit(store: gw.kv.KVStore) -> None:
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
    for _ in range(60):
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


def worker_halves(store: gw.kv.KVStore) -> None:
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


def worker_nonfinite(store: gw.kv.KVStore) -> None:
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


def worker_broadcast(store: gw.kv.KVStore) -> None:
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


def worker_differences(store: gw.kv.KVStore) -> None:
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


@pytest.mark.parametrize("case", [name for name in list(globals()) if name.startswith("worker_")])
def test_two_ranks(case: str, tmp_path: Path) -> None:
    lines: list[str] = []
    result = run_job(
        [sys.executable, __file__, case, str(tmp_path)],
        workers=2,
        servers=2,
        output=lambda line: lines.append(f"{line.role} {line.rank}: {line.text}"),
        report=lines.append,
        timeout=120,
    )
    assert result.exit_code == 0, "\n".join(lines)


def main(case: str, folder: str) -> None:
    torch.set_num_threads(1)
    store = gw.kv.create("dist_sync")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=store.rank, world_size=store.num_workers
    )
    globals()[case](store)
    store.barrier()
    torch.distributed.destroy_process_group()


# ---- one rank --------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Any:
    """A local store that compresses, so that hooks are at work."""
    store = gw.kv.create("local")
    store.set_gradient_compression("fp16")
    yield store
    store.close()


def test_alone_and_uncompressed_nothing_is_hooked() -> None:
    store = gw.kv.create("local")
    model = Net()
    optimizer = wrap(model, store, momentum_correction=True)
    backward(model, 0)
    assert all(p.grad is None for p in model.unused.parameters())
    optimizer.step()
    assert all("momentum_buffer" in optimizer.state[p] for p in used(model))
    store.close()


def test_is_the_optimizer_it_wraps(store: gw.kv.KVStore) -> None:
    model = Net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    early = torch.optim.lr_scheduler.StepLR(inner, 1)  # made before: it patches step() of the inner one
    optimizer = gw.torch.DistributedOptimizer(inner, model.named_parameters(), store=store)
    late = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups is inner.param_groups
    backward(model, 0)
    optimizer.step()
    late.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch thinks that the inner optimizer has not stepped
        early.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    assert set(inner.state) == set(model.parameters())


def test_gradients_are_sent_while_backward_runs(store: gw.kv.KVStore) -> None:
    events = []

    class Recorder:
        """The store's engine, writing down when slots are marked."""

        def __init__(self, engine: Any) -> None:
            self._engine = engine

        def __getattr__(self, name: str) -> Any:
            return getattr(self._engine, name)

        def mark_ready(self, slot: int) -> None:
            events.append(slot)
            self._engine.mark_ready(slot)

    store.engine = Recorder(store.engine)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    optimizer = wrap(model, store)
    model[1].register_full_backward_hook(lambda *_: events.append("relu"))
    model(torch.randn(2, 4)).sum().backward()
    assert sorted(events[: events.index("relu")]) == [2, 3]  # the last layer's weight and bias
    assert sorted(events[events.index("relu") + 1 :]) == [0, 1]
    optimizer.close()


def test_momentum_correction_survives_a_checkpoint(store: gw.kv.KVStore) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = wrap(model, store, momentum_correction=True)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert checkpoint[1]["param_groups"][0]["momentum"] == 0.9
    after = []
    for _ in range(2):
        model.load_state_dict(checkpoint[0])
        optimizer.load_state_dict(copy.deepcopy(checkpoint[1]))
        optimizer.zero_grad()
        backward(model, 7)
        optimizer.step()
        after.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*after, strict=True):  # not equal: fp16's residual has moved on
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
    optimizer.state.clear()
    model.load_state_dict(checkpoint[0])
    backward(model, 7)
    optimizer.step()
    apart = [float((a - b.detach()).abs().max()) for a, b in zip(after[0], model.parameters(), strict=True)]
    assert max(apart) > 1e-2  # what the momentum did


def test_a_closure_is_called_once(store: gw.kv.KVStore) -> None:
    model = Net()
    optimizer = wrap(model, store)
    calls = []

    def closure() -> float:
        optimizer.zero_grad()
        backward(model, 0)
        calls.append(1)
        return 2.5

    before = model.last.weight.detach().clone()
    assert optimizer.step(closure) == 2.5
    assert calls == [1]
    assert not torch.equal(before, model.last.weight)


def test_a_second_optimizer_needs_the_first_one_closed(store: gw.kv.KVStore) -> None:
    model = Net()
    first = wrap(model, store)
    with pytest.raises(ValueError, match="serves a DistributedOptimizer already"):
        wrap(Net(), store)
    first.close()
    second = wrap(model, store)
    backward(model, 0)
    second.step()


def test_a_layer_used_twice_in_a_reentrant_checkpoint_is_refused(store: gw.kv.KVStore) -> None:
    model = nn.Linear(4, 4)
    optimizer = wrap(model, store)
    h = torch.randn(2, 4, requires_grad=True)
    for _ in range(2):
        h = torch.utils.checkpoint.checkpoint(model, h, use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        h.sum().backward()
    optimizer.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"momentum_correction": "yes"}, "momentum_correction='yes'"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0"),
        ({"backward_passes_per_step": "2"}, "backward_passes_per_step='2'"),
        ({"on_nonfinite": "stop"}, "on_nonfinite='stop'"),
        ({"max_grad_norm": 0}, "max_grad_norm=0"),
        ({"max_grad_norm": "1"}, "max_grad_norm='1': expected a number above 0"),
        ({"max_grad_norm": 1.0, "momentum_correction": True}, "max_grad_norm, which acts on gradients"),
        ({"codecs": {"cnov.*": "int8"}}, "no parameter's name matches 'cnov.*'.*'conv"),
        ({"codecs": {"conv.*": "int9"}}, "int8"),
        ({"warm_up": ["fp16"]}, "warm_up holds 'fp16'"),
        ({"warm_up": [("fp16", 0)]}, "for how many steps"),
        ({"compression": "2bits"}, "2bit"),
        ({"compression": "2bit:threshold=0"}, "threshold"),
        ({"named_parameters": []}, "10 of the optimizer's 10 parameters"),
        ({"named_parameters": [nn.Parameter()]}, "not a \\(name, parameter\\) pair"),
        ({"named_parameters": [("a", nn.Parameter()), ("a", nn.Parameter())]}, "'a' more than once"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], text: str, store: gw.kv.KVStore) -> None:
    model = Net()
    arguments = {"named_parameters": model.named_parameters(), **arguments}
    with pytest.raises(ValueError, match=text):
        gw.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), store=store, **arguments)


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_complex_parameters_are_refused(compression: str, store: gw.kv.KVStore) -> None:
    model = nn.ParameterDict({"phase": nn.Parameter(torch.zeros(3, dtype=torch.complex64))})
    with pytest.raises(ValueError, match=r"'phase' is torch\.complex64, expected float32"):
        wrap(model, store, compression=compression)


def test_things_of_another_kind_are_named(store: gw.kv.KVStore) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"optimizer is a Linear, expected a torch\.optim\.Optimizer"):
        gw.torch.DistributedOptimizer(model, store=store)
    with pytest.raises(TypeError, match=r"store is 'local', expected what gradwire\.kv\.create\(\) returns"):
        gw.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), store="local")
    weights = torch.optim.SGD(model.parameters(), lr=0.1)
    for arguments, text in (
        ({"grad_scaler": 1024.0}, r"grad_scaler is 1024\.0, expected a torch\.amp\.GradScaler"),
        ({"codecs": ["*"]}, r"codecs is \['\*'\], expected a mapping"),
        ({"compression": 5}, "the codec is 5, expected text"),
        ({"warm_up": 5}, "warm_up is 5, expected a list"),
        ({"named_parameters": model}, r"named_parameters is a Linear.*pass model\.named_parameters\(\)"),
    ):
        with pytest.raises(TypeError, match=text):
            gw.torch.DistributedOptimizer(weights, store=store, **arguments)
    for given in (model, model.parameters()):
        with pytest.raises(TypeError, match=r"expected names with tensors; pass model\.state_dict\(\)"):
            gw.torch.broadcast_parameters(given, store=store)


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_a_step_with_a_nan_is_skipped_alone_too(compression: str) -> None:
    store = gw.kv.create("local")
    model = nn.Linear(4, 3)
    optimizer = wrap(model, store, compression=compression, on_nonfinite="skip_step")
    before = copy.deepcopy(model.state_dict())

    def step(value: float) -> None:
        optimizer.zero_grad()
        model(torch.full((2, 4), value)).sum().backward()
        optimizer.step()

    with pytest.warns(RuntimeWarning, match="no rank takes this step"):
        step(float("nan"))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    step(1.0)
    assert not torch.equal(model.weight, before["weight"])
    store.close()


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.Adam(p), lambda p: torch.optim.SGD(p, lr=0.1)], ids=["adam", "no momentum"]
)
def test_momentum_correction_needs_momentum(make: Any, store: gw.kv.KVStore) -> None:
    model = Net()
    with pytest.raises(ValueError, match="momentum"):
        gw.torch.DistributedOptimizer(
            make(model.parameters()), model.named_parameters(), store=store, momentum_correction=True
        )
    optimizer = gw.torch.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), "2bit", store, momentum_correction="auto"
    )
    assert not optimizer.momentum_correction


def test_gradwire_by_itself_does_not_import_torch() -> None:
    program = "import sys, gradwire, gradwire.kv, gradwire.compress; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
