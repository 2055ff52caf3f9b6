"""What each rank does in mxnet_async_test.py: MXNet 1.9.1 on gradwire's dist_async, with two workers and two servers.

python mxnet_async_cases.py FOLDER    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gradwire.mxnet
import mxnet as mx
import numpy as np
from mxnet_programs import case, filled, raises, require_equal, run_cases

RANKS = 2
FOLDER = Path()


@case
def what_needs_sums_is_refused(kv: Any) -> None:
    assert kv.type == "dist_async"
    with raises(gradwire.mxnet.KVStoreError, "in 'dist_async' the servers update"):
        kv._set_updater(lambda key, total, weight: None)
    with raises(gradwire.mxnet.KVStoreError, "no AdaGrad"):
        kv.set_optimizer(mx.optimizer.AdaGrad())
    with raises(RuntimeError, "no optimizer is set"):
        kv.save_optimizer_states(str(FOLDER / "none"))


@case
def servers_apply_each_push(kv: Any) -> None:
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5))  # before its keys, as Trainer does
    for key in (100, 101):
        out = filled(0)
        kv.broadcast(key, filled(kv.rank + key), out)
        require_equal(out, key)
    for _ in range(3):
        kv.push([100, 101], [filled(1), [filled(1), filled(1, device=1)]])
    kv.pull([100, 101], out=[filled(0), filled(0)])
    mx.nd.waitall()
    kv.barrier()
    outs = [filled(0), filled(0)]
    kv.pull([100, 101], out=outs)
    require_equal(outs[0], 100 - 0.5 * 3 * RANKS)
    require_equal(outs[1], 101 - 0.5 * 6 * RANKS)


@case
def the_servers_learning_rate_may_change(kv: Any) -> None:
    kv.barrier()
    kv.set_learning_rate(2.0)
    out = filled(0)
    kv.pull(100, out=out)
    before = out.asnumpy()
    kv.barrier()
    kv.pushpull(100, filled(1), out=out)
    mx.nd.waitall()
    kv.barrier()
    kv.pull(100, out=out)
    require_equal(out, before - 2.0 * RANKS)


@case
def a_rate_that_is_changed_in_the_worker_is_refused(kv: Any) -> None:
    optimizer = mx.optimizer.SGD(learning_rate=0.5)
    kv.init(150, filled(0))
    kv.set_optimizer(optimizer)
    kv.push(150, filled(1))
    optimizer.set_learning_rate(0.25)  # as Trainer.set_learning_rate() does
    for call in (kv.push, kv.pushpull):
        with raises(gradwire.mxnet.KVStoreError, r"call kv.set_learning_rate\(0.25\) of the store"):
            call(150, filled(1))
    mx.nd.waitall()
    kv.barrier()
    kv.set_learning_rate(0.25)
    kv.push(150, filled(1))
    mx.nd.waitall()
    kv.barrier()
    kv.set_learning_rate(1.0)  # which the optimizer here gets too
    assert optimizer.learning_rate == 1.0
    kv.push(150, filled(1))
    mx.nd.waitall()
    kv.barrier()
    out = filled(0)
    kv.pull(150, out=out)
    require_equal(out, -RANKS * (0.5 + 0.25 + 1))


@case
def a_trainer_updates_on_the_servers(kv: Any) -> None:
    weight = mx.gluon.Parameter("weight", shape=(4,))
    weight.initialize(init="ones")
    trainer = mx.gluon.Trainer([weight], "sgd", {"learning_rate": 1.0}, kvstore=kv)

    def step() -> None:
        with mx.autograd.record():
            loss = weight.data().sum()
        loss.backward()
        trainer.step(1)

    step()
    assert trainer._update_on_kvstore
    assert weight.data().asnumpy()[0] in (0, -1)  # with this worker's push, with or without the other's
    mx.nd.waitall()
    kv.barrier()
    out = mx.nd.zeros((4,))
    kv.pull(0, out=out)
    require_equal(out, 1 - RANKS)
    if kv.rank == 0:
        trainer.save_states(str(FOLDER / "trainer"))
    kv.set_learning_rate(0.25)
    trainer.load_states(str(FOLDER / "trainer"))
    assert trainer.learning_rate == 1.0  # the file's, which the servers have again
    step()
    mx.nd.waitall()
    kv.barrier()
    kv.pull(0, out=out)
    require_equal(out, 1 - 2 * RANKS)
    refused = mx.gluon.Trainer([weight], "sgd", {}, kvstore=kv, update_on_kvstore=False)
    with raises(ValueError, "async"):
        refused._init_kvstore()


@case
def the_servers_states_are_saved_and_loaded(kv: Any) -> None:
    """One worker pushes at a time, so that momentum is what one worker would have."""
    kv.barrier()
    kv.init(200, filled(0))
    path, outs = FOLDER / "states", [filled(0) for _ in range(3)]

    def make() -> Any:
        return mx.optimizer.SGD(learning_rate=0.5, momentum=0.5)

    def step(out: Any) -> None:
        """Rank 0's push, and the weight after it on all ranks."""
        if kv.rank == 0:
            kv.push(200, filled(1))
            mx.nd.waitall()
        kv.barrier()
        kv.pull(200, out=out)
        mx.nd.waitall()
        kv.barrier()

    kv.set_optimizer(make())
    with raises(gradwire.mxnet.KVStoreError, "with the first push"):
        kv.save_optimizer_states(str(path))
    kv.set_learning_rate(0.5)  # all ranks: the servers have it from here on
    step(outs[0])
    require_equal(outs[0], -0.5)
    if kv.rank == 0:
        kv.save_optimizer_states(str(path), dump_optimizer=True)
    kv.barrier()
    step(outs[1])
    require_equal(outs[1] - outs[0], -0.75)
    kv.set_optimizer(make())  # begins anew
    kv.load_optimizer_states(str(path))
    step(outs[2])
    require_equal(outs[2] - outs[1], -0.75)


