"""An optimizer like Adam with 2bit or 1bit warns, once in a process; others, and other codecs, do not."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
import torch.optim.optimizer as optimizer_module
from gradwire.torch.codecs import adam_warning
from python.compressed_net import make
from torch import nn

Make = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


class Mine(torch.optim.AdamW):
    pass


class WithBetas(torch.optim.Optimizer):
    """Of another library: no relation of torch's Adam."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "betas": (0.9, 0.99)})


@pytest.fixture
def store() -> Iterator[gw.kv.KVStore]:
    store = gw.kv.create("local")
    yield store
    store.close()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process of its own."""
    monkeypatch.setattr(adam_warning, "_has_warned", False)
    monkeypatch.setattr(adam_warning, "_watched", [])
    monkeypatch.setattr(adam_warning, "_seen", weakref.WeakKeyDictionary())


def is_watching() -> bool:
    """Whether a step of any optimizer has work beside its own."""
    return bool(adam_warning._watched or adam_warning._seen)


def texts(
    store: gw.kv.KVStore, kind: Make, compression: str, model: nn.Module | None = None, **options: Any
) -> list[str]:
    """The warnings on Adam's account that wrapping brings, and the wrapper is closed."""
    model = make() if model is None else model
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gw.torch.DistributedOptimizer(
            kind(model.parameters()), model.named_parameters(), compression, store, **options
        ).close()
    return [str(each.message) for each in caught if "int8" in str(each.message)]


@pytest.mark.parametrize("compression", ["2bit", "1bit", "2bit:threshold=0.5", "2bit:reply=2bit"])
@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.Adamax,
        Mine,
        WithBetas,
    ],
)
def test_adam_with_few_levels_warns_and_names_the_fix(
    kind: Make, compression: str, store: gw.kv.KVStore
) -> None:
    (text,) = texts(store, kind, compression)
    codec = compression.partition(":")[0]
    assert f"{kind.__name__} loses accuracy with the codec {codec}" in text  # type: ignore[attr-defined]
    assert text.endswith('use "int8", "nf4" or "nf2" instead')
    assert ". " not in text, "one sentence"


def test_it_warns_once(store: gw.kv.KVStore) -> None:
    assert len(texts(store, torch.optim.Adam, "2bit")) == 1
    assert texts(store, torch.optim.AdamW, "1bit") == []


@pytest.mark.parametrize("compression", ["none", "int8", "int4", "nf4", "nf2", "fp16"])
def test_other_codecs_do_not_warn(compression: str, store: gw.kv.KVStore) -> None:
    assert texts(store, torch.optim.AdamW, compression) == []


def test_row_column_scales_are_for_2bit(store: gw.kv.KVStore) -> None:
    assert texts(store, torch.optim.AdamW, "2bit", row_column_scales=True) == []
    (text,) = texts(store, torch.optim.AdamW, "1bit", row_column_scales=True)
    assert "loses accuracy with the codec 1bit" in text


def test_other_optimizers_do_not_warn(store: gw.kv.KVStore) -> None:
    assert texts(store, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "2bit") == []
    assert texts(store, lambda p: torch.optim.Adagrad(p, lr=0.1), "2bit") == []


def test_the_codec_of_each_parameter_counts(store: gw.kv.KVStore) -> None:
    assert texts(store, torch.optim.AdamW, "2bit", codecs={"*": "int8"}) == []
    assert len(texts(store, torch.optim.AdamW, "int8", codecs={"first.*": "2bit"})) == 1


def test_a_filter_silences_it(store: gw.kv.KVStore) -> None:
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "gradwire.torch: AdamW loses accuracy", RuntimeWarning)
        gw.torch.DistributedOptimizer(
            torch.optim.AdamW(model.parameters()), model.named_parameters(), "2bit", store
        ).close()


def test_local_steps_warn_of_the_outer_optimizer_alone(store: gw.kv.KVStore) -> None:
    """The inner one steps on gradients that no codec has touched."""

    def wrap(outer: Any) -> list[str]:
        model = make()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gw.torch.LocalStepOptimizer(
                torch.optim.AdamW(model.parameters()),
                model.named_parameters(),
                "2bit",
                store,
                sync_every=2,
                **outer,
            ).close()
        return [str(each.message) for each in caught if "int8" in str(each.message)]

    assert wrap({}) == []
    assert len(wrap({"outer": lambda weights: torch.optim.Adam(weights, lr=0.1)})) == 1


# -- where an exchange has parameters, and no optimizer ------------------------------------------------------------


