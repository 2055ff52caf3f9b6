"""What all Python tests share: a process state that does not depend on who started them, and a store of one's own.

A shell gives its background jobs an ignored SIGINT (POSIX.1-2017, 2.11), and CI runners start theirs that way. Every
process under test would inherit it, and Ctrl-C would rightly do nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import gradwire
import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def local_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A store of this process alone, uncompressed, whatever job the environment describes."""
    for variable in ("GRADWIRE_ROLE", "DMLC_ROLE", "GRADWIRE_COMPRESSION"):
        monkeypatch.delenv(variable, raising=False)
    opened = gradwire.kv.create("local")
    yield opened
    opened.close()
