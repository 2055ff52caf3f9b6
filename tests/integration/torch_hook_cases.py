"""What two ranks do in torch_hook_ranks_test.py: DDP's hook on models that are not all float32, all used, all there.

python -m torch.distributed.run --nproc-per-node 2 torch_hook_cases.py
"""

from __future__ import annotations

import copy
import gc
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from oracle import row_column_scales
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch_hook_models import (
    STATES,
    Kinds,
    Ledger,
    kinds,
    leave_states,
    leave_the_store,
    make_branches,
    shared_folder,
    total,
)
from torch_programs import case, case_from, run_cases_in_a_group, warnings_of_adam

BEFORE_THE_GROUP = gw.torch.HookState("none")  # as Lightning's DDPStrategy(ddp_comm_state=...) makes one

# Replies of float32: what is left to send is all with the workers, where it can be read.
CODECS = (
    "2bit:threshold=0.02",
    "2bit:reply=fp32",
    "int4:reply=fp32",
    "topk:reply=fp32",
    "1bit:reply=fp32",
    "none",
)
DDP = DistributedDataParallel


def hooked(model: nn.Module, codec: str, **options: Any) -> tuple[DDP, gw.torch.HookState]:
    scaled = options.pop("row_column_scales", False)
    wrapped = DDP(model, **{"bucket_cap_mb": 0.004} | options)  # a bucket for each layer of Branches
    state = gw.torch.HookState(codec, row_column_scales=scaled)
    wrapped.register_comm_hook(state, gw.torch.ddp_hook)
    STATES.append(state)
    return wrapped, state


@contextmanager
def audited(codec: str, what: str, **options: Any) -> Iterator[tuple[DDP, Ledger]]:
    """A model with the hook, of whose gradients nothing is lost until the end of the block."""
    model = make_branches()
    wrapped, state = hooked(model, codec, **options)
    ledger = Ledger(model)
    yield wrapped, ledger
    ledger.require_nothing_lost(state, what)
    state.close()