# ---- rows, last: a store that has some saves no states --------------------------------------------------------


def some_rows(ids: list[int], value: float) -> Any:
    data = mx.nd.full((len(ids), 2), value)
    return mx.nd.sparse.row_sparse_array((data, mx.nd.array(ids, dtype="int64")), shape=(6, 2))


def settled(kv: Any, key: int) -> Any:
    """All rows once both workers' pushes are in: a pull waits for its own worker's."""
    out = mx.nd.sparse.zeros("row_sparse", (6, 2))
    for _ in range(2):
        kv.row_sparse_pull(key, out=out, row_ids=mx.nd.arange(6))
        kv.barrier()
    return out


@case
def servers_apply_each_push_of_rows(kv: Any) -> None:
    """wd touches the rows that were pushed and no others: MXNet's lazy update, once for each push."""
    kv.init(170, mx.nd.ones((6, 2)).tostype("row_sparse"))
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, wd=0.5))
    kv.push(170, some_rows([3 + kv.rank], kv.rank + 1))
    expected = np.ones((6, 2))
    expected[3], expected[4] = 0.5 - 1, 0.5 - 2
    require_equal(settled(kv, 170), expected)
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    kv.push(170, [some_rows([1, 5], 1), some_rows([1], 2)])  # of two devices
    expected[1], expected[5] = 1 - 3 * RANKS, 1 - RANKS
    require_equal(settled(kv, 170), expected)


@case
def a_pushpull_of_rows_brings_the_whole_weight(kv: Any) -> None:
    kv.init(171, mx.nd.ones((6, 2)).tostype("row_sparse"))
    dense, sparse = mx.nd.zeros((6, 2)), mx.nd.sparse.zeros("row_sparse", (6, 2))
    kv.pushpull(171, some_rows([kv.rank], 1), out=[dense, sparse])
    assert dense.asnumpy()[kv.rank][0] == sparse.asnumpy()[kv.rank][0] == 0  # its own push is in
    require_equal(dense[2:], 1)
    require_equal(settled(kv, 171).asnumpy()[:2], 0)


@case
def a_dense_weight_takes_gradients_of_rows(kv: Any) -> None:
    kv.init(172, mx.nd.ones((6, 2)))
    out = mx.nd.zeros((6, 2))
    kv.push(172, some_rows([2], 1))
    kv.pushpull(172, some_rows([3], 1), out=out)
    assert out.asnumpy()[3][0] < 1
    mx.nd.waitall()
    kv.barrier()
    kv.pull(172, out=out)
    expected = np.ones((6, 2))
    expected[[2, 3]] = 1 - RANKS
    require_equal(out, expected)
    kv.barrier()


@case
def states_of_a_store_with_rows_are_a_checkpoints(kv: Any) -> None:
    with raises(ValueError, "tables of rows.*save_checkpoint"):
        kv.save_optimizer_states(str(FOLDER / "none"))


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    gradwire.mxnet.patch()
    run_cases(mx.kv.create("dist_async"))