def watch(model: nn.Module, codec: str) -> None:
    adam_warning.watch((weakref.ref(p), codec) for p in model.parameters())


def step(*optimizers: torch.optim.Optimizer) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.ones_like(p)
        optimizer.step()


@contextmanager
def noting() -> Iterator[list[str]]:
    """Notes the warnings on Adam's account."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
        found += [str(each.message) for each in caught if "int8" in str(each.message)]


@pytest.mark.parametrize("codec", ["2bit", "1bit", "2bit:threshold=0.5"])
def test_the_first_step_warns_and_ends_the_watch(codec: str) -> None:
    model = make()
    optimizer = Mine(model.parameters())
    with noting() as found:
        watch(model, codec)
        step(optimizer)
    (text,) = found
    assert f"Mine loses accuracy with the codec {codec.partition(':')[0]}" in text
    assert not is_watching()
    with noting() as found:
        watch(make(), codec)
        step(optimizer)
    assert found == []
    assert not is_watching(), "this process has had the warning"


def test_other_codecs_are_not_watched() -> None:
    watch(make(), "int8")
    assert not is_watching()


def test_another_optimizer_ends_the_watch_in_its_second_step() -> None:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with noting() as found:
        watch(model, "2bit")
        step(optimizer)
        step(optimizer)
    assert found == []
    assert not is_watching()


def test_each_optimizer_of_a_model_is_judged() -> None:
    model = make()
    first, *others = model.parameters()
    optimizers = torch.optim.SGD([first], lr=0.1), torch.optim.AdamW(others)
    with noting() as found:
        watch(model, "1bit")
        step(*optimizers)
    assert len(found) == 1


def test_only_the_parameters_that_are_watched_count() -> None:
    model, mine, theirs = make(), make(), make()
    with noting() as found:
        watch(model, "2bit")
        step(torch.optim.AdamW(mine.parameters()))
        step(torch.optim.AdamW(theirs.parameters()))
    assert found == []
    assert is_watching(), "for the model's own"
    with noting() as found:
        step(torch.optim.AdamW(model.parameters()))
    assert len(found) == 1


def test_an_optimizer_that_has_stepped_already_is_judged_again_for_a_later_model() -> None:
    model, later = make(), make()
    optimizer = torch.optim.AdamW([*model.parameters(), *later.parameters()])
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    with noting() as found:
        watch(make(), "2bit")
        step(optimizer, other)
        watch(later, "2bit")
        step(optimizer)
    assert len(found) == 1


def test_what_distributed_optimizer_has_warned_of_is_not_said_again(store: gw.kv.KVStore) -> None:
    model = make()
    watch(model, "2bit")
    assert len(texts(store, torch.optim.AdamW, "2bit")) == 1
    with noting() as found:
        step(torch.optim.AdamW(model.parameters()))
    assert found == []
    assert not is_watching()


def test_a_parameter_is_looked_for_when_the_optimizer_steps() -> None:
    """FSDP2 replaces it where a model is loaded."""
    model = make()
    adam_warning.watch([(lambda: model.first.weight, "2bit")])
    model.first.weight = nn.Parameter(torch.ones(3, 3))
    with noting() as found:
        step(torch.optim.AdamW([model.first.weight]))
    assert len(found) == 1


def test_an_optimizer_that_torch_has_not_initialised_is_left_alone() -> None:
    """Its hooks run, and it has no parameters to look for."""
    watch(make(), "2bit")
    adam_warning._before_step(object.__new__(Mine), (), {})
    assert is_watching()


def test_there_is_one_hook_whatever_is_watched() -> None:
    for _ in range(3):
        watch(make(), "2bit")
    hooks = list(optimizer_module._global_optimizer_pre_hooks.values())
    assert hooks.count(adam_warning._before_step) == 1


def test_nothing_is_kept_alive() -> None:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch(model, "2bit")
    step(optimizer)
    gone = weakref.ref(model), weakref.ref(model.first.weight), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [each() for each in gone] == [None] * 3
    step(torch.optim.AdamW(make().parameters()))


def test_a_compiled_step_warns_and_steps() -> None:
    model, plain = make(), make()
    plain.load_state_dict(model.state_dict())
    optimizer, theirs = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(plain.parameters())
    compiled = torch.compile(optimizer.step, backend="eager")
    step(theirs)
    step(theirs)
    with noting() as found:
        watch(model, "2bit")
        for _ in range(2):
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            compiled()
    assert len(found) == 1
    assert not is_watching()
    for ours, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, expected)
