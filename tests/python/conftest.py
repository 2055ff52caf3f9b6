"""What the tests of stores share."""

from __future__ import annotations

from collections.abc import Iterator

import gradwire
import pytest
from gradwire.kv import KVStore


@pytest.fixture
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever job the tests run in, they are not of it."""
    for variable in ("GRADWIRE_ROLE", "DMLC_ROLE", "GRADWIRE_COMPRESSION", "GRADWIRE_SCHEDULER"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def stores() -> Iterator[list[KVStore]]:
    """For a test to put stores into: they are closed after it."""
    opened: list[KVStore] = []
    yield opened
    for store in opened:
        store.close()


@pytest.fixture(params=["local", "device"])
def kv(request: pytest.FixtureRequest, no_job: None) -> Iterator[KVStore]:
    store = gradwire.kv.create(request.param)
    yield store
    store.close()
