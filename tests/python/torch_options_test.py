"""DistributedOptimizer's options, on one rank whose store compresses, so that everything but the wire is at work."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from python.compressed_net import changed_by_the_codec, exact_gradients, loss_of, make, wrap
from torch import nn


@pytest.fixture
def store() -> Iterator[gw.kv.KVStore]:
    store = gw.kv.create("local")
    yield store
    store.close()


def step(model: nn.Module, optimizer: Any, seed: int) -> None:
    optimizer.zero_grad()
    loss_of(model, seed).backward()
    optimizer.step()


# ---- which codec -------------------------------------------------------------------------------------------------


def test_biases_and_norms_are_not_compressed(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store, "2bit:threshold=0.01")
    assert changed_by_the_codec(model, 1) == {"words.weight", "first.weight", "last.weight"}
    optimizer.close()


def test_patterns_choose_codecs_and_the_first_one_counts(store: gw.kv.KVStore) -> None:
    model = make()
    codecs = {"words.*": "none", "*.bias": "2bit:threshold=0.01", "first.*": "none"}
    optimizer = wrap(model, store, "2bit:threshold=0.01", codecs=codecs)
    assert changed_by_the_codec(model, 1) == {"last.weight", "first.bias", "norm.bias", "last.bias"}
    for name, p in model.named_parameters():
        if name.endswith(".bias"):
            multiples = p.grad / 0.01
            torch.testing.assert_close(multiples, multiples.round())
    optimizer.close()


def test_every_parameter_is_compressed_on_demand(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store, "2bit:threshold=0.01", codecs={"*": "2bit:threshold=0.01"})
    assert changed_by_the_codec(model, 1) == {name for name, _ in model.named_parameters()}
    optimizer.close()


def test_an_arm_sets_aside_all_that_the_script_says_of_codecs(
    store: gw.kv.KVStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_COMPRESSION", "2bit:threshold=0.01")
    model = make()
    optimizer = wrap(model, store, "fp16", codecs={"*": "none"}, warm_up=[("none", 100)])
    assert changed_by_the_codec(model, 1) == {"words.weight", "first.weight", "last.weight"}
    multiples = model.first.weight.grad / 0.01
    torch.testing.assert_close(multiples, multiples.round())
    optimizer.close()
    monkeypatch.setenv("GRADWIRE_COMPRESSION", "none")  # the arm that others are compared to
    optimizer = wrap(model, store, "fp16", codecs={"*": "fp16"}, warm_up=[("fp16", 100)])
    assert changed_by_the_codec(model, 1) == set()
    optimizer.close()


@pytest.mark.parametrize("compression", [None, "fp16"])
def test_wrapping_again_during_a_warm_up_is_not_left_with_its_stage(
    compression: str | None, store: gw.kv.KVStore
) -> None:
    model = make()
    first = wrap(model, store, "2bit:threshold=0.01", warm_up=[("fp16", 100)])
    step(model, first, 0)
    assert store.compression.spec.startswith("fp16")
    second = gw.torch.DistributedOptimizer(first, model.named_parameters(), compression, store)
    assert store.compression.spec.startswith("none" if compression is None else compression)
    second.close()


@pytest.mark.parametrize(
    "wrapper", [gw.torch.DistributedOptimizer, gw.torch.LocalStepOptimizer], ids=lambda each: each.__name__
)
def test_arguments_that_are_not_there_are_refused_with_what_to_use(wrapper: Any) -> None:
    """They had been a bare TypeError of Python's. HookState, whose argument is codec, says the opposite."""
    optimizer = torch.optim.SGD(make().parameters(), lr=0.1)
    who = wrapper.__name__
    required = {"sync_every": 2} if wrapper is gw.torch.LocalStepOptimizer else {}
    for name, text in {
        "codec": rf"{who} has no codec, which is HookState's: it is called compression here$",
        "process_group": rf"{who} has no process_group, which is HookState's: it joins by store",
        "warmup": rf"{who} has no argument 'warmup'; it has .*codecs, compression, .*optimizer, ",
    }.items():
        with pytest.raises(TypeError, match=text) as raised:
            wrapper(optimizer, **required, **{name: "int8"})
        assert "others" not in str(raised.value)


# ---- checkpoints -------------------------------------------------------------------------------------------------


