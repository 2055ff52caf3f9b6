"""What a store saves and goes on from: the engine's states, and beside them what Python keeps of its own.

The engine keeps one run of bytes for each worker; here they are an .npz archive: what the caller gave, and the
residuals, scales and numbers of rounds of values that came from several devices.
"""

from __future__ import annotations

import io
import json
import os
import threading
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from gradwire import _core
from gradwire.stores.devices import DeviceSum
from gradwire.stores.refusals import told_to_all

Optimizer = tuple[str, dict[str, float]]

# NumPy reads headers with ast, whose count of recursions is the process's in some releases of CPython: two threads at
# once may get a SystemError (python/cpython issue 106905). Ranks may be threads.
_parsing = threading.Lock()


@dataclass(frozen=True)
class Restored:
    """What load_checkpoint() gives back.

    Attributes:
        num_workers: of the job that was saved.
        rank: whose extra this is: this worker's own; for one that is new, a rank that was there.
        extra: what that worker gave to save_checkpoint().
    """

    num_workers: int
    rank: int
    extra: bytes


def save(engine: _core.Engine, folder: str | PathLike[str], extra: bytes, devices: DeviceSum) -> None:
    """Writes a checkpoint. Collective.

    Raises:
        As KVStore.save_checkpoint().
    """
    with told_to_all(engine, "checkpoint begins"):
        if not isinstance(extra, bytes | bytearray):
            raise TypeError(
                f"save_checkpoint: extra is a {type(extra).__name__}, expected bytes, such as of torch.save() to "
                "io.BytesIO"
            )
        path, packed = os.fspath(folder), _pack(extra, devices)
    engine.save_checkpoint(path, packed)


def load(
    engine: _core.Engine, folder: str | PathLike[str], devices: DeviceSum
) -> tuple[Optimizer | None, Restored]:
    """Goes on from a checkpoint. Collective.

    Returns: the servers' optimizer, if they have one; and what the caller of KVStore.load_checkpoint() gets.

    Raises:
        As KVStore.load_checkpoint().
    """
    with told_to_all(engine, "checkpoint is opened"):
        path = _folder(folder)
    optimizer = engine.load_checkpoint(path)
    restored, arrays = _read(folder, engine.rank)
    devices.load(*_states(arrays))
    return parse_optimizer(optimizer) if optimizer else None, restored


def read_extra(folder: str | PathLike[str], rank: int) -> Restored:
    """Reads what a worker gave to save_checkpoint(), of a checkpoint that need not be loaded.

    Raises:
        gradwire.DecodeError: a file is damaged, or none of a checkpoint.
        ValueError: folder is a file.
        RuntimeError: a file cannot be read.
    """
    return _read(folder, rank)[0]


def parse_optimizer(text: str) -> Optimizer:
    """Reads an optimizer as the engine writes it, "sgd learning_rate=0.1"."""
    name, *parameters = text.split()
    pairs = (parameter.split("=") for parameter in parameters)
    return name, {parameter: float(value) for parameter, value in pairs}


def _pack(extra: bytes, devices: DeviceSum) -> bytes:
    residuals, scales, scales_of, rounds = devices.state()
    names = {
        "residuals": [[key, device] for key, device in residuals],
        "scales": list(scales),
        "scales_of": scales_of,
        "rounds": list(rounds.items()),
    }
    arrays: dict[str, Any] = {
        "extra": np.frombuffer(extra, np.uint8),
        "names": np.frombuffer(json.dumps(names).encode(), np.uint8),
        **{f"residual.{i}": residual for i, residual in enumerate(residuals.values())},
        **{f"scales.{i}": agreed for i, agreed in enumerate(scales.values())},
    }
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def _read(folder: str | PathLike[str], rank: int) -> tuple[Restored, dict[str, Any]]:
    num_workers, given_by, packed = _core.read_front_end(_folder(folder), rank)
    with _parsing, np.load(io.BytesIO(packed), allow_pickle=False) as archive:
        arrays = dict(archive)
    return Restored(num_workers, given_by, arrays["extra"].tobytes()), arrays


def _folder(given: str | PathLike[str]) -> str:
    """Returns the path of a checkpoint.

    Raises:
        ValueError: it is a file, or below one. torch.save() writes files, and people give its path.
    """
    path = Path(given)
    if file := next((each for each in (path, *path.parents) if each.is_file()), None):
        raise ValueError(
            f"load_checkpoint: {str(file)!r} is a file, expected a folder that save_checkpoint() wrote; a file of "
            "torch.save() is loaded by torch.load()"
        )
    return os.fspath(given)


def _states(
    arrays: dict[str, Any],
) -> tuple[dict[tuple[Any, int], Any], dict[Any, Any], str, dict[Any, int]]:
    names = json.loads(arrays["names"].tobytes())
    residuals = {(key, device): arrays[f"residual.{i}"] for i, (key, device) in enumerate(names["residuals"])}
    scales = {key: arrays[f"scales.{i}"] for i, key in enumerate(names["scales"])}
    rounds = dict(names.get("rounds", []))  # version 0.2.0 did not write them
    return residuals, scales, names["scales_of"], rounds