@case
def a_state_made_before_the_group_joins_with_the_first_bucket() -> None:
    model = make_branches()
    theirs = DDP(copy.deepcopy(model))
    wrapped = DDP(model)
    wrapped.register_comm_hook(BEFORE_THE_GROUP, gw.torch.ddp_hook)
    with pytest.raises(RuntimeError, match="has joined no other rank yet"):
        BEFORE_THE_GROUP.stats()
    for each in (wrapped, theirs):
        Ledger.loss(each, 0, "ab").backward()
    for ours, true in zip(model.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(ours.grad, true.grad)
    assert BEFORE_THE_GROUP.stats()["bytes_encoded"] > 0
    STATES.append(BEFORE_THE_GROUP)


@case
def nothing_of_a_layer_is_lost_that_no_rank_uses() -> None:
    """DDP leaves the gradient of such a layer as it was, whatever the hook makes of its bucket."""
    ways: dict[str, Callable[[int], str]] = {
        "in turns": lambda step: "ab"[step % 2],
        "now and then": lambda step: "ab" if step % 5 == 0 else "b",
        "another on each rank": lambda step: "ab"[dist.get_rank()],  # as experts are
        "on one rank, or none": lambda step: "a" if step % 3 == 0 and dist.get_rank() == 0 else "b",
    }
    for codec in CODECS:
        for way, use in ways.items():
            for as_view in (False, True):
                options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
                with audited(codec, f"{codec} {way} {as_view}", **options) as (wrapped, ledger):
                    for step in range(10):
                        wrapped.zero_grad()
                        ledger.step(wrapped, step, use(step))


@case
def what_a_layer_of_bfloat16_owes_does_not_change_while_it_is_not_used() -> None:
    """What is sent of it, and taken back, is not rounded on the way."""
    model = make_branches().bfloat16()
    wrapped, state = hooked(model, "int8", find_unused_parameters=True)
    owed = []
    for use in ("ab", "b", "b", "b", "b"):
        wrapped.zero_grad()
        x = torch.linspace(-1, 1 + dist.get_rank(), 160, dtype=torch.bfloat16).view(4, 40)
        wrapped(x, use).float().pow(3).mean().backward()
        owed.append(total(state.state_dict()["residuals"]["a.weight"]))
    assert owed[2].any()  # and with the second step it has what the server's reply left
    assert torch.equal(owed[3], owed[2])
    assert torch.equal(owed[4], owed[2])
    state.close()


@case
def residuals_of_servers_are_not_lost_either() -> None:
    """A reply in the codec's own form leaves a part with the server that made it: what is left stays bounded, however
    often the layer is not used.
    """
    for codec in ("int4", "2bit:threshold=0.02,reply=2bit"):
        lost = []
        for steps in (4, 60):
            model = make_branches()
            wrapped, state = hooked(model, codec, find_unused_parameters=True)
            ledger = Ledger(model)
            for step in range(steps):
                wrapped.zero_grad()
                ledger.step(wrapped, step, "ab"[step % 2])
            left = total(state.state_dict()["residuals"]["a.weight"]).view(40, 40)
            behind = total(ledger.given["a.weight"]) - ledger.delivered["a.weight"] - left
            lost.append(float(behind.norm()))
            state.close()
        assert lost[1] < 4 * lost[0] + 1e-6, (codec, lost)


@case
def gradients_that_are_not_cleared_count_once() -> None:
    """DDP hands its hook what is in p.grad, of unused layers too, and leaves it there where no rank used them."""
    for codec in CODECS:
        for as_view in (False, True):
            options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
            with audited(codec, f"{codec} {as_view}", **options) as (wrapped, ledger):
                for step in range(8):
                    ledger.step(wrapped, step, "ab"[step % 2])
                for name, parameter in ledger.model.named_parameters():
                    ledger.delivered[name] = parameter.grad * dist.get_world_size()


@case
def zeros_in_place_of_nothing() -> None:
    """optimizer.zero_grad(set_to_none=False): p.grad is there, and may be the bucket's memory."""
    for codec in CODECS:
        for as_view in (False, True):
            options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
            with audited(codec, f"{codec} {as_view}", **options) as (wrapped, ledger):
                for step in range(8):
                    for parameter in ledger.model.parameters():
                        if parameter.grad is not None:
                            parameter.grad.zero_()
                    ledger.step(wrapped, step, "ab"[step % 2])


@case
def nothing_of_a_frozen_layer_is_lost() -> None:
    """It was trained when DDP was made, so DDP awaits it as one that is not used."""
    for codec in CODECS:
        with audited(codec, codec, find_unused_parameters=True) as (wrapped, ledger):
            for step in range(9):
                ledger.model.a.requires_grad_(not 3 <= step < 6)
                wrapped.zero_grad()
                ledger.step(wrapped, step, "ab")


@case
def ranks_that_have_joined_lose_nothing() -> None:
    """They stand in for the others' rounds with zeros, and with what they have not sent yet."""
    for codec in CODECS:
        for use in ("ab", "in turns"):
            with audited(codec, f"{codec} {use}", find_unused_parameters=True) as (wrapped, ledger):
                with wrapped.join():
                    for step in range(4 if dist.get_rank() == 0 else 11):
                        wrapped.zero_grad()
                        ledger.step(wrapped, step, "ab"[step % 2] if use == "in turns" else use)
                for delivered in ledger.delivered.values():
                    dist.broadcast(delivered, 1)  # whose model the others then get


@case_from("2.9")
def graphs_that_stay_the_same() -> None:
    """static_graph, and buckets that DDP leaves out since nothing in them is used (skip_all_reduce_unused_params)."""
    skips = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
    for options in ({"static_graph": True}, skips):
        for use in ("a", "b"):
            for codec in CODECS:
                model = make_branches()
                theirs = DDP(copy.deepcopy(model), **options)
                wrapped, state = hooked(model, codec, **options)
                ledger = Ledger(model)
                for step in range(4):
                    for each in (wrapped, theirs):
                        each.zero_grad()
                    ledger.step(wrapped, step, use)
                    ledger.loss(theirs, step, use).backward()
                    for ours, true in zip(model.parameters(), theirs.parameters(), strict=True):
                        assert (ours.grad is None) == (true.grad is None)
                        assert codec != "none" or true.grad is None or torch.equal(ours.grad, true.grad)
                ledger.require_nothing_lost(state, f"{codec} {options} {use}")
                state.close()


@case_from("2.9")
def layers_that_come_later() -> None:
    """Buckets that DDP leaves out until something in them is used come beside others that are known."""
    skips = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
    for codec in CODECS:
        for first in (1, 2, 5):
            with audited(codec, f"{codec} {first}", **skips) as (wrapped, ledger):
                theirs = DDP(copy.deepcopy(ledger.model), **skips)
                for step in range(8):
                    for each in (wrapped, theirs):
                        each.zero_grad()
                    use = "a" if step < first else "ab"
                    ledger.step(wrapped, step, use)
                    ledger.loss(theirs, step, use).backward()
                    for ours, true in zip(wrapped.parameters(), theirs.parameters(), strict=True):
                        assert codec != "none" or true.grad is None or torch.equal(ours.grad, true.grad)


@case
def a_codec_that_gives_way_to_none_leaves_nothing() -> None:
    """The last step that it serves, or the first one after it, is one in which no rank uses the layer."""
    for unused in (2, 3, 4):
        model = make_branches()
        wrapped = DDP(model, find_unused_parameters=True)
        state = gw.torch.HookState("none", warm_up=[("2bit:threshold=0.0005", 3)])
        wrapped.register_comm_hook(state, gw.torch.ddp_hook)
        ledger = Ledger(model)
        for step in range(7):
            wrapped.zero_grad()
            ledger.step(wrapped, step, "b" if step == unused else "ab")
        ledger.require_nothing_lost(state, f"unused in step {unused}", least=1e-5)
        state.close()


class FirstUnused(nn.Module):
    """Its first layer is in the last bucket, which DDP then never hands the hook."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.used = nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


@case_from("2.9")
def a_last_bucket_that_never_comes() -> None:
    torch.manual_seed(3)
    model = FirstUnused()
    wrapped, _ = hooked(model, "none", find_unused_parameters=True, skip_all_reduce_unused_params=True)
    for _ in range(3):
        wrapped.zero_grad()
        wrapped(torch.ones(2, 40)).sum().backward()
        assert model.unused.weight.grad is None
        assert torch.equal(model.used.weight.grad, torch.full((40, 40), 2.0))


class Blocks(nn.Module):
    """Layers that each lie in a checkpoint: a re-entrant one runs a backward() of its own, inside the outer one."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(40, 40, bias=False), nn.Linear(40, 4, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(40, 40, bias=False) for _ in range(3))
        self._reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self._reentrant).tanh()
        return self.last(x)


