"""What mxnet_local_test.py checks in one process: patch(), stores without a job, the plugin, memory, optimizers.

python mxnet_local_cases.py FOLDER    prints "CASE passed" after each
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gradwire.mxnet
import mxnet as mx
import numpy as np
from gradwire.mxnet import memory, optimizers
from mxnet_programs import case, filled, raises, require_equal, run_cases

FOUR = range(4)  # devices


# ---- patch() -------------------------------------------------------------------------------------------------


@case
def patch_routes_every_name_and_unpatch_gives_mxnets_back(folder: Path) -> None:
    created, trainer = mx.kv.create, mx.gluon.Trainer.__init__
    gradwire.mxnet.patch()
    gradwire.mxnet.patch()
    for name in (
        "local",
        "LOCAL",
        "device",
        "local_update_cpu",
        "local_allreduce_cpu",
        "local_allreduce_device",
    ):
        kv = mx.kv.create(name)
        assert isinstance(kv, gradwire.mxnet.KVStore), name
        assert (kv.type, kv.rank, kv.num_workers) == (name.lower(), 0, 1)
    assert isinstance(mx.kvstore.create("local"), gradwire.mxnet.KVStore)
    assert type(mx.kv.create("teststore")).__name__ == "TestStore"
    with raises(mx.MXNetError, "unknown store 'dits_sync'; did you mean 'dist_sync'"):
        mx.kv.create("dits_sync")
    with raises(TypeError, "expected a string"):
        mx.kv.create(3)
    with raises(ValueError, "gradwire run"):
        mx.kv.create("dist_sync")  # there is no job here
    gradwire.mxnet.unpatch()
    assert mx.kv.create is created
    assert mx.gluon.Trainer.__init__ is trainer
    assert not isinstance(mx.kv.create("local"), gradwire.mxnet.KVStore)
    gradwire.mxnet.patch()


@case
def a_trainer_of_one_device_refuses_a_typo_and_takes_the_plugin(folder: Path) -> None:
    """MXNet looks at no name where there is one device."""
    weight = mx.gluon.Parameter("w", shape=(4,))
    weight.initialize()

    def store_of(name: Any) -> Any:
        trainer = mx.gluon.Trainer([weight], "sgd", {}, kvstore=name)
        trainer._init_kvstore()
        return trainer._kvstore

    with raises(gradwire.mxnet.KVStoreError, "unknown store 'allreduc'; did you mean 'allreduce'"):
        store_of("allreduc")
    module = mx.mod.Module(
        mx.sym.LinearRegressionOutput(mx.sym.var("data"), mx.sym.var("label")), label_names=["label"]
    )
    module.bind([("data", (2, 2))], [("label", (2, 2))])
    module.init_params()
    with raises(gradwire.mxnet.KVStoreError, "unknown store 'gradwyre'; did you mean 'gradwire'"):
        module.init_optimizer(kvstore="gradwyre")
    assert isinstance(store_of("Gradwire"), gradwire.mxnet.Gradwire)
    for alone in ("local", "device", None):
        assert store_of(alone) is None


# ---- stores of one process -----------------------------------------------------------------------------------


@case
def local_sums_devices_and_keeps_the_sum(folder: Path) -> None:
    kv = mx.kv.create("local")
    kv.init(["b", "a"], [filled(2), filled(3)])
    out = filled(0)
    kv.pull("b", out=out)
    require_equal(out, 2)
    kv.push("b", [filled(device + 1, device=device) for device in FOUR])
    kv.pull("b", out=out)
    require_equal(out, 10)
    value = filled(5)
    kv.push("b", value)
    value[:] = 6
    kv.pull("b", out=out)
    require_equal(out, 5)


@case
def keys_of_one_pushpull_may_share_arrays(folder: Path) -> None:
    kv = mx.kv.create("device")
    kv.init([1, 2], [filled(0)] * 2)
    shared = [filled(2, device=device) for device in FOUR]
    kv.pushpull([1, 2], [shared, shared])
    for value in shared:
        require_equal(value, 8)


@case
def devices_quantise_each_with_its_residual(folder: Path) -> None:
    """The sequence of MXNet's nightly test of its `device` store: four devices, threshold 0.5, weight += 2 * sum."""
    kv = mx.kv.create("local_allreduce_device")
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.init("key", filled(0))
    kv.set_optimizer(mx.optimizer.create("test", rescale_grad=2.0))
    out = filled(9)
    kv.pull("key", out=out)
    require_equal(out, 0)
    for pushed, expected in ((0, 0), (0.4, 0), (0.2, 4), (0.2, 4), (0.2, 8), (-0.5, 4)):
        kv.push("key", [filled(pushed, device=device) for device in FOUR])
        kv.pull("key", out=out)
        require_equal(out, expected)


