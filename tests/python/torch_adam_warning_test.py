"""An optimizer like Adam with 2bit or 1bit warns, once in a process; others, and other codecs, do not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gradwire as gw
import gradwire.torch
import pytest
import torch
from gradwire.torch import optimizer_options
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
    monkeypatch.setattr(optimizer_options, "_has_warned_of_adam", False)


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
