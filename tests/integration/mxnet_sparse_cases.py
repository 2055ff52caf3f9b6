"""What each rank does in mxnet_sparse_test.py: embeddings whose gradients are rows, in a store of any name.

python mxnet_sparse_cases.py NAME CASE    as one rank of a gradwire job; prints "CASE passed"
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import gradwire.mxnet
import mxnet as mx
import numpy as np
from mxnet_programs import case, raises, require_equal, run_cases

WORDS, WIDTH, STEPS, RATE = 6, 2, 3, 0.5


def words_of(rank: int, step: int) -> list[int]:
    """The batch of a rank: one word twice, one that all have, one of its own."""
    return [1, 1, (2 + rank + step) % WORDS, 5 - rank]


def expected(ranks: int) -> Any:
    """One process's weights: from zeros, by the summed counts of words."""
    weight = np.zeros((WORDS, WIDTH), np.float32)
    for step in range(STEPS):
        for rank in range(ranks):
            np.subtract.at(weight, words_of(rank, step), RATE)
    return weight


@case
def a_trainer_updates_the_rows(name: str) -> None:
    net = mx.gluon.nn.Embedding(WORDS, WIDTH, sparse_grad=True)
    net.initialize(mx.init.Zero())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": RATE}, kvstore=name)
    trainer._init_kvstore()
    store = trainer._kvstore
    for step in range(STEPS):
        with mx.autograd.record():
            total = net(mx.nd.array(words_of(store.rank, step))).sum()
        total.backward()
        trainer.step(1)
    require_equal(net.weight.data(), expected(store.num_workers))


@case
def a_trainer_on_two_devices_updates_the_rows(name: str) -> None:
    net = mx.gluon.nn.Embedding(WORDS, WIDTH, sparse_grad=True, prefix="devices_")
    devices = [mx.cpu(0), mx.cpu(1)]
    net.initialize(mx.init.Zero(), ctx=devices)
    trainer = mx.gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": RATE}, kvstore=gradwire.mxnet.KVStore(name)
    )
    trainer._init_kvstore()
    rank, ranks = trainer._kvstore.rank, trainer._kvstore.num_workers
    for step in range(STEPS):
        totals = []
        with mx.autograd.record():
            for device, words in zip(devices, np.split(np.array(words_of(rank, step)), 2), strict=True):
                totals.append(net(mx.nd.array(words, ctx=device)).sum())
        for total in totals:
            total.backward()
        trainer.step(1)
    for data in net.weight.list_data():
        require_equal(data, expected(ranks))


@case
def a_module_updates_the_rows(name: str) -> None:
    weight = mx.sym.Variable("module_weight")
    rows = mx.sym.Embedding(
        mx.sym.Variable("data"), weight=weight, input_dim=WORDS, output_dim=WIDTH, sparse_grad=True
    )
    module = mx.mod.Module(mx.sym.make_loss(mx.sym.sum(rows)), label_names=None)
    module.bind(data_shapes=[("data", (4,))], for_training=True)
    module.init_params(mx.init.Zero())
    store = mx.kv.create(name)
    module.init_optimizer(
        kvstore=store, optimizer="sgd", optimizer_params={"learning_rate": RATE, "rescale_grad": 1.0}
    )
    for step in range(STEPS):
        words = mx.nd.array(words_of(store.rank, step))
        module.forward(mx.io.DataBatch([words]), is_train=True)
        module.backward()
        module.update()
    require_equal(module.get_params()[0]["module_weight"], expected(store.num_workers))


@case
def a_weight_of_rows_is_saved(name: str) -> None:
    net = mx.gluon.contrib.nn.SparseEmbedding(WORDS, WIDTH, prefix="saved_")
    net.initialize(mx.init.One())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": RATE}, kvstore=name)
    trainer._init_kvstore()
    rank, ranks = trainer._kvstore.rank, trainer._kvstore.num_workers
    for step in range(STEPS):
        with mx.autograd.record():
            total = net(mx.nd.array(words_of(rank, step))).sum()
        total.backward()
        trainer.step(1)
    with tempfile.TemporaryDirectory() as folder:
        net.save_parameters(f"{folder}/net")
        (saved,) = mx.nd.load(f"{folder}/net").values()
    require_equal(saved, 1 + expected(ranks))


@case
def what_the_plugin_does_not_take_says_what_does(name: str) -> None:
    plugin = mx.kv.create("gradwire")
    rows = mx.nd.ones((WORDS, WIDTH)).tostype("row_sparse")
    with raises(gradwire.mxnet.KVStoreError, "row_sparse value.*patch.*dist_sync"):
        plugin.pushpull("rows", rows)


if __name__ == "__main__":
    gradwire.mxnet.patch()
    run_cases(sys.argv[1], only=sys.argv[2])