@case
def rows_are_kept_as_rows(folder: Path) -> None:
    kv = mx.kv.create("local")
    kv.init(1, mx.nd.ones((4, 2)).tostype("row_sparse"))
    pushed = mx.nd.sparse.row_sparse_array((mx.nd.ones((1, 2)) * 3, mx.nd.array([2])), shape=(4, 2))
    kv.push(1, [pushed, pushed])
    out = mx.nd.sparse.zeros("row_sparse", (4, 2))
    kv.pull(1, out=out, ignore_sparse=False)
    expected = np.zeros((4, 2))
    expected[2] = 6
    require_equal(out, expected)
    outs = [mx.nd.sparse.zeros("row_sparse", (4, 2)) for _ in range(2)]
    kv.row_sparse_pull(1, out=outs, row_ids=[mx.nd.array([2, 0]), mx.nd.array([1])])
    require_equal(outs[0], expected)
    require_equal(outs[1], 0)


@case
def calls_inside_record_are_not_recorded(folder: Path) -> None:
    kv = mx.kv.create("local")
    kv.init(1, filled(1))
    weight, out = filled(2), filled(0)
    weight.attach_grad()
    with mx.autograd.record():
        loss = (weight * weight).sum()
        kv.pushpull(1, filled(3), out=out)
    loss.backward()
    require_equal(weight.grad, 4)
    require_equal(out, 3)


@case
def a_module_trains_on_it(folder: Path) -> None:
    """Beside MXNet's own local store: the same weights."""
    draws = np.random.RandomState(0)
    images, labels = draws.uniform(size=(64, 10)).astype("f"), draws.randint(3, size=64)
    weights = []
    for patched in (True, False):
        if not patched:
            gradwire.mxnet.unpatch()
        mx.random.seed(1)
        np.random.seed(1)
        net = mx.sym.SoftmaxOutput(
            mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc"), name="softmax"
        )
        module = mx.mod.Module(net, context=[mx.cpu(0), mx.cpu(1)])
        data = mx.io.NDArrayIter(images, labels, batch_size=16)
        module.fit(
            data, num_epoch=2, kvstore="local", optimizer_params={"learning_rate": 0.5, "momentum": 0.9}
        )
        weights.append(module.get_params()[0]["fc_weight"].asnumpy())
    gradwire.mxnet.patch()
    np.testing.assert_array_equal(weights[0], weights[1])
    assert np.abs(weights[0]).max() > 0.1


# ---- the plugin ----------------------------------------------------------------------------------------------


@case
def the_plugin_works_without_a_job(folder: Path) -> None:
    kv = mx.kv.create("gradwire")
    assert (kv.type, kv.rank, kv.num_workers) == ("gradwire", 0, 1)
    assert type(kv).is_capable("optimizer") is False
    assert kv.is_capable("gradient_compression:2bit")
    assert not kv.is_capable("gradient_compression:nothing")
    with raises(ValueError, "unknown capability 'sparsity'"):
        kv.is_capable("sparsity")
    for refused in (kv.set_optimizer, kv.save_optimizer_states, kv.load_optimizer_states):
        with raises(NotImplementedError, "update_on_kvstore=False"):
            refused("x")
    outs = [filled(0) for _ in range(3)]
    kv.broadcast("k", filled(4), outs)
    kv.pushpull("k", [filled(1), filled(2, device=1)], out=outs)
    for out in outs:
        require_equal(out, 3)
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.pushpull("k", [filled(0.7), filled(0.2, device=1)], out=outs)
    require_equal(outs[0], 0.5)
    with raises(gradwire.mxnet.KVStoreError, "row_sparse"):
        kv.pushpull("k", filled(1).tostype("row_sparse"))
    with raises(ValueError, "update_on_kvstore=False"):
        weight = mx.gluon.Parameter("w", shape=(4,))
        weight.initialize()
        mx.gluon.Trainer([weight], "sgd", {}, kvstore=kv, update_on_kvstore=True)._init_kvstore()


@case
def the_plugin_does_not_train_alone_in_a_job_without_a_meeting_place(folder: Path) -> None:
    os.environ |= {"RANK": "1", "WORLD_SIZE": "4"}
    try:
        with raises(ValueError, "gradwire.mxnet: .*4 workers.*MASTER_ADDR and MASTER_PORT.*dist_sync_mpi"):
            mx.kv.create("gradwire")
    finally:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]


# ---- memory --------------------------------------------------------------------------------------------------


