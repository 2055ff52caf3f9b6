"""Which optimizers a store serves, by themselves: places, what they keep others from, and what is dropped."""

from __future__ import annotations

import gc
import warnings
from typing import Any, cast

import pytest
import torch
from gradwire.torch.served_optimizers import Place, require_free, served_by


class Store:
    """As much of a KVStore as is asked for."""

    def __init__(self, type: str = "allreduce") -> None:
        self.type = type


def make(store: Store, *names: str) -> tuple[Any, Place]:
    named = [(name, torch.nn.Parameter(torch.ones(2))) for name in names]
    optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=0.1)
    return optimizer, Place(cast(Any, store), optimizer, cast(Any, named))


def check(store: Store, named: list[tuple[str, torch.Tensor]], own: Place | None = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_free(cast(Any, store), named, own)


def test_a_store_serves_its_optimizers_in_the_order_in_which_they_came() -> None:
    store, other = Store(), Store()
    (first, place), (second, _), (third, _) = make(store, "a"), make(store, "b"), make(other, "c")
    assert served_by(cast(Any, store)) == [first, second]
    assert served_by(cast(Any, other)) == [third]
    place.leave()
    assert served_by(cast(Any, store)) == [second]
    assert served_by(cast(Any, Store())) == []


def test_a_parameter_has_one_optimizer_until_it_leaves() -> None:
    store = Store()
    optimizer, place = make(store, "a", "b")
    with pytest.raises(ValueError, match="'b' is in a DistributedOptimizer at this store already"):
        check(store, place.named[1:])
    check(store, place.named, own=place)  # it is taken over
    check(store, [("c", torch.nn.Parameter())])
    check(Store(), place.named)
    place.leave()
    check(store, place.named)
    assert place.optimizer is optimizer


def test_parameters_that_an_optimizer_adds_to_its_list_are_its_own() -> None:
    store = Store()
    _optimizer, place = make(store, "a")
    later = torch.nn.Parameter()
    place.named.append(("later", later))
    with pytest.raises(ValueError, match="'other name' is in"):
        check(store, [("other name", later)])


def test_an_optimizer_that_was_dropped_keeps_its_parameters_and_is_warned_of() -> None:
    store = Store()
    optimizer, place = make(store, "a")
    del optimizer
    gc.collect()
    assert served_by(cast(Any, store)) == []
    with pytest.warns(RuntimeWarning, match=r"dropped without close\(\)"):
        require_free(cast(Any, store), [("b", torch.nn.Parameter())], None)
    with (
        pytest.warns(RuntimeWarning, match=r"dropped without close\(\)"),
        pytest.raises(ValueError, match="it is not enough to drop it"),
    ):
        require_free(cast(Any, store), place.named, None)


@pytest.mark.parametrize("type", ["nccl", "allreduce_mpi"])
def test_a_store_in_which_a_library_sums_serves_one(type: str) -> None:
    store = Store(type)
    new: list[tuple[str, torch.Tensor]] = [("b", torch.nn.Parameter())]
    check(store, new)
    _optimizer, place = make(store, "a")
    with pytest.raises(ValueError, match=f"the store '{type}' serves one DistributedOptimizer at a time"):
        check(store, new)
    check(store, new, own=place)
