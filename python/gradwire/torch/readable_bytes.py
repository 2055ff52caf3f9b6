"""Bytes that are written only if they can be read again, and read without running code of whoever wrote them.

What may be in them is what torch.load(weights_only=True) makes, and NumPy's arrays and numbers besides: schedules and
random generators of NumPy's give these.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import threading
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

# NumPy's dtypes but for objects, which could be anything, and for structured ones.
_DTYPES = tuple({type(np.dtype(code)) for code in "?bhilqBHILQefdgFDGSUMm"})
# What NumPy's pickles call, by the names that NumPy 1 and 2 write.
_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")


def _reducer(array: Any) -> Any:
    return array.__reduce__()[0]


_SAFE: list[Any] = [
    bytes,  # of an array without elements
    *_DTYPES,
    np.dtype,
    np.ndarray,
    *((_reducer(np.zeros(1)), f"{module}._reconstruct") for module in _MODULES),
    *((_reducer(np.float64(1)), f"{module}.scalar") for module in _MODULES),
]
# What is safe is the process's: a thread that has read would take it from another.
_safe_lock = threading.Lock()


def write(state: Mapping[str, Any]) -> bytes:
    """Returns what read() makes the state of, on the CPU.

    Raises:
        TypeError: a part of the state cannot be written, or not be read again; names it, as extra['rng'][1].
    """
    try:
        return _written(state)
    except Exception as error:  # pickle's, and of whatever __reduce__() an object has
        for what, value in state.items():
            _require_readable(what, value)
        raise TypeError(f"gradwire.torch: save_checkpoint: it cannot be read again: {error}") from error


def read(written: bytes) -> Any:
    """Undoes write().

    Raises:
        ValueError: there are objects in it that write() refuses, or it is something else.
    """
    with _safe_lock, _numpys_are_safe():
        try:
            return torch.load(io.BytesIO(written), map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, EOFError) as error:
            if not zipfile.is_zipfile(io.BytesIO(written)):
                raise ValueError(
                    "gradwire.torch: the checkpoint was not written by gradwire.torch.save_checkpoint(); load it with "
                    "its store's load_checkpoint()"
                ) from error
            found = re.search(r"GLOBAL (\S+)", str(error))  # torch's advice is for who calls torch.load()
            named = f"a {found[1]}" if found else "more than tensors, numbers and text"
            raise ValueError(
                f"gradwire.torch: the checkpoint holds {named}, which is not made from a file, because that could run "
                "any code; save again, with numbers, text, tensors, NumPy's arrays, and lists and dicts of them, in "
                "its place"
            ) from None


def _numpys_are_safe() -> contextlib.AbstractContextManager[None]:
    """Has torch.load() make NumPy's arrays and numbers inside."""
    if not hasattr(torch.serialization, "safe_globals"):
        return contextlib.nullcontext()  # PyTorch before 2.5, which refuses them: so does write()
    already = torch.serialization.get_safe_globals()  # torch takes back all that it was given for a while
    own: contextlib.AbstractContextManager[None] = torch.serialization.safe_globals(
        [each for each in _SAFE if each not in already]
    )
    return own


def _written(value: Any) -> bytes:
    room = io.BytesIO()
    torch.save(value, room)
    written = room.getvalue()
    read(written)
    return written


def _require_readable(what: str, value: Any) -> None:
    """Raises TypeError for the smallest part of a value that makes it unreadable."""
    try:
        _written(value)
    except Exception as error:
        for inner, part in _parts(what, value):
            _require_readable(inner, part)
        kind = type(value)
        of_dtype = f" of dtype {value.dtype}" if isinstance(value, np.ndarray) else ""
        raise TypeError(
            f"gradwire.torch: save_checkpoint: {what} is a {kind.__module__}.{kind.__qualname__}{of_dtype}, which "
            "load_checkpoint() could not read; expected numbers, text, bytes, tensors, NumPy's arrays of numbers, and "
            "lists, tuples, dicts and sets of them"
        ) from error


def _parts(what: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"a key of {what}", key) for key in value)
        yield from ((f"{what}[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{what}[{i}]", inner) for i, inner in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((f"an element of {what}", inner) for inner in value)
