"""A script's record and progress may hold numbers of NumPy, PyTorch and others; what is no number is named."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradwire import result

NUMBERS = {
    "NumPy's scalars": [np.float32(0.5), np.float64(0.75)],
    "an array": np.array([0.5, 0.75], dtype=np.float32),
    "an array of longdouble": np.array([0.5, 0.75], dtype=np.longdouble),
    "PyTorch's scalars": [torch.tensor(0.5), torch.tensor(0.75, requires_grad=True)],
    "a tensor": torch.tensor([0.5, 0.75], dtype=torch.bfloat16),
    "Python's": (Fraction(1, 2), Decimal("0.75")),
}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADWIRE_RESULT", str(tmp_path / "r.json"))
    monkeypatch.setattr(result, "_said_at", -1.0)
    return tmp_path / "r.json"


@pytest.mark.parametrize("library", NUMBERS)
def test_numbers_of_any_library_are_written(library: str, record: Path) -> None:
    given: Any = NUMBERS[library]
    result.write(accuracy_per_epoch=given, steps=np.int64(40), codec_seconds=given[0], more={"a": given})
    found = result.read(record)
    assert (found.per_epoch, found.steps, found.codec_seconds) == ((0.5, 0.75), 40, 0.5)
    assert json.loads(record.read_text())["more"] == {"a": [0.5, 0.75]}


@pytest.mark.parametrize(
    ("value", "kind"),
    [(b"\0", "bytes"), ([bytearray(b"\0")], "bytearray"), (np.array([1j]), "complex"), ({0.5}, "set")],
)
@pytest.mark.parametrize("field", ["loss_per_epoch", "more"])
def test_what_cannot_be_written_is_named_with_its_type(
    field: str, value: Any, kind: str, record: Path
) -> None:
    with pytest.raises(
        ValueError, match=rf"result: {field} has a value of type {kind}, expected numbers or text"
    ):
        result.write(**{"loss": 1.0, field: value})
    assert not record.exists()


def test_an_array_without_an_epoch_is_an_empty_list(record: Path) -> None:
    with pytest.raises(ValueError, match="loss_per_epoch is empty"):
        result.write(loss_per_epoch=np.array([]))


def test_progress_is_such_a_number_too(record: Path) -> None:
    result.progress(np.float32(0.5), accuracy=torch.tensor(0.25))
    assert result.read_progress(record) == result.RunProgress(0.5, 0.25)
