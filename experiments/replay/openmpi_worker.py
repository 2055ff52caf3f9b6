"""A rank of OpenMPI in a replay, started by mpirun: one blocking MPI_Allreduce a layer, in the order of backward().

A thread of its own makes these calls, as MXNet's proposal of an MPI kvstore had it.
"""

from __future__ import annotations

import queue
import sys
import threading
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay.steps import Replay, Task

_LEVEL = np.float32(0.5)


class OpenmpiExchange:
    """steps.Exchange over MPI_COMM_WORLD. One thread at a time is in MPI: this one only while no sum is awaited."""

    def __init__(self, mpi: Any, task: Task) -> None:
        self._sum = mpi.SUM
        self._world = mpi.COMM_WORLD
        self._patience = task.patience
        self._layers = len(task.forward)
        self._expected = _LEVEL * task.workers
        self._grads = [np.full(size, _LEVEL) for size in task.sizes]
        self._sums = [np.zeros(size, np.float32) for size in task.sizes]
        self._done = [threading.Event() for _ in task.sizes]
        self._ready: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        threading.Thread(target=self._reduce, name="replay-mpi", daemon=True).start()

    def _reduce(self) -> None:
        try:
            while True:
                tensor = self._ready.get()
                self._world.Allreduce(self._grads[tensor], self._sums[tensor], self._sum)
                self._done[tensor].set()
        except BaseException as error:
            self._failure = error
            for done in self._done:
                done.set()

    def begin(self, tensor: int) -> None:
        self._done[tensor].clear()
        self._ready.put(tensor)

    def wait(self, tensor: int) -> None:
        came = self._done[tensor].wait(self._patience)
        if self._failure is not None:
            raise self._failure
        if not came:
            raise TimeoutError(f"replay: a layer's sum did not come within {self._patience:.0f} s")

    def check(self) -> None:
        for layer in range(self._layers):
            if not (self._sums[layer] == self._expected).all():
                raise RuntimeError(
                    f"replay: openmpi: the sum of layer {layer} is not {self._expected} everywhere"
                )

    def barrier(self) -> None:
        self._world.Barrier()

    def sent_bytes(self) -> None:
        return None


def main(folder: str) -> None:
    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    task = Task.read(folder)
    Replay(task, MPI.COMM_WORLD.Get_rank(), OpenmpiExchange(MPI, task)).run()


if __name__ == "__main__":
    main(sys.argv[1])
