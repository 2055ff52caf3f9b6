"""StoreCompression by itself: what the engine and the store's keys compress by, before, during and after a loan."""

from __future__ import annotations

from typing import Any, cast

from gradwire.compress import Compression
from gradwire.stores.store_compression import StoreCompression

NONE, FP16, INT8, TOPK = map(Compression.parse, ("none", "fp16", "int8", "topk:ratio=0.25"))


class Engine:
    """Notes the codecs that it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def set_compression(self, spec: str, reply: str, weights: str) -> None:
        self.told.append(spec)


class Keys:
    """Notes the codecs that keys get as their own."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def use_compression(self, compression: Compression) -> None:
        self.given.append(compression.spec)


def make() -> tuple[StoreCompression, Engine, Keys]:
    engine, keys = Engine(), Keys()
    return StoreCompression(cast(Any, engine), (keys,)), engine, keys


def all_of(compression: StoreCompression) -> tuple[Compression, Compression, Compression]:
    return compression.in_force, compression.own, compression.of_keys


def test_a_store_begins_without_and_has_what_is_set() -> None:
    compression, engine, keys = make()
    assert all_of(compression) == (NONE, NONE, NONE)
    compression.use(FP16)
    assert all_of(compression) == (FP16, FP16, FP16)
    assert (engine.told, keys.given) == ([FP16.spec], [])  # keys follow the engine


def test_during_a_loan_keys_keep_the_stores_and_afterwards_the_engine_gets_it_back() -> None:
    compression, engine, keys = make()
    compression.use(FP16)
    borrower = object()
    compression.lend(INT8, borrower)
    assert all_of(compression) == (INT8, FP16, FP16)
    assert (engine.told[1:], keys.given) == ([INT8.spec], [FP16.spec])
    compression.reclaim()  # not while somebody has it
    assert engine.told[2:] == []
    compression.give_back(borrower)
    assert all_of(compression) == (FP16, FP16, FP16)
    assert engine.told[2:] == []
    for _ in range(2):  # once
        compression.reclaim()
    assert engine.told[2:] == [FP16.spec]
    assert all_of(compression) == (FP16, FP16, FP16)


def test_a_later_borrower_replaces_an_earlier_one_which_then_has_nothing_to_give_back() -> None:
    compression, engine, keys = make()
    first, second = object(), object()
    compression.lend(INT8, first)
    compression.lend(TOPK, second)
    compression.give_back(first)
    assert all_of(compression) == (TOPK, NONE, NONE)
    compression.give_back(second)
    compression.reclaim()
    assert engine.told == [INT8.spec, TOPK.spec, NONE.spec]
    assert keys.given == [NONE.spec]


def test_what_is_set_during_a_loan_ends_it_and_reaches_keys() -> None:
    compression, engine, keys = make()
    borrower = object()
    compression.lend(INT8, borrower)
    compression.use(FP16)
    assert all_of(compression) == (FP16, FP16, FP16)
    compression.give_back(borrower)
    compression.reclaim()
    assert engine.told == [INT8.spec, FP16.spec]
    assert keys.given == [NONE.spec, FP16.spec]
    compression.use(TOPK)  # keys that have a codec of their own still follow
    assert keys.given[2:] == [TOPK.spec]


def test_keys_that_are_declared_during_a_loan_are_covered() -> None:
    compression, _, keys = make()
    compression.cover_new_keys()
    assert keys.given == []
    borrower = object()
    compression.lend(INT8, borrower)
    compression.cover_new_keys()
    assert keys.given == [NONE.spec, NONE.spec]


def test_where_devices_encode_the_engine_is_left_alone() -> None:
    compression, engine, keys = make()
    compression.use_beside_engine(FP16)
    assert all_of(compression) == (FP16, FP16, NONE)
    borrower = object()
    compression.lend(INT8, borrower)
    compression.use_beside_engine(TOPK)
    assert all_of(compression) == (INT8, TOPK, NONE)
    compression.give_back(borrower)
    compression.reclaim()
    assert all_of(compression) == (TOPK, TOPK, NONE)
    assert engine.told == [INT8.spec, NONE.spec]
    assert keys.given == [NONE.spec]
