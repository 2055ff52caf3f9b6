"""One worker of the suite that every store passes; see store_conformance_test.py.

store_conformance_worker.py NAME sums|weights
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import gradwire
import numpy as np
from numpy.typing import NDArray

SHAPES = {"3": (2, 3), "4": (17,), "99": (1211, 1211)}  # the last is cut over all servers
RATE, THRESHOLD = 2.0, np.float32(0.5)
Values = dict[str, NDArray[Any]]
Exchange = Callable[[Values], Values]


def constant(values: Values) -> float:
    """The one value that all elements of all keys have."""
    found = {float(value) for array in values.values() for value in np.unique(array)}
    assert len(found) == 1, found
    return found.pop()


def full(value: float, names: str = "", dtype: Any = np.float32) -> Values:
    return {names + key: np.full(shape, value, dtype) for key, shape in SHAPES.items()}


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "nothing was refused"


class Worker:
    def __init__(self, name: str) -> None:
        self.store = gradwire.kv.create(name)
        self.rank, self.workers = self.store.rank, self.store.num_workers

    def settled(self, like: Values) -> Values:
        """What keys hold once every worker's pushes are in them. A collective, of stores of every kind."""
        out = {key: np.full(value.shape, np.nan, value.dtype) for key, value in like.items()}
        for _ in range(2):  # behind this worker's own pushes, then behind the others'
            self.store.pull(list(out), out=list(out.values()))
            self.store.barrier()
        return out

    def push(self, grads: Values) -> Values:
        self.store.push(list(grads), list(grads.values()))
        return self.settled(grads)

    def pushpull(self, grads: Values) -> Values:
        out = {key: np.full(grad.shape, np.nan, grad.dtype) for key, grad in grads.items()}
        self.store.pushpull(list(grads), list(grads.values()), out=list(out.values()))
        settled = self.settled(grads)
        for key, value in out.items():  # this worker's push is in it; in a store that sums, everybody's
            assert not np.isnan(value).any()
            assert is_between(value, settled[key])
        return settled

    def identity(self) -> dict[str, Any]:
        store = self.store
        return {
            "type": store.type,
            "num_workers": store.num_workers,
            "is_capable": [
                store.is_capable(what)
                for what in ("optimizer", "gradient_compression:2bit", "gradient_compression:zip")
            ],
        }

    def broadcast(self) -> float:
        """The last rank's values, everywhere."""
        values = full(self.rank, "broadcast ")
        self.store.broadcast(list(values), list(values.values()), root_rank=self.workers - 1)
        return constant(values)

    def first_values(self) -> list[float]:
        """Of keys that are pulled before anybody pushes; rank 0's, and not compressed."""
        self.store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        found = []
        for value in (0, 1):
            given = full(value if self.rank == 0 else 99, f"first {value} ")
            self.store.init(list(given), list(given.values()))
            found.append(constant(self.settled(given)))
        self.store.set_gradient_compression("none")
        return found

    def mistakes(self) -> list[str]:
        store, shape = self.store, SHAPES["3"]
        return [
            refusal(lambda: store.pull("never", out=np.zeros(shape, np.float32))),
            refusal(lambda: store.init("empty", np.zeros((0, 4), np.float32))),
            refusal(lambda: store.set_gradient_compression("2bits")),
            refusal(lambda: store.set_optimizer("sgdd")),
        ]

    def sums(self) -> list[float]:
        """Rounds of rank + 1 without an optimizer: pushed and pulled, in one call, in place, and of a step before."""
        self.store.init(list(full(0, "sum ")), list(full(0, "sum ").values()))
        found = [constant(self.push(full(self.rank + 1, "sum ")))]
        found.append(constant(self.pushpull(full(2 * (self.rank + 1), "sum "))))
        in_place = full(self.rank + 1, "sum ")
        self.store.pushpull(list(in_place), list(in_place.values()), priority=-1)
        return [*found, constant(in_place)]

    def without_an_optimizer(self) -> list[str]:
        """Of a store that applies pushes to weights: there is none that could."""
        values = full(0, "sum ")
        self.store.init(list(values), list(values.values()))
        return [
            refusal(lambda: self.store.push(list(values), list(values.values()))),
            refusal(lambda: self.store.pushpull(list(values), list(values.values()))),
        ]

    def dense(self, codec: str, dtype: Any) -> list[float]:
        """MXNet's rounds: 1 at first, each worker pushes rank + 1, and the `test` optimizer adds RATE times that."""
        names = f"{codec} {np.dtype(dtype).name} "
        first = full(1, names, dtype)
        self.store.set_gradient_compression(codec)
        self.store.init(list(first), list(first.values()))
        found = [constant(self.push(full(self.rank + 1, names, dtype))) for _ in range(2)]
        return [*found, constant(self.pushpull(full(self.rank + 1, names, dtype)))]

    def two_bit(self, names: str, exchange: Exchange) -> list[float]:
        self.store.set_gradient_compression({"type": "2bit", "threshold": float(THRESHOLD)})
        self.store.init(list(full(0, names)), list(full(0, names).values()))
        return [constant(exchange(full(value, names))) for value in (0.0, 0.4, 0.1, 0.2, 0.3, 0.5)]

    def random_steps(self, names: str) -> int:
        """Seven random gradients after two_bit(), the same on all workers, against the rule in NumPy. Counts the steps
        that are equal.
        """
        random = np.random.default_rng(11)
        residual, value = full(0, names), full(3 * self.workers, names)
        equal = 0
        for _ in range(7):
            grads = {key: random.random(array.shape, np.float32) for key, array in value.items()}
            for key, grad in grads.items():
                residual[key] += grad
                sent = np.where(residual[key] >= THRESHOLD, THRESHOLD, np.float32(0))
                residual[key] -= sent
                value[key] += np.float32(RATE) * self.workers * sent
            got = self.push(grads)
            equal += all(np.array_equal(got[key], value[key]) for key in value)
        return equal

    def trainer(self) -> float:
        """A step of SGD with a learning rate of 1 on 1, of gradients rank + 1."""
        self.store.set_gradient_compression("none")
        self.store.init(list(full(1, "sgd ")), list(full(1, "sgd ").values()))
        self.store.set_optimizer("sgd", learning_rate=1)
        return constant(self.push(full(self.rank + 1, "sgd ")))


def is_between(value: NDArray[Any], last: NDArray[Any]) -> bool:
    """Pushes here are 0 or more, and so is what they come from."""
    return bool((value >= 0).all() and (value <= last).all())


def main() -> None:
    name, gives = sys.argv[1:]
    worker = Worker(name)
    record = worker.identity() | {
        "rank": worker.rank,
        "broadcast": worker.broadcast(),
        "first_values": worker.first_values(),
        "mistakes": worker.mistakes(),
    }
    if gives == "sums":
        record["sums"] = worker.sums()
    else:
        record["without_an_optimizer"] = worker.without_an_optimizer()
    worker.store.set_optimizer("test", rescale_grad=RATE)
    record |= {
        "dense float32": worker.dense("none", np.float32),
        "dense float16": worker.dense("none", np.float16),
        "fp16": worker.dense("fp16", np.float32),
        "2bit push": worker.two_bit("2bit push ", worker.push),
        "2bit random": worker.random_steps("2bit push "),
        "2bit pushpull": worker.two_bit("2bit pushpull ", worker.pushpull),
        "trainer": worker.trainer(),
    }
    # In one piece: what print() writes in two may come out of mpirun with another rank's line in between.
    sys.stdout.write(json.dumps(record) + "\n")
    worker.store.close()


main()
