"""What the programs that run under MXNet's Python have in common: a table of cases, and assertions without pytest."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import mxnet as mx
import numpy as np

Case = TypeVar("Case", bound=Callable[..., None])
CASES: dict[str, Callable[..., None]] = {}


def case(function: Case) -> Case:
    """Adds a function to the table of what this program runs; torch_jobs.case_names() reads it without importing."""
    CASES[function.__name__] = function
    return function


def run_cases(*arguments: Any, only: str | None = None) -> None:
    """Runs all cases, or one, with these arguments, and says "CASE passed" after each."""
    for name, function in CASES.items():
        if only not in (None, name):
            continue
        function(*arguments)
        print(f"{name} passed", flush=True)
    sys.stdout.flush()


def filled(value: float, shape: tuple[int, ...] = (2, 3), dtype: str = "float32", device: int = 0) -> Any:
    return mx.nd.full(shape, value, dtype=dtype, ctx=mx.cpu(device))


def require_equal(array: Any, expected: Any) -> None:
    """Bit for bit; expected is a number or an array."""
    found = array.asnumpy() if hasattr(array, "asnumpy") else array
    np.testing.assert_array_equal(found, np.broadcast_to(np.asarray(expected, found.dtype), found.shape))


def require_signature(function: Callable[..., Any], theirs: str, words: Mapping[Any, str]) -> None:
    """A call that theirs takes, as "tensor, name=None", ours takes too: it begins with the same parameters.

    words: what defaults that are objects are called there.
    """
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        known = isinstance(default, Hashable) and default in words
        text = words[default] if known else repr(default)
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        found.append(f"{stars}{name}" if default is parameter.empty else f"{name}={text}")
    ours = ", ".join(found)
    assert ours == theirs or not theirs or ours.startswith(f"{theirs}, "), (
        f"{function}: {ours} is not {theirs}"
    )


@contextlib.contextmanager
def raises(kind: type[BaseException], pattern: str) -> Iterator[None]:
    found = None
    try:
        yield
    except kind as error:
        found = str(error)
    assert found is not None, f"no {kind.__name__}"
    assert re.search(pattern, found), f"{found!r} does not match {pattern!r}"


def wait_for_file(path: Path, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {path}"
        time.sleep(0.01)