def test_a_checkpoint_goes_on_bit_for_bit(store: gw.kv.KVStore) -> None:
    """Through torch.save and torch.load(weights_only=True); residuals and the warm-up's step are in it."""
    options: dict[str, Any] = {"warm_up": [("fp16", 5)]}
    model = make()
    optimizer = wrap(model, store, "2bit:threshold=0.01", **options)
    for seed in range(4):
        step(model, optimizer, seed)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    for seed in range(4, 8):
        step(model, optimizer, seed)
    optimizer.close()
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert set(saved["optimizer"]["gradwire"]["residuals"]) == {"words.weight", "first.weight", "last.weight"}
    later = make(seed=5)
    later.load_state_dict(saved["model"])
    optimizer = wrap(later, store, "2bit:threshold=0.01", **options)
    optimizer.load_state_dict(saved["optimizer"])
    for seed in range(4, 8):
        step(later, optimizer, seed)
    for (name, a), b in zip(model.named_parameters(), later.parameters(), strict=True):
        assert torch.equal(a, b), name
    optimizer.close()


def test_residuals_of_another_rank_are_left(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store, "2bit:threshold=0.01")
    step(model, optimizer, 0)
    state = copy.deepcopy(optimizer.state_dict())
    state["gradwire"]["rank"] = 3
    assert optimizer.state_dict()["gradwire"]["residuals"]["first.weight"].any()
    state["gradwire"]["residuals"]["first.weight"].fill_(7)
    with pytest.warns(UserWarning, match="residuals of rank 3, so rank 0 begins without"):
        optimizer.load_state_dict(state)
    assert not optimizer.state_dict()["gradwire"]["residuals"]["first.weight"].any()
    optimizer.close()


@pytest.mark.parametrize("left_out", [{"first.weight"}, {"words.weight", "first.weight", "last.weight"}])
def test_what_a_checkpoint_lacks_begins_with_nothing_to_send(
    left_out: set[str], store: gw.kv.KVStore
) -> None:
    """A rollback to a checkpoint from before the first step must not send what was left after it."""
    model = make()
    optimizer = wrap(model, store, "2bit:threshold=0.01")
    step(model, optimizer, 0)
    state = copy.deepcopy(optimizer.state_dict())
    kept = {n: r for n, r in state["gradwire"]["residuals"].items() if n not in left_out}
    if kept:
        state["gradwire"]["residuals"] = kept
    else:
        del state["gradwire"]
    step(model, optimizer, 1)
    optimizer.load_state_dict(state)
    residuals = optimizer.state_dict()["gradwire"]["residuals"]
    assert {name for name, residual in residuals.items() if not residual.any()} == left_out
    assert all(torch.equal(residuals[name], residual) for name, residual in kept.items())
    optimizer.close()


def test_a_broadcast_optimizer_state_leaves_residuals_alone(store: gw.kv.KVStore) -> None:
    """What broadcast_optimizer_state() loads on the other ranks is the root's, without what the root has not sent."""
    model = make()
    optimizer = wrap(model, store, "2bit:threshold=0.01")
    step(model, optimizer, 0)
    state = copy.deepcopy(optimizer.state_dict())
    before = state.pop("gradwire")["residuals"]
    optimizer.load_shared_state(state)
    after = optimizer.state_dict()["gradwire"]["residuals"]
    assert all(torch.equal(after[name], residual) for name, residual in before.items())
    optimizer.close()


def test_state_of_a_plain_optimizer_is_interchangeable(store: gw.kv.KVStore) -> None:
    model = make()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_of(model, 0).backward()
    plain.step()
    optimizer = wrap(model, store, "2bit:threshold=0.01")
    optimizer.load_state_dict(plain.state_dict())
    step(model, optimizer, 0)
    optimizer.close()


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"]
)
def test_copies_exchange_nothing(copied: Any, store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store, "2bit:threshold=0.01")
    step(model, optimizer, 0)
    twin = copied(optimizer)
    assert type(twin) is torch.optim.SGD
    assert twin.param_groups[0]["lr"] == 0.1
    assert len(twin.state) == len(optimizer.state)
    for p in twin.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    twin.step()
    copy_of_the_model = copy.deepcopy(model)
    copy_of_the_model.zero_grad()
    loss_of(copy_of_the_model, 1).backward()  # its own gradients: no hook came along
    exact = exact_gradients(model, 1)
    assert all(torch.equal(p.grad, exact[name]) for name, p in copy_of_the_model.named_parameters())
    step(model, optimizer, 1)
    optimizer.close()


