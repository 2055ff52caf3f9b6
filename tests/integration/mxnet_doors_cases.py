"""What each rank does in mxnet_doors_test.py with one model and all doors.

python mxnet_doors_cases.py CODEC    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gradwire.byteps.mxnet as bps
import gradwire.horovod.mxnet as hvd
import gradwire.mxnet
import mxnet as mx
import numpy as np
from gradwire import kv
from mxnet_programs import case, run_cases

BATCH = 8  # a power of two, as the number of ranks: dividing by either rounds nothing
RATES = {"learning_rate": 0.1, "momentum": 0.9}


def new_net() -> Any:
    """Without biases, which doors for whole models leave uncompressed and a key-value store does not."""
    mx.random.seed(3)
    net = mx.gluon.nn.HybridSequential()
    net.add(
        mx.gluon.nn.Dense(16, activation="tanh", in_units=5, use_bias=False),
        mx.gluon.nn.Dense(2, in_units=16, use_bias=False),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def descend(net: Any, rank: int, step: Callable[[], None]) -> Any:
    for number in range(6):
        draws = np.random.RandomState(100 * number + rank).normal(size=(BATCH, 7))
        batch = mx.nd.array(draws)
        with mx.autograd.record():
            loss = mx.gluon.loss.L2Loss()(net(batch[:, :5]), batch[:, 5:])
        loss.backward()
        step()
    return np.concatenate([p.data().asnumpy().ravel() for p in net.collect_params().values()])


def by_mxnets_trainer(store: kv.KVStore, codec: str) -> Any:
    """gluon.Trainer as it is, after patch(): sums, so the script divides by the batch of all ranks."""
    net = new_net()
    params = None if codec == "none" else {"type": codec}
    trainer = mx.gluon.Trainer(
        net.collect_params(), "sgd", RATES, kvstore="dist_sync", compression_params=params
    )
    return descend(net, store.rank, lambda: trainer.step(BATCH * store.num_workers))


def by_horovods_trainer(store: kv.KVStore, codec: str) -> Any:
    hvd.init()
    net = new_net()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    compression = hvd.Compression.none if codec == "none" else codec
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", RATES, compression=compression)
    weights = descend(net, hvd.rank(), lambda: trainer.step(BATCH))
    hvd.shutdown()
    return weights


def by_byteps_trainer(store: kv.KVStore, codec: str) -> Any:
    bps.init()
    net = new_net()
    params = None if codec == "none" else {"type": codec}
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", RATES, compression_params=params)
    weights = descend(net, bps.rank(), lambda: trainer.step(BATCH))
    bps.shutdown()
    return weights


def by_the_store(store: kv.KVStore, codec: str) -> Any:
    """gradwire.kv, NumPy's arrays, and MXNet's optimizer; the store has the Trainer's codec."""
    net = new_net()
    parameters = list(net.collect_params().values())
    names = [f"door {place}" for place in range(len(parameters))]
    store.init(names, [p.data().asnumpy() for p in parameters])
    rescale = 1 / (BATCH * store.num_workers)
    update = mx.optimizer.get_updater(mx.optimizer.create("sgd", rescale_grad=rescale, **RATES))

    def step() -> None:
        gradients = [p.grad().asnumpy() for p in parameters]
        store.pushpull(names, gradients)
        for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            update(place, mx.nd.array(gradient), parameter.data())

    return descend(net, store.rank, step)


@case
def one_model_four_doors(codec: str) -> None:
    """The same weights on all ranks, bit for bit, and with a codec other ones than without."""
    gradwire.mxnet.patch()
    store = mx.kv.create("dist_sync").gradwire
    doors = (by_mxnets_trainer, by_horovods_trainer, by_byteps_trainer, by_the_store)
    found = {door.__name__: door(store, codec) for door in doors}
    first = found["by_mxnets_trainer"]
    for weights in found.values():
        np.testing.assert_array_equal(weights, first, err_msg=str(found))
    assert len(set(store.engine.all_gather("weights", first.tobytes()))) == 1
    alone = by_one_process(store.num_workers)
    if codec == "none":
        np.testing.assert_allclose(first, alone, rtol=1e-4, atol=1e-6)
    else:
        assert 1e-6 < np.abs(first - alone).max() < 0.05


def by_one_process(ranks: int) -> Any:
    """MXNet's own, with the batches of all ranks."""
    net = new_net()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", RATES, kvstore=None)
    for number in range(6):
        draws = [np.random.RandomState(100 * number + rank).normal(size=(BATCH, 7)) for rank in range(ranks)]
        batch = mx.nd.array(np.concatenate(draws))
        with mx.autograd.record():
            loss = mx.gluon.loss.L2Loss()(net(batch[:, :5]), batch[:, 5:])
        loss.backward()
        trainer.step(len(batch))
    return np.concatenate([p.data().asnumpy().ravel() for p in net.collect_params().values()])


if __name__ == "__main__":
    run_cases(sys.argv[1])
