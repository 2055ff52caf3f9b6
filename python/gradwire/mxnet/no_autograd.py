"""Calls on a store inside `with autograd.record()`: no part of what is differentiated, as MXNet's own are none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import mxnet as mx

__all__ = ["no_autograd"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def no_autograd(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Has autograd look away while the function runs; gluon pulls rows in the middle of a forward pass."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with mx.autograd.pause():
            return function(*args, **kwargs)

    return call
