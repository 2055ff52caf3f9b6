"""Converts the captured .npz vectors into one binary file that the C++ tests read.

Usage: python tests/golden/convert.py    (writes mxnet191_2bit.bin beside this file)
"""

import struct
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
STEPS = 3


def convert(sources: list[Path]) -> bytes:
    """Lays the captures out as README.md describes. All values are little endian."""
    parts = [b"GWG1", struct.pack("<I", len(sources))]
    for source in sources:
        arrays = np.load(source)
        sizes = [int(n) for n in arrays["sizes"]]
        workers = int(arrays["workers"])
        parts.append(struct.pack("<fII", float(arrays["threshold"]), workers, len(sizes)))
        for n in sizes:
            parts.append(struct.pack("<I", n))
            for step in range(STEPS):
                for worker in range(workers):
                    suffix = f"n{n}_s{step}_w{worker}"
                    parts.append(arrays[f"in_{suffix}"].astype("<f4").tobytes())
                    parts.append(arrays[f"model_packed_{suffix}"].astype("u1").tobytes())
                    parts.append(arrays[f"model_residual_{suffix}"].astype("<f4").tobytes())
                parts.append(arrays[f"mxnet_out_n{n}_s{step}"].astype("<f4").tobytes())
    return b"".join(parts)


if __name__ == "__main__":
    (HERE / "mxnet191_2bit.bin").write_bytes(convert(sorted(HERE.glob("mxnet191_2bit_*.npz"))))
