"""The images: Fashion-MNIST from Debian's package, or scikit-learn's digits where it is missing."""

from __future__ import annotations

import gzip
import importlib.util
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True)
class Dataset:
    """Images are (count, 1, 28, 28) float32, of mean 0 and deviation 1 in the training set; labels 0 to 9."""

    name: str
    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def load(limit: int | None = None, folder: Path = FASHION_MNIST) -> Dataset:
    """Loads Fashion-MNIST from the four idx files in folder, or the digits that come with scikit-learn.

    Args:
        limit: keep only so many training images, the first ones; None: all.

    Raises:
        FileNotFoundError: neither is here; says how to get one.
        ValueError: a file is not what its name says.
    """
    if folder.is_dir():
        pictures = [_read_idx(folder / f"{part}-images-idx3-ubyte.gz", 3) for part in ("train", "t10k")]
        labels = [_read_idx(folder / f"{part}-labels-idx1-ubyte.gz", 1) for part in ("train", "t10k")]
        return _standardise("fashion-mnist", pictures, labels, limit)
    if importlib.util.find_spec("sklearn") is None:
        raise FileNotFoundError(
            f"dataset: {folder} is missing and scikit-learn is not installed: expected one of them; "
            "apt install dataset-fashion-mnist, or pip install scikit-learn"
        )
    return _digits(limit)


def _digits(limit: int | None) -> Dataset:
    from sklearn.datasets import load_digits

    digits = load_digits()  # 1797 pictures of 8x8, values 0 to 16
    pictures = np.pad(np.kron(digits.images, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2))) * (255 / 16)
    pictures, labels, cut = pictures.astype(np.uint8), digits.target.astype(np.uint8), 1500
    return _standardise("digits", [pictures[:cut], pictures[cut:]], [labels[:cut], labels[cut:]], limit)


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Reads a gzipped idx file: two zeros, type 8, number of dimensions, each as big-endian u32, bytes."""
    raw = gzip.decompress(path.read_bytes())
    header = 4 + 4 * dimensions
    if raw[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(
            f"dataset: {path} begins with {raw[:4].hex()}, expected an idx file of bytes in {dimensions} "
            "dimensions; install dataset-fashion-mnist again"
        )
    shape = struct.unpack(f">{dimensions}I", raw[4:header])
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


def _standardise(
    name: str, pictures: list[np.ndarray], labels: list[np.ndarray], limit: int | None
) -> Dataset:
    shares = np.bincount(pictures[0].ravel(), minlength=256) / pictures[0].size
    mean = float(shares @ np.arange(256))
    deviation = float(np.sqrt(shares @ (np.arange(256) - mean) ** 2))
    kept = (pictures[0][:limit], pictures[1])
    train, test = (
        torch.from_numpy(part.astype(np.float32)).sub_(mean).div_(deviation).unsqueeze(1) for part in kept
    )
    train_labels, test_labels = (torch.from_numpy(part.astype(np.int64)) for part in labels)
    return Dataset(name, train, train_labels[:limit], test, test_labels)
