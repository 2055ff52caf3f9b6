"""A rank of `gradwire bench allreduce --peer openmpi`: MPI_Allreduce in place on the whole gradient, started by mpirun.

MPI is initialised for a single thread, the level that costs least.
"""

from __future__ import annotations

import sys
from functools import partial

import mpi4py
import numpy as np

from gradwire.bench import rounds

_TOLERANCE = 1e-5  # it adds in another order


def main(text: str) -> None:
    mpi4py.rc.thread_level = "single"
    from mpi4py import MPI

    task = rounds.Task.parse(text)
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    source = rounds.gradient(rank, task.elements)
    grad = np.zeros_like(source)
    actions = rounds.Actions(
        barrier=world.Barrier,
        prepare=partial(np.copyto, grad, source),
        exchange=partial(world.Allreduce, MPI.IN_PLACE, grad, MPI.SUM),
        result=lambda: grad,
    )
    expectation = rounds.PlainSum(task.share_of_grads(rank))
    rounds.run(task, rank, actions, rounds.matches(expectation, task.share(rank), _TOLERANCE))


if __name__ == "__main__":
    main(sys.argv[1])
