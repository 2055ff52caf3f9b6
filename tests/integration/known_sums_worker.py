"""A worker that knows what every sum must be, in NumPy, and counts what is not.

    known_sums_worker.py store=allreduce sums=rank_order|any_order

any_order: a library adds float32 in an order of its own, so each sum may be off by the bound of any order.
"""

from __future__ import annotations

import json
import sys

import gradwire
import numpy as np

# one element and three: more ranks than elements; several partitions with a short last codec unit; above the bound
# from which a key is cut over all servers
SHAPES = {"one": (1,), "three": (3,), "odd": (7, 11), "partitions": (130_001,), "cut": (300, 1000)}
STEPS = 3
THRESHOLD = np.float32(0.25)
UNIT_ROUNDOFF = 2.0**-24  # of float32


def gradient(rank: int, step: int, name: str) -> np.ndarray:
    seed = [rank, step, list(SHAPES).index(name)]
    return np.random.default_rng(seed).normal(0, 0.6, SHAPES[name]).astype(np.float32)


def wrong_dense(got: np.ndarray, grads: list[np.ndarray], sums: str) -> int:
    """Counts the elements that are neither NumPy's float32 sum in rank order nor, in any order, within its bound:
    (N - 1) u / (1 - (N - 1) u) times the sum of magnitudes (Higham, Accuracy and Stability, 2nd ed., eq. 4.4)."""
    if sums == "rank_order":
        total = grads[0].copy()
        for grad in grads[1:]:
            total += grad
        return int(np.count_nonzero(got.view(np.uint32) != total.view(np.uint32)))
    exact = np.sum([grad.astype(np.float64) for grad in grads], axis=0)
    roundings = (len(grads) - 1) * UNIT_ROUNDOFF
    bound = roundings / (1 - roundings) * np.sum([np.abs(grad.astype(np.float64)) for grad in grads], axis=0)
    return int(np.count_nonzero(np.abs(got - exact) > bound))


class TwoBit:
    """The sum of every rank's 2-bit codes: r += g; |r| >= T sends T with r's sign, which r loses."""

    def __init__(self, ranks: int) -> None:
        self.residuals = {
            name: [np.zeros(shape, np.float32) for _ in range(ranks)] for name, shape in SHAPES.items()
        }

    def wrong(self, got: np.ndarray, name: str, grads: list[np.ndarray]) -> int:
        counts = np.zeros(SHAPES[name], np.int64)
        for grad, residual in zip(grads, self.residuals[name], strict=True):
            residual += grad
            codes = (residual >= THRESHOLD).astype(np.int64) - (residual <= -THRESHOLD)
            residual -= codes.astype(np.float32) * THRESHOLD
            counts += codes
        return int(np.count_nonzero(got != counts.astype(np.float32) * THRESHOLD))


def refuses_no_elements(store: gradwire.kv.KVStore) -> bool:
    """A tensor without elements is refused by name on every rank, and the store lives on."""
    try:
        store.init("nothing", np.zeros((0, 4), np.float32))
    except ValueError as error:
        return "key 'nothing' has no element; leave it out" in str(error)
    return False


def main() -> None:
    options = dict(word.split("=", 1) for word in sys.argv[1:])
    store = gradwire.kv.create(options["store"])
    refused = refuses_no_elements(store)
    two_bit, wrong = TwoBit(store.num_workers), {"none": 0, "2bit": 0}
    for codec in wrong:
        store.set_gradient_compression("none" if codec == "none" else f"2bit:threshold={THRESHOLD}")
        names = {name: f"{name} {codec}" for name in SHAPES}
        store.init(list(names.values()), [np.zeros(shape, np.float32) for shape in SHAPES.values()])
        for step in range(STEPS):
            outs = [np.full(shape, np.nan, np.float32) for shape in SHAPES.values()]
            store.pushpull(
                list(names.values()), [gradient(store.rank, step, name) for name in SHAPES], out=outs
            )
            for name, got in zip(SHAPES, outs, strict=True):
                grads = [gradient(rank, step, name) for rank in range(store.num_workers)]
                wrong[codec] += (
                    wrong_dense(got, grads, options["sums"])
                    if codec == "none"
                    else two_bit.wrong(got, name, grads)
                )
    # In one piece: what print() writes in two may come out of mpirun with another rank's line in between.
    sys.stdout.write(json.dumps({"rank": store.rank, "wrong": wrong, "refused": refused}) + "\n")
    store.close()


main()
