"""What each rank does in mxnet_ranks_test.py with gluon's Trainer, and with the plugin that it takes too.
mxnet_rank_cases.py runs these.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet_programs import case, filled, raises, require_equal

RANKS = 2
TOTAL = 3  # of rank + 1


@case
def a_trainer_takes_a_step(kv: Any) -> None:
    weight = mx.gluon.Parameter("weight", shape=(10, 1))
    weight.initialize(ctx=[mx.cpu(0), mx.cpu(1)], init="ones")
    trainer = mx.gluon.Trainer([weight], "sgd", {"learning_rate": 1.0}, kv=kv)
    with mx.autograd.record():
        losses = [((kv.rank + 1) * weight.data(device)).sum() for device in weight.list_ctx()]
    for loss in losses:
        loss.backward()
    trainer.step(1)
    assert trainer._update_on_kvstore
    for data in weight.list_data():
        require_equal(data, 1 - 2 * TOTAL)
    kv._updater = None


@case
def a_trainer_takes_a_store_by_any_of_its_names(kv: Any) -> None:
    weight = mx.gluon.Parameter("weight", shape=(10, 1))
    weight.initialize()
    for wanted in ({"kvstore": kv}, {"kv": "dist_sync"}, {"kvstore": "dist_sync"}):
        trainer = mx.gluon.Trainer([weight], "sgd", {"learning_rate": 1.0}, **wanted)
        trainer._init_kvstore()
        assert trainer._kvstore is kv
    with raises(TypeError, "give one"):
        mx.gluon.Trainer([weight], "sgd", {}, kv, kv=kv)
    kv._updater = None


@case
def the_plugin_sums_beside_the_store(kv: Any) -> None:
    plugin = mx.kv.create("gradwire")
    assert plugin.type == "gradwire"
    assert (plugin.rank, plugin.num_workers) == (kv.rank, RANKS)
    out = filled(0, dtype="float64")
    plugin.broadcast("a", filled(kv.rank + 0.1, dtype="float64"), out)
    require_equal(out, 0.1)
    plugin.broadcast("a", filled(kv.rank + 0.2, dtype="float64"), out)
    require_equal(out, 0.2)
    for _ in range(2):
        values = [filled(kv.rank + 1), filled(kv.rank + 1, device=1)]
        plugin.pushpull("a", values)
        for value in values:
            require_equal(value, 2 * TOTAL)
    weight = mx.gluon.Parameter("w", shape=(4,))
    weight.initialize(ctx=[mx.cpu(0), mx.cpu(1)], init="ones")
    trainer = mx.gluon.Trainer([weight], "sgd", {"learning_rate": 1.0}, kvstore=plugin)
    with mx.autograd.record():
        losses = [((kv.rank + 1) * weight.data(device)).sum() for device in weight.list_ctx()]
    for loss in losses:
        loss.backward()
    trainer.step(1)
    assert not trainer._update_on_kvstore
    for data in weight.list_data():
        require_equal(data, 1 - 2 * TOTAL)


@case
def several_plugins_have_keys_of_their_own(kv: Any) -> None:
    """Each Trainer numbers its parameters from 0."""
    for size, store in ((3, mx.kv.create("gradwire")), (5, "gradwire")):
        weight = mx.gluon.Parameter("w", shape=(size,))
        weight.initialize(init="ones")
        trainer = mx.gluon.Trainer([weight], "sgd", {"learning_rate": 1.0}, kvstore=store)
        for step in range(2):
            with mx.autograd.record():
                loss = ((kv.rank + 1) * weight.data()).sum()
            loss.backward()
            trainer.step(1)
            require_equal(weight.data(), 1 - TOTAL * (step + 1))