@case
def nothing_is_copied_between_the_two(folder: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = memory.array_over(values)
    values[1, 2] = 70
    require_equal(array, values)
    array[:] = 8
    mx.nd.waitall()
    np.testing.assert_array_equal(values, 8)
    assert values.flags.writeable
    assert memory.view_of(array).__array_interface__["data"] == values.__array_interface__["data"]
    part = array[1]
    np.testing.assert_array_equal(memory.view_of(part), [8, 8, 8])
    memory.view_of(part)[0] = 9
    require_equal(array, [[8, 8, 8], [9, 8, 8]])
    assert memory.is_plain(array, "float32")
    assert not memory.is_plain(array, "float64")
    assert not memory.is_plain(filled(1, dtype="float16"), "float32")
    assert not memory.is_plain(filled(1).tostype("row_sparse"), "float32")


@case
def a_layout_of_onednns_is_refused(folder: Path) -> None:
    images = mx.nd.random.uniform(shape=(2, 16, 8, 8))
    weight = mx.nd.random.uniform(shape=(32, 16, 3, 3))
    found = mx.nd.Convolution(images, weight, kernel=(3, 3), num_filter=32, no_bias=True)
    found.wait_to_read()
    with raises(gradwire.mxnet.KVStoreError, "layout of oneDNN's"):
        memory.view_of(found)
    usable = found.copy() + 0
    usable.wait_to_read()
    np.testing.assert_array_equal(memory.view_of(usable), found.asnumpy())


# ---- optimizers ----------------------------------------------------------------------------------------------


@case
def servers_have_some_optimizers(folder: Path) -> None:
    common = {"learning_rate": 0.25, "wd": 0.5, "rescale_grad": 0.125}
    rule = optimizers.server_rule
    sgd = mx.optimizer.SGD(momentum=0.75, clip_gradient=2.0, **common)
    assert rule(sgd) == ("mxnet_sgd", {**common, "momentum": 0.75, "clip_gradient": 2.0})
    nag = mx.optimizer.NAG(momentum=0.75, **common)
    assert rule(nag) == ("mxnet_sgd", {**common, "momentum": 0.75, "nesterov": 1.0})
    adam = {"beta1": 0.5, "beta2": 0.25, "epsilon": 0.125}
    assert rule(mx.optimizer.Adam(**adam, **common)) == ("adam", {**common, **adam})
    assert rule(mx.optimizer.create("test", rescale_grad=2.0)) == ("test", {"rescale_grad": 2.0})
    with raises(gradwire.mxnet.KVStoreError, "no AdaDelta; use one of SGD, NAG, Adam, Test"):
        rule(mx.optimizer.AdaDelta())
    with raises(gradwire.mxnet.KVStoreError, "lr_scheduler"):
        rule(mx.optimizer.SGD(lr_scheduler=mx.lr_scheduler.FactorScheduler(2)))


@case
def defaults_of_servers_rules_are_mxnets(folder: Path) -> None:
    """MXNet's NAG has no momentum by default, and is its SGD then."""
    sgd = {"learning_rate": 0.01, "momentum": 0.0, "wd": 0.0, "rescale_grad": 1.0}
    adam = {
        "learning_rate": 0.001,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "wd": 0.0,
        "rescale_grad": 1.0,
    }
    store = gradwire.kv.create("local")
    store.init("w", np.zeros(2, np.float32))
    for made, expected in (
        (mx.optimizer.SGD(), ("mxnet_sgd", sgd)),
        (mx.optimizer.NAG(), ("mxnet_sgd", {**sgd, "nesterov": 0.0})),
        (mx.optimizer.Adam(), ("adam", adam)),
        (mx.optimizer.Test(), ("test", {"rescale_grad": 1.0})),
    ):
        name, parameters = optimizers.server_rule(made)
        assert (name, parameters) == expected
        store.set_optimizer(name, **parameters)  # which the servers take
    store.close()


@case
def local_stats_are_of_what_devices_encode(folder: Path) -> None:
    """Two devices push 0.75 with a threshold of 0.5: a quarter is left of each of 6 elements, and 4 bytes go."""
    kv = mx.kv.create("device")
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.init("w", filled(0))
    kv.push("w", [filled(0.75), filled(0.75, device=1)])
    stats = kv.gradwire.stats()
    assert (stats["bytes_raw"], stats["bytes_encoded"], stats["ratio"]) == (48, 8, 6)
    np.testing.assert_allclose(stats["residual_norm"], (12 * 0.25**2) ** 0.5, rtol=1e-12)
    kv.close()


@case
def servers_update_all_keys_alike(folder: Path) -> None:
    def biased(**given: Any) -> Any:  # what Module makes: biases do not decay
        return mx.optimizer.SGD(param_idx2name={0: "fc_weight", 1: "fc_bias"}, **given)

    optimizers.server_rule(biased(wd=0))
    with raises(gradwire.mxnet.KVStoreError, "wd_mult of 'fc_bias' is not 1"):
        optimizers.server_rule(biased(wd=0.1))
    parameter = mx.gluon.Parameter("slow", shape=(1,), lr_mult=0.1)
    with raises(gradwire.mxnet.KVStoreError, "lr_mult or wd_mult of 'slow'"):
        optimizers.server_rule(mx.optimizer.SGD(param_dict={0: parameter}))


@case
def differences_of_optimizers_are_named(folder: Path) -> None:
    one = optimizers.hyper_parameters(mx.optimizer.SGD(learning_rate=0.1))
    assert optimizers.first_difference([one, dict(one)]) is None
    scheduled = mx.optimizer.SGD(
        learning_rate=0.1, lr_scheduler=mx.lr_scheduler.FactorScheduler(2, base_lr=0.1)
    )
    other = optimizers.hyper_parameters(scheduled)
    found = optimizers.first_difference([one, one, other])
    assert found == "lr_scheduler is None on rank 0 and missing on rank 2"


if __name__ == "__main__":
    run_cases(Path(sys.argv[1]))