# ---- groups that are added ---------------------------------------------------------------------------------------


def test_names_of_an_added_group_are_those_given_where_torch_takes_them(store: gw.kv.KVStore) -> None:
    model = make()
    pairs = list(model.named_parameters())
    for given in (pairs[:2], [p for _, p in pairs[:2]]):
        optimizer = gw.torch.DistributedOptimizer(
            torch.optim.SGD(given, lr=0.1), pairs[:2], "2bit:threshold=0.01", store
        )
        if given == pairs[:2]:
            optimizer.add_param_group({"params": pairs[2:]})
        else:
            with pytest.raises(ValueError, match="with/without names"):  # torch's own
                optimizer.add_param_group({"params": pairs[2:]})
            optimizer.add_param_group({"params": [p for _, p in pairs[2:]]})
        step(model, optimizer, 0)
        residuals = optimizer.state_dict()["gradwire"]["residuals"]
        assert ("last.weight" in residuals) == (given == pairs[:2]), residuals.keys()
        assert len(residuals) == 3
        optimizer.close()


# ---- wrapped already ---------------------------------------------------------------------------------------------


def test_wrapping_again_takes_over(store: gw.kv.KVStore) -> None:
    model = make()
    first = wrap(model, store, "2bit:threshold=0.01")
    step(model, first, 0)
    second = gw.torch.DistributedOptimizer(
        first, model.named_parameters(), "none", store, codecs={"*": "fp16"}
    )
    assert type(second).__bases__[1] is torch.optim.SGD
    assert second.param_groups is first.param_groups
    step(model, second, 1)
    second.close()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"warm_up": [("fp16", 0)]}, ValueError),
        ({"warm_up": 5}, TypeError),
        ({"momentum_correction": True}, ValueError),  # of AdamW
        ({"codecs": {"*.wieght": "fp16"}}, ValueError),
        ({"on_nonfinite": "skip"}, ValueError),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else None,
)
def test_a_refused_wrapping_leaves_the_first_one_as_it_was(
    options: dict[str, Any], error: type[Exception], store: gw.kv.KVStore
) -> None:
    """It had ended the first one's exchange, and the ranks' weights parted."""
    model = make()
    first = gw.torch.DistributedOptimizer(
        torch.optim.AdamW(model.parameters()), model.named_parameters(), "2bit:threshold=0.01", store
    )
    with pytest.raises(error):
        gw.torch.DistributedOptimizer(first, model.named_parameters(), "fp16", store, **options)
    assert changed_by_the_codec(model, 0) == {"words.weight", "first.weight", "last.weight"}
    assert store.compression.spec.startswith("2bit")
    first.close()


class HorovodLike(torch.optim.Optimizer):
    """Horovod's way of wrapping, whose own package cannot be built against a current torch: hooks on autograd's
    accumulators that count down and then exchange, in a class made for the one instance (horovod/torch/optimizer.py).
    """

    exchanged = 0

    def begin(self) -> None:
        self._allreduce_delay = {p: 1 for group in self.param_groups for p in group["params"]}
        self._accumulators = []
        for p in self._allreduce_delay:
            accumulator = p.expand_as(p).grad_fn.next_functions[0][0]
            accumulator.register_hook(lambda *_, p=p: self.count_down(p))
            self._accumulators.append(accumulator)

    def count_down(self, p: torch.Tensor) -> None:
        assert self._allreduce_delay[p] > 0
        self._allreduce_delay[p] -= 1
        if self._allreduce_delay[p] == 0:
            HorovodLike.exchanged += 1

    def skip_synchronize(self) -> None: ...

    def step(self, closure: Any = None) -> None:
        raise AssertionError("Horovod would synchronise here")