@case
def reentrant_checkpoints_are_one_exchange() -> None:
    """All that DDP's buckets bring in the backward passes inside one is exchanged together, vetoed steps too."""
    outcomes = []
    for reentrant in (False, True):
        torch.manual_seed(4)
        wrapped = DDP(Blocks(reentrant=reentrant), bucket_cap_mb=0.004)
        state = gw.torch.HookState("2bit:threshold=0.05", warm_up=[("fp16", 2)], on_nonfinite="skip_step")
        wrapped.register_comm_hook(state, gw.torch.ddp_hook)
        outcomes.append([step_with_blocks(wrapped, state, step) for step in range(6)])
        state.close()
    for apart, inside in zip(*outcomes, strict=True):
        assert apart.keys() == inside.keys()
        for what, value in apart.items():
            torch.testing.assert_close(inside[what], value, rtol=0, atol=0, equal_nan=True, msg=what)


def step_with_blocks(wrapped: DDP, state: gw.torch.HookState, step: int) -> dict[str, torch.Tensor]:
    """What a step makes of gradients and residuals, and its number; in step 4 a gradient of rank 1 is a NaN."""
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(7 * step + dist.get_rank()))
    before = state.stats()["bytes_encoded"]
    wrapped.zero_grad()
    loss = wrapped(x).square().mean()
    factor = float("nan") if step == 4 and dist.get_rank() == 1 else 1.0
    handle = wrapped.module.first.weight.register_hook(lambda gradient: gradient * factor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the step that is skipped
        loss.backward()
    handle.remove()
    own = state.state_dict()
    gradients = {name: p.grad.clone() for name, p in wrapped.module.named_parameters()}
    counted = {
        "step": torch.tensor(own["step"]),
        "bytes": torch.tensor(state.stats()["bytes_encoded"] - before),
    }
    return gradients | {f"residual of {name}": left for name, left in own["residuals"].items()} | counted


# ---- what gradients are made of ----------------------------------------------------------------------------------


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def require_ddps_gradients(codec: str, model: nn.Module, factor: float = 0.7, **options: Any) -> None:
    theirs = DDP(copy.deepcopy(model), **options)
    wrapped, state = hooked(model, codec, **options)
    for step in range(3):
        for each in (wrapped, theirs):
            each.zero_grad()
            each(factor * (1 + dist.get_rank() + step / 3)).backward()
        for ours, true in zip(model.parameters(), theirs.parameters(), strict=True):
            if codec == "none":
                torch.testing.assert_close(ours.grad, true.grad, rtol=0, atol=0)
            else:
                torch.testing.assert_close(
                    ours.grad,
                    true.grad,
                    rtol=0.02,
                    atol=0.02 * float(true.grad.abs().sum() and true.grad.abs().max()),
                )
    state.close()


@case_from("2.9")
def gradients_of_any_kind_are_ddps() -> None:
    """Uncompressed to the bit, float64 in 64 bits; compressed in float32, real and imaginary parts alike. Gloo of
    an older PyTorch sums no complex numbers.
    """
    for name, model in kinds().items():
        for codec in ("none", "int8:block=32"):
            for as_view in (False, True):
                try:
                    require_ddps_gradients(codec, copy.deepcopy(model), gradient_as_bucket_view=as_view)
                except Exception as error:
                    raise AssertionError((name, codec, as_view)) from error


@case
def rows_and_columns_are_scaled_as_in_the_oracle() -> None:
    """row_column_scales: both ranks get what NumPy makes of both ranks' gradients."""
    generator = torch.Generator().manual_seed(5)
    by = torch.logspace(-2, 0, 24).unsqueeze(1) * torch.logspace(-1, 0, 40)
    given = [[torch.randn(24, 40, generator=generator) * by for _ in range(2)] for _ in range(5)]
    expected = row_column_scales.delivered(
        gw.compress.make("int4"), [[own.numpy() for own in step] for step in given]
    )
    model = nn.Linear(40, 24, bias=False)
    wrapped, state = hooked(model, "int4:reply=fp32", row_column_scales=True)
    for step, mean in zip(given, expected, strict=True):
        wrapped.zero_grad()
        (wrapped(torch.eye(40)).t() * step[dist.get_rank()]).sum().backward()
        torch.testing.assert_close(model.weight.grad, torch.from_numpy(mean).float(), rtol=1e-3, atol=1e-7)
    assert sorted(state.state_dict()["scales"]) == ["weight"]
    state.close()


@case
def defaults_of_torch_change_nothing() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        with default_dtype(dtype):
            require_ddps_gradients("none", Kinds(torch.ones(3, 3), torch.ones(300)))
            require_ddps_gradients("int8:block=32", Kinds(torch.ones(3, 3), torch.ones(300)))
    model = Kinds(torch.ones(3, 3), torch.ones(80_000))
    with default_device("meta"):
        wrapped, state = hooked(model, "int8")
        for _ in range(2):
            wrapped.zero_grad()
            wrapped(1.0 + dist.get_rank()).backward()
        saved = state.state_dict()
        state.load_state_dict(saved)
    torch.testing.assert_close(model.own[0].grad, torch.full((3, 3), 5.0), rtol=0.01, atol=0)
    with default_device("meta"):
        store = gw.kv.create("torch")
        store.set_gradient_compression("int8")
        values = torch.ones(300, device="cpu")
        store.push_pull("a", values)
    torch.testing.assert_close(values, torch.full((300,), 2.0), rtol=0.01, atol=0)


@case
def large_means_are_ddps() -> None:
    """Their sum is beyond what a gradient of float16 holds."""
    for value, dtype in ((1.5e38, torch.float32), (1e60, torch.float64), (6e4, torch.float16)):
        require_ddps_gradients("none", _Constant(value, dtype), 1.0)


class _Constant(nn.Module):
    def __init__(self, value: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(100, 700, dtype=dtype))
        self.small = nn.Parameter(torch.zeros(3, dtype=dtype))
        self._value = value

    def forward(self, _: float) -> torch.Tensor:
        w = torch.cat([self.w.flatten(), self.small])
        return (w * torch.full_like(w, self._value)).sum()


@case
def what_float32_cannot_hold_is_told() -> None:
    """A codec works in float32: it says so where that makes an infinity of a number."""
    model = _Constant(1e60, torch.float64)
    wrapped, _ = hooked(model, "int8")
    store = gw.kv.joined()
    assert store is not None
    notices: list[str] = []
    store.print_notices = lambda: notices.extend(store.engine.take_notices())  # type: ignore[method-assign]
    with pytest.warns(RuntimeWarning, match="a worker's gradient held a NaN or an infinity"):
        wrapped(1.0).backward()
    del store.print_notices
    assert any("beyond the largest float32, 3.4e38, in which codec int8 works" in each for each in notices), (
        notices
    )


# ---- optimizers like Adam ----------------------------------------------------------------------------------------


@case
def adam_with_few_levels_warns_in_its_first_step() -> None:
    def steps(
        codec: str, trained: str = "", kind: type[torch.optim.Optimizer] = torch.optim.AdamW, **options: Any
    ):
        wrapped = DDP(make_branches())
        named = list(wrapped.module.named_parameters())
        state = gw.torch.HookState(codec, named_parameters=named, **options)
        wrapped.register_comm_hook(state, gw.torch.ddp_hook)
        STATES.append(state)
        optimizer = kind([p for name, p in named if name.startswith(trained)], lr=1e-3)
        for step in range(2):
            optimizer.zero_grad()
            Ledger.loss(wrapped, step, "ab").backward()
            optimizer.step()

    def found(*arguments: Any, **options: Any) -> list[str]:
        return warnings_of_adam(lambda: steps(*arguments, **options))

    (text,) = found("2bit")
    assert "AdamW loses accuracy with the codec 2bit" in text
    assert len(found("int8", codecs={"a.*": "1bit"})) == 1
    assert len(found("2bit", warm_up=[("none", 5)])) == 1
    assert found("2bit", kind=torch.optim.SGD) == []
    assert found("int8") == []
    assert found("2bit", warm_up=[("none", 1)], codecs={"*": "int8"}) == []
    assert found("2bit", row_column_scales=True) == []
    assert len(found("1bit", row_column_scales=True)) == 1


# ---- what it is called, copies, checkpoints ----------------------------------------------------------------------


@case
def parameters_have_the_names_of_the_module() -> None:
    model = make_branches()
    wrapped, state = hooked(model, "2bit:threshold=0.02")
    Ledger.loss(wrapped, 0, "ab").backward()
    assert set(state.state_dict()["residuals"]) == {"first.weight", "a.weight", "b.weight"}
    # Saved when they were numbers: in the order of DDP's first buckets, the first layer first.
    numbered = {f"parameter.{i}": torch.full((1600,), float(i)) for i in range(3)}
    state.load_state_dict({"rank": dist.get_rank(), "residuals": numbered})
    for number, name in enumerate(("first.weight", "a.weight", "b.weight")):
        assert torch.equal(state.state_dict()["residuals"][name], numbered[f"parameter.{number}"])


@case
def a_model_that_gc_freeze_has_put_away_is_found() -> None:
    for codec in CODECS[:2]:
        with audited(codec, codec, find_unused_parameters=True) as (wrapped, ledger):
            gc.freeze()
            try:
                for step in range(6):
                    wrapped.zero_grad()
                    ledger.step(wrapped, step, "ab"[step % 2])
                assert gc.get_freeze_count() > 0
            finally:
                gc.unfreeze()
            assert STATES[-1].state_dict()["residuals"].keys() == dict(ledger.model.named_parameters()).keys()


@case
def a_hook_whose_model_cannot_be_found_warns() -> None:
    state = gw.torch.HookState("int8")
    STATES.append(state)
    wrapped = DDP(make_branches())
    wrapped.register_comm_hook(None, lambda _, bucket: gw.torch.ddp_hook(state, bucket))
    with pytest.warns(RuntimeWarning, match=r"give the HookState itself to model\.register_comm_hook\(state"):
        Ledger.loss(wrapped, 0, "ab").backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ledger.loss(wrapped, 1, "ab").backward()


@case
def models_are_copied_and_saved_whole() -> None:
    """As for averages of weights, or by torch.save(ddp)."""
    model = make_branches()
    wrapped, state = hooked(model, "2bit:threshold=0.02")
    average = torch.optim.swa_utils.AveragedModel(wrapped)
    for step in range(3):
        wrapped.zero_grad()
        Ledger.loss(wrapped, step, "ab").backward()
        average.update_parameters(wrapped)
    copied = copy.deepcopy(wrapped)
    for each in (average.module, copied):
        assert torch.equal(each.module.a.weight, model.a.weight)
        ((_, own),) = each._comm_hooks
        assert own is not state
        assert own.state_dict() == {}  # what was not sent is owed once
    written = io.BytesIO()
    torch.save(wrapped, written)
    loaded = torch.load(io.BytesIO(written.getvalue()), weights_only=False)
    ((_, own),) = loaded._comm_hooks
    STATES.append(own)
    assert torch.equal(own.state_dict()["residuals"]["a.weight"], state.state_dict()["residuals"]["a.weight"])
    # A hook has to be registered again, as any of torch's.
    loaded._comm_hooks.clear()
    loaded.register_comm_hook(own, gw.torch.ddp_hook)
    for each in (wrapped, loaded):
        each.zero_grad()
        Ledger.loss(each, 3, "ab").backward()
    for ours, theirs in zip(loaded.parameters(), wrapped.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    with pytest.raises(TypeError, match="has a process group of its own, which cannot be pickled"):
        torch.save(gw.torch.HookState("none", dist.new_group()), io.BytesIO())


@case
def torchs_checkpoints_have_every_ranks_residuals() -> None:
    """torch.distributed.checkpoint keeps one of what all ranks call alike."""

    class Job:
        """Some other state of a script's, that has a hook's in it."""

        def __init__(self, state: gw.torch.HookState) -> None:
            self.hook = state

        def state_dict(self) -> dict[str, Any]:
            return {"hook": self.hook.state_dict()}

        def load_state_dict(self, saved: dict[str, Any]) -> None:
            self.hook.load_state_dict(saved["hook"])

    for wrap in (lambda state: state, Job):
        folder = shared_folder()
        model = make_branches()
        wrapped, state = hooked(model, "2bit:threshold=0.02")
        for step in range(3):
            wrapped.zero_grad()
            Ledger.loss(wrapped, step, "ab").backward()
        dcp.save({"model": wrapped.state_dict(), "hook": wrap(state)}, checkpoint_id=folder)
        saved = state.state_dict()["residuals"]
        state.close()
        later = make_branches()
        wrapped, state = hooked(later, "2bit:threshold=0.02")
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            dcp.load({"model": wrapped.state_dict(), "hook": wrap(state)}, checkpoint_id=folder)
        for name, residual in state.state_dict()["residuals"].items():
            assert torch.equal(residual, saved[name]), name
        state.close()
    with pytest.raises(
        ValueError, match=f"has the state of 'rank 0 of 3' and not of 'rank {dist.get_rank()} of 2'"
    ):
        state.load_state_dict({"rank 0 of 3": b""})


@case
def a_checkpoint_of_some_layers_begins_a_job_of_more() -> None:
    """A head was trained on a frozen body; then both are, from its checkpoint."""
    for bias in (False, True):
        folder = shared_folder() / "saved"
        leave_the_store()

        def make(bias: bool = bias) -> nn.Sequential:
            torch.manual_seed(5)
            return nn.Sequential(nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=bias))

        def backward(each: nn.Module, step: int) -> None:
            x = torch.randn(4, 40, generator=torch.Generator().manual_seed(9 * dist.get_rank() + step))
            each(x).square().sum().backward()

        model = make()
        model[0].requires_grad_(False)
        wrapped, state = hooked(model, "int8")
        backward(wrapped, 0)
        gw.torch.save_checkpoint(folder, wrapped, state)
        leave_the_store()

        later = make()
        wrapped, state = hooked(later, "int8", find_unused_parameters=True)
        gw.torch.load_checkpoint(folder, wrapped, state)
        theirs = DDP(copy.deepcopy(later))
        for step in range(1, 4):
            for each in (wrapped, theirs):
                each.zero_grad()
                backward(each, step)
            for ours, true in zip(later.parameters(), theirs.parameters(), strict=True):
                scale = float(true.grad.abs().max())
                torch.testing.assert_close(ours.grad, true.grad, rtol=0, atol=0.05 * scale)
        leave_the_store()


@case
def what_a_layer_has_not_sent_that_is_frozen_later_is_in_checkpoints() -> None:
    """A state that was loaded has residuals of a layer that no longer trains, so no bucket brings it."""
    folder = shared_folder()
    wrapped, state = hooked(make_branches(), "2bit:threshold=0.02")
    for step in range(3):
        Ledger.loss(wrapped, step, "ab").backward()
    saved = state.state_dict()
    left = saved["residuals"]["first.weight"].clone()
    assert left.any()
    leave_the_store()

    def job(*, is_frozen: bool) -> tuple[DDP, gw.torch.HookState]:
        model = make_branches()
        model.first.requires_grad_(not is_frozen)
        return hooked(model, "2bit:threshold=0.02")

    wrapped, state = job(is_frozen=True)
    state.load_state_dict(saved)
    Ledger.loss(wrapped, 3, "ab").backward()
    gw.torch.save_checkpoint(folder, wrapped, state)
    for is_frozen in (True, False):
        leave_the_store()
        wrapped, state = job(is_frozen=is_frozen)
        gw.torch.load_checkpoint(folder, wrapped, state)
        assert torch.equal(state.state_dict()["residuals"]["first.weight"], left)
        Ledger.loss(wrapped, 4, "ab").backward()
        assert torch.equal(state.state_dict()["residuals"]["first.weight"], left) == is_frozen
    gw.torch.save_checkpoint(folder, wrapped, state)
    leave_the_store()


@case
def what_a_checkpoint_cannot_hold_is_refused() -> None:
    model = make_branches()
    wrapped, state = hooked(model, "2bit:threshold=0.02")
    state.load_state_dict({"rank": dist.get_rank(), "residuals": {"a.weight": torch.ones(1600)}})
    with pytest.raises(ValueError, match="no step has been taken with it; take one first"):
        gw.torch.save_checkpoint(shared_folder(), wrapped, state)
    Ledger.loss(wrapped, 0, "ab").backward()
    store = gw.kv.joined()
    optimizer = gw.torch.DistributedOptimizer(torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1), store=store)
    with pytest.raises(TypeError, match="beside what takes gradients of DDP or FSDP2"):
        gw.torch.save_checkpoint(shared_folder(), wrapped, [optimizer, state])
    with pytest.raises(TypeError, match="beside HookStates"):
        gw.torch.save_checkpoint(shared_folder(), wrapped, [state, optimizer])
    optimizer.close()


# ---- compilers ---------------------------------------------------------------------------------------------------


@case
def a_compiled_backward_without_buckets_is_refused() -> None:
    with pytest.raises(TypeError, match=r"given a tuple, expected one of DDP's buckets.*'python_reducer'"):
        gw.torch.ddp_hook(STATES[-1] if STATES else BEFORE_THE_GROUP, (torch.ones(3), torch.ones(3)))  # type: ignore[arg-type]


if __name__ == "__main__":
    run_cases_in_a_group(leave_states)
