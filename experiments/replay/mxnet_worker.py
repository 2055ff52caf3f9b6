"""Any process of an MXNet job in a replay: worker, server or scheduler, as DMLC_ROLE says.

Run by MXNet's own Python, in isolated mode (-I): of everything here only steps.py is there, and no gradwire. A layer is
a key, pushed and pulled with its priority as MXNet's own Trainer does; MXNet waits for a layer's sum where it is read.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay.steps import Replay, Task

_LEVEL = 0.5


class MxnetExchange:
    """steps.Exchange over MXNet's kvstore."""

    def __init__(self, mxnet: Any, task: Task) -> None:
        self._store = mxnet.kv.create("dist_sync")
        self._expected = _LEVEL * self._store.num_workers
        self._layers = len(task.forward)
        self._sources = [mxnet.nd.full((size,), _LEVEL) for size in task.sizes]
        self._grads = [mxnet.nd.zeros((size,)) for size in task.sizes]
        self._sums = [mxnet.nd.zeros((size,)) for size in task.sizes]
        for key, total in enumerate(self._sums):
            self._store.init(key, total)
        self.rank = self._store.rank

    def begin(self, tensor: int) -> None:
        grad = self._grads[tensor]
        self._sources[tensor].copyto(grad)  # MXNet writes what it pulls over what was pushed
        self._store.push(tensor, grad, priority=-tensor)
        self._store.pull(tensor, out=self._sums[tensor], priority=-tensor)

    def wait(self, tensor: int) -> None:
        self._sums[tensor].wait_to_read()

    def check(self) -> None:
        for layer in range(self._layers):
            if not (self._sums[layer].asnumpy() == self._expected).all():
                raise RuntimeError(
                    f"replay: mxnet: the sum of layer {layer} is not {self._expected} everywhere"
                )

    def barrier(self) -> None:
        self._store._barrier()

    def sent_bytes(self) -> None:
        return None


def main(folder: str) -> None:
    import mxnet  # a server or scheduler serves the job here and ends the process

    if os.environ["DMLC_ROLE"] != "worker":
        return
    task = Task.read(folder)
    exchange = MxnetExchange(mxnet, task)
    Replay(task, exchange.rank, exchange).run()


if __name__ == "__main__":
    main(sys.argv[1])
