"""The sum of one key's values from several devices of one worker, compressed or not."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from gradwire import compress


class DeviceSum:
    """Adds the devices' values in the order given; a lossy codec keeps one residual per (key, device).

    MXNet's `device` store does the same: each device quantises with a residual of its own, the codes are summed, and
    only the sum is stored (mxnet src/kvstore/comm.h, ReduceCompressed).
    """

    def __init__(self, spec: str) -> None:
        self._codec = compress.make(spec)
        self._residuals: dict[tuple[Hashable, int], Any] = {}
        self._scales: dict[Hashable, Any] = {}

    def add(self, key: Hashable, values: Sequence[Any]) -> Any:
        """Returns the sum: float32, the values' shape.

        Args:
            key: names the tensor; the same shape at every call.
            values: float32 contiguous arrays, one per device, all of one shape.
        """
        if not self._codec.lossy:
            total = np.array(values[0], dtype=np.float32)
            for value in values[1:]:
                total += np.asarray(value)
            return total
        payloads = [self._encode(key, device, np.asarray(value)) for device, value in enumerate(values)]
        size = int(np.size(values[0]))
        reply = self._codec.encode_reply(payloads, size, reply="fp32")
        total, self._scales[key] = self._codec.decode_reply(reply, len(payloads), size, reply="fp32")
        return total.reshape(np.shape(values[0]))

    @staticmethod
    def add_on_device(values: Sequence[Any]) -> Any:
        """Returns the sum, uncompressed, on the device of the first value, with the bits that add() gives.

        Args:
            values: float32 tensors of PyTorch, each on a device, all of one shape.
        """
        total = values[0]
        for value in values[1:]:
            total = total + value.to(total.device)
        return total

    def state(self) -> tuple[dict[tuple[Hashable, int], Any], dict[Hashable, Any]]:
        """Returns what the next add() depends on: residuals by (key, device), float32 (elements,); and agreed scales by
        key, float32 (units, 2).
        """
        agreed = {key: scales for key, scales in self._scales.items() if scales is not None}
        return dict(self._residuals), agreed

    def load(self, residuals: dict[tuple[Hashable, int], Any], scales: dict[Hashable, Any]) -> None:
        """Goes on from what state() returned."""
        self._residuals, self._scales = dict(residuals), dict(scales)

    def _encode(self, key: Hashable, device: int, value: Any) -> Any:
        residual = self._residuals.setdefault((key, device), np.zeros(value.size, np.float32))
        return self._codec.encode(value.reshape(-1), residual=residual, scales=self._scales.get(key))


def is_on_device(value: Any) -> bool:
    """True for a tensor of PyTorch on a CUDA device."""
    return getattr(getattr(value, "device", None), "type", "cpu") == "cuda"


def stream_of(array: Any) -> dict[str, int]:
    """What an engine's call needs beside an array on a CUDA device: the stream that may still be using it."""
    if not is_on_device(array):
        return {}
    import torch  # array is a torch tensor, so torch is there

    return {"stream": torch.cuda.current_stream(array.device).cuda_stream}
