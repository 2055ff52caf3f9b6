"""How tensors are combined: Horovod's constants, and the names that the store's collectives have for them."""

from __future__ import annotations

from typing import Final

Average: Final = 0
Sum: Final = 1
Adasum: Final = 2
Min: Final = 3
Max: Final = 4
Product: Final = 5

_NAMES = {Average: "average", Sum: "sum", Adasum: "adasum", Min: "min", Max: "max", Product: "product"}


def name_of(op: int) -> str:
    """Returns the name of an operation.

    Raises: ValueError: there is none of this number.
    """
    if op not in _NAMES:
        raise ValueError(
            f"hvd: op={op!r} is no operation; expected hvd.Average, Sum, Adasum, Min, Max or Product"
        )
    return _NAMES[op]


def chosen(op: int | None, average: bool | None) -> int:
    """Reads op and Horovod's older average, of which one may be given; neither is Average.

    Raises: ValueError: both are given.
    """
    if op is not None and average is not None:
        raise ValueError("hvd: op and average were both given; give op alone, average is its older form")
    if op is not None:
        return op
    return Sum if average is False else Average
