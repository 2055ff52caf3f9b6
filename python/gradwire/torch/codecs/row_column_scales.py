"""RowColumnScales: codecs see each matrix of gradients with the scale of its rows and columns taken out.

`2bit` and `1bit` have one level for thousands of elements. Rows and columns of a transformer's gradients differ by
factors of 10 to 100, so small ones wait long and then arrive as one large value. Adam divides by the size of past
gradients, so these elements matter as much as others. Here an element is divided by an estimate of its scale before
the codec, and the mean that comes back is multiplied by it. Residuals are kept in the divided form.

The estimate is Adafactor's: a running mean of squares for each row and for each column, whose product over their mean
stands for the matrix. It is made of the means that came back, which all ranks have, so nothing more is sent. Scales are
relative to the tensor's own, so the size of what a codec sees does not change.

All ranks need the same bits. So sums are made by adding halves, element by element, in which no device, number of
threads or width of vectors makes a difference.

Source: Shazeer and Stern 2018, "Adafactor: adaptive learning rates with sublinear memory cost", section 3, algorithm 1.
Deviation: it scales what a codec sees, not the update; scales have a floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_DECAY = 0.999  # of the running means, a step: AdamW's second
_FLOOR = 0.03  # the smallest scale of a row or column, as a share of the tensor's


class _Squares:
    """Running means of one matrix's squares, and the scales that follow from them.

    Attributes:
        rows, columns: float32 (rows,) and (columns,), not yet divided by what the weights of all steps add up to.
        steps: how many they are of.
        scales: factors of rows (rows, 1) and columns (columns,); None: nothing is known yet.
    """

    def __init__(self, rows: torch.Tensor, columns: torch.Tensor, steps: int) -> None:
        self.rows, self.columns, self.steps = rows, columns, steps
        self.scales = self._scales()

    def learn(self, matrix: torch.Tensor) -> None:
        squares = matrix * matrix
        rows, columns = _mean(squares, 1), _mean(squares, 0)
        if not bool(torch.isfinite(rows).all()):
            return  # the same on all ranks
        self.rows = self.rows.to(matrix.device) * _DECAY + rows * (1 - _DECAY)
        self.columns = self.columns.to(matrix.device) * _DECAY + columns * (1 - _DECAY)
        self.steps += 1
        self.scales = self._scales()

    def _scales(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        mean = _mean(self.rows.unsqueeze(0), 1)
        if self.steps == 0 or not bool(mean > 0):
            return None
        floor = _FLOOR * _FLOOR
        rows = ((self.rows / mean + floor) / (1 + floor)).sqrt()
        columns = ((self.columns / mean + floor) / (1 + floor)).sqrt()
        return rows.unsqueeze(1), columns


class RowColumnScales:
    """The scales of a model's parameters, by name. One thread at a time."""

    def __init__(self) -> None:
        self._squares: dict[str, _Squares] = {}

    def divide(self, name: str, run: torch.Tensor, rows: int) -> None:
        """Divides what is to be sent, in place.

        Args:
            run: float32 (elements,), in the order of memory.
            rows: how many the parameter has, by memory_rows().
        """
        if (scales := self._scales(name, run)) is not None:
            run.view(rows, -1).div_(scales[0]).div_(scales[1])

    def multiply(self, name: str, run: torch.Tensor, rows: int) -> None:
        """Multiplies what divide() divided, in place."""
        if (scales := self._scales(name, run)) is not None:
            run.view(rows, -1).mul_(scales[0]).mul_(scales[1])

    def learn(self, name: str, mean: torch.Tensor, rows: int) -> None:
        """Takes in the workers' mean gradient, after multiply(). Means with a NaN or an infinity are left out."""
        matrix = mean.view(rows, -1)
        if name not in self._squares:
            zeros = torch.zeros(sum(matrix.shape), device=mean.device)
            self._squares[name] = _Squares(zeros[:rows], zeros[rows:], 0)
        self._squares[name].learn(matrix)

    def _scales(self, name: str, run: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        if name not in self._squares or (scales := self._squares[name].scales) is None:
            return None
        return scales[0].to(run.device), scales[1].to(run.device)  # they were loaded on the CPU

    def state(self) -> dict[str, Any]:
        """Returns what load() goes on from, the same on all ranks."""
        return {
            name: {"rows": each.rows, "columns": each.columns, "steps": each.steps}
            for name, each in self._squares.items()
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on from what state() returned."""
        self._squares = {
            name: _Squares(each["rows"].clone(), each["columns"].clone(), int(each["steps"]))
            for name, each in state.items()
        }


def memory_rows(parameter: torch.Tensor) -> int | None:
    """Returns how many rows a parameter's memory has; None: it has no rows, or is not summed in float32."""
    if parameter.dim() < 2 or parameter.numel() == 0 or parameter.dtype in (torch.float64, torch.complex128):
        return None
    longest = max(range(parameter.dim()), key=lambda dimension: (parameter.stride(dimension), -dimension))
    return parameter.shape[longest]


def _mean(values: torch.Tensor, dimension: int) -> torch.Tensor:
    """Returns the mean over a dimension of (rows, columns), of the same bits on every device."""
    size = values.shape[dimension]
    left, total = size, values
    while left > 1:
        half = left // 2
        upper = total.narrow(dimension, half, left - half)
        total = upper + torch.nn.functional.pad(
            total.narrow(dimension, 0, half), _padding(dimension, left - half - half)
        )
        left -= half
    return total.select(dimension, 0) / size


def _padding(dimension: int, elements: int) -> tuple[int, ...]:
    return (0, elements) if dimension == 1 else (0, 0, 0, elements)