def test_horovods_optimizer_is_taken_over(store: gw.kv.KVStore) -> None:
    model = make()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    inner.__class__ = type("SGD", (torch.optim.SGD,), dict(HorovodLike.__dict__))
    inner.begin()
    loss_of(model, 0).backward()
    assert HorovodLike.exchanged == len(list(model.parameters()))  # so it does exchange by itself
    inner._allreduce_delay = dict.fromkeys(inner._allreduce_delay, 1)
    HorovodLike.exchanged = 0
    optimizer = gw.torch.DistributedOptimizer(inner, model.named_parameters(), "fp16", store)
    before = copy.deepcopy(model.state_dict())
    for seed in range(3):
        step(model, optimizer, seed)
    assert HorovodLike.exchanged == 0
    assert not torch.equal(model.last.weight, before["last.weight"])
    optimizer.close()


# ---- failures ----------------------------------------------------------------------------------------------------


def test_a_failed_backward_leaves_the_optimizer_usable(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store, "2bit:threshold=0.01", on_nonfinite="skip_step")
    undisturbed = copy.deepcopy(model)
    handle = model.first.register_full_backward_hook(lambda *_: (_ for _ in ()).throw(KeyError("mine")))
    optimizer.zero_grad()
    with pytest.raises(KeyError, match="mine"):
        loss_of(model, 0).backward()
    handle.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, optimizer, 1)
    optimizer.close()
    optimizer = wrap(undisturbed, store, "2bit:threshold=0.01", on_nonfinite="skip_step")
    step(undisturbed, optimizer, 1)
    for (name, a), b in zip(model.named_parameters(), undisturbed.parameters(), strict=True):
        assert torch.equal(a, b), name
    optimizer.close()


def test_a_sparse_gradient_with_a_nan_is_skipped_alone_too(store: gw.kv.KVStore) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        store=store,
        on_nonfinite="skip_step",
    )
    before = model.weight.detach().clone()

    def step(factor: float) -> None:
        optimizer.zero_grad()
        (factor * model(torch.tensor([1, 3]))).sum().backward()
        optimizer.step()

    with pytest.warns(RuntimeWarning, match="no rank takes this step"):
        step(float("nan"))
    assert torch.equal(model.weight, before)
    step(1.0)
    assert (model.weight != before).any(1).tolist() == [False, True, False, True, False]


def test_the_norm_of_gradients_is_bounded(store: gw.kv.KVStore) -> None:
    model = make()
    optimizer = wrap(model, store, "fp16", max_grad_norm=0.01)
    loss_of(model, 0).backward()
    optimizer.step()
    total = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    torch.testing.assert_close(total, torch.tensor(0.01), rtol=1e-3, atol=0)
    optimizer.close()


# ---- LBFGS -------------------------------------------------------------------------------------------------------


def test_the_norm_of_gradients_is_bounded_in_every_call_of_a_closure(store: gw.kv.KVStore) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x, inner = torch.randn(8, 4), torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=1)
    optimizer = gw.torch.DistributedOptimizer(
        inner, model.named_parameters(), "fp16", store, max_grad_norm=0.01
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = 100 * model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    total = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    torch.testing.assert_close(total, torch.tensor(0.01), rtol=1e-3, atol=0)
    optimizer.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"on_nonfinite": "skip_step"}, "on_nonfinite='skip_step'"),
        ({"grad_scaler": torch.amp.GradScaler("cpu")}, "grad_scaler"),
    ],
)
def test_what_cannot_veto_a_step_of_lbfgs_is_refused(
    options: dict[str, Any], named: str, store: gw.kv.KVStore
) -> None:
    model = make()
    with pytest.raises(ValueError, match=f"{named} cannot veto a step of LBFGS.*use on_nonfinite='warn'"):
        gw.torch.DistributedOptimizer(
            torch.optim.LBFGS(model.parameters()), model.named_parameters(), "fp16", store, **options
        )


# ---- sparse gradients --------------------------------------------------------------------------------------------


def test_what_thaws_in_the_first_step_leaves_sparse_gradients_sparse(store: gw.kv.KVStore) -> None:
    model = make()
    model.words = nn.Embedding(30, 8, sparse=True)
    model.last.requires_grad_(False)
    optimizer = gw.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), "fp16", store
    )
    model.last.requires_grad_(True)
    step(model, optimizer, 0)
    step(model, optimizer, 1)
    assert model.words.weight.grad is not None
    assert model.words.weight.grad.is_sparse
    assert not model.last.weight.grad.is_sparse
    optimizer.close()
