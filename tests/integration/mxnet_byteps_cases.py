"""What each rank does in mxnet_doors_test.py with gradwire.byteps.mxnet; NumPy and MXNet itself are the oracles.

python mxnet_byteps_cases.py    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

from typing import Any

import gradwire.byteps.mxnet as bps
import mxnet as mx
import numpy as np
from mxnet_programs import case, filled, raises, require_equal, require_signature, run_cases

# byteps/mxnet of BytePS 0.2.5: parameters with their defaults, where a script may give them.
SIGNATURES = {
    "init": "lazy=True",
    "shutdown": "",
    "suspend": "",
    "resume": "num_workers, num_servers, global_rank=-1",
    "rank": "",
    "size": "",
    "local_rank": "",
    "local_size": "",
    "byteps_declare_tensor": "name, **kwargs",
    "byteps_push_pull": "tensor, version=0, priority=0, name=None, is_average=True",
    "broadcast_parameters": "params, root_rank=0",
    "DistributedOptimizer": "optimizer",
    "DistributedTrainer": "params, optimizer, optimizer_params=None, root_rank=0, compression_params=None",
}


def of_ranks(shape: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    draws = np.random.RandomState(7)
    return [draws.uniform(-8, 8, shape).astype(dtype) for _ in range(bps.size())]


@case
def calls_of_byteps_can_be_made() -> None:
    """Ours may take more, behind what BytePS's takes."""
    for name, theirs in SIGNATURES.items():
        require_signature(getattr(bps, name), theirs, {})


@case
def push_pulls_are_sums_and_means_in_place() -> None:
    for dtype in ("float16", "float32", "float64", "int32"):
        everyone = of_ranks((3, 4), dtype)
        for is_average in (True, False):
            tensor = mx.nd.array(everyone[bps.rank()], dtype=dtype)
            bps.byteps_declare_tensor(f"tensor {dtype}")
            assert bps.byteps_push_pull(tensor, name=f"tensor {dtype}", is_average=is_average) is None
            total = sum(each.astype("float64") for each in everyone)
            mean = np.trunc(total / bps.size()) if dtype == "int32" else total / bps.size()
            np.testing.assert_allclose(
                tensor.asnumpy(), mean if is_average else total, rtol=1e-3 if dtype == "float16" else 1e-6
            )
    bps.byteps_push_pull(tensor)  # nameless


@case
def ranks_ask_in_any_order() -> None:
    tensors = [filled(i + bps.rank()) for i in range(6)]
    for i in range(6) if bps.rank() else reversed(range(6)):
        bps.byteps_push_pull(tensors[i], name=f"any order {i}", priority=-i)
    for i, tensor in enumerate(tensors):
        require_equal(tensor, i + (bps.size() - 1) / 2)


@case
def a_declared_codec_acts_on_what_is_pushed() -> None:
    bps.byteps_declare_tensor(
        "by topk", byteps_compressor_type="topk", byteps_compressor_k=0.01, byteps_ef_type="vanilla"
    )
    values = np.linspace(1, 2, 1000).astype("float32")
    tensor = mx.nd.array(values)
    bps.byteps_push_pull(tensor, name="by topk", is_average=False)
    found = tensor.asnumpy()
    assert np.count_nonzero(found) == 10  # 1 %, and the rest is kept
    np.testing.assert_allclose(found[-10:], bps.size() * values[-10:])
    exact = filled(1.0, (1000,))
    bps.byteps_push_pull(exact, name="by topk", is_average=False, compression=bps.Compression.none)
    require_equal(exact, bps.size())
    half = mx.nd.array(values)
    bps.byteps_push_pull(half, name="half", compression=bps.Compression.fp16)
    require_equal(half, values.astype("float16").astype("float32"))


@case
def ranks_that_differ_are_told() -> None:
    tensor = filled(1.0, (1 + bps.rank(), 2))
    bps.byteps_push_pull(tensor, name="differs")
    with raises(mx.MXNetError, r"allreduce 'differs': rank 0 has float32 of shape \(1, 2\)"):
        tensor.wait_to_read()


@case
def what_there_is_not_says_what_to_do() -> None:
    for call in (bps.suspend, lambda: bps.resume(2, 1)):
        with raises(NotImplementedError, "go on from them in a new job"):
            call()
    with raises(ValueError, "'byteps_momentum_type' is not known"):
        bps.byteps_declare_tensor("x", byteps_momentum_type="nesterov")
    with raises(TypeError, "name is 3, expected a str"):
        bps.byteps_declare_tensor(3)
    with raises(TypeError, "given a list, expected an NDArray"):
        bps.byteps_push_pull([1.0], compression=bps.Compression.fp16)
    with raises(ValueError, "give 'scaling': True"):
        trainer_of(new_net(), compression_params={"compressor": "onebit"})
    with raises(ValueError, "optimizer_params={'momentum': 0.9"):
        bps.DistributedTrainer(
            new_net().collect_params(),
            mx.optimizer.SGD(),
            compression_params={"compressor": "topk", "k": 0.1, "momentum": "nesterov"},
        )


# ---- training ----------------------------------------------------------------------------------------------------


def new_net(seed: int = 3) -> Any:
    mx.random.seed(seed)
    net = mx.gluon.nn.Sequential()
    net.add(mx.gluon.nn.Dense(8, activation="tanh", in_units=5), mx.gluon.nn.Dense(2, in_units=8))
    net.initialize(mx.init.Xavier())
    return net


def trainer_of(net: Any, **options: Any) -> Any:
    return bps.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, **options
    )


def weights(net: Any) -> Any:
    return np.concatenate([p.data().asnumpy().ravel() for p in net.collect_params().values()])


def train(net: Any, trainer: Any, ranks: list[int]) -> Any:
    for step in range(5):
        parts = [np.random.RandomState(100 * step + rank).normal(size=(8, 7)) for rank in ranks]
        batch = mx.nd.array(np.concatenate(parts))
        with mx.autograd.record():
            loss = mx.gluon.loss.L2Loss()(net(batch[:, :5]), batch[:, 5:])
        loss.backward()
        trainer.step(len(batch))
    return weights(net)


def alone(optimizer: str) -> Any:
    """MXNet's own, in one process, with the batches of all ranks."""
    net = new_net()
    trainer = mx.gluon.Trainer(
        net.collect_params(), optimizer, {"learning_rate": 0.1, "momentum": 0.9}, kvstore=None
    )
    return train(net, trainer, list(range(bps.size())))


@case
def the_first_step_begins_with_the_roots_parameters() -> None:
    net = new_net(seed=bps.rank() + 50)
    trainer = trainer_of(net, root_rank=1)
    trainer._init_params()
    require_equal(np.float32(weights(net)), weights(new_net(seed=51)))


@case
def a_trainer_takes_the_steps_of_one_process_with_all_batches() -> None:
    net = new_net()
    np.testing.assert_allclose(train(net, trainer_of(net), [bps.rank()]), alone("sgd"), rtol=1e-4, atol=1e-6)
    half = new_net()
    found = train(half, trainer_of(half, compression_params={"fp16": True}), [bps.rank()])
    np.testing.assert_allclose(found, alone("sgd"), rtol=0.05, atol=0.01)


@case
def nesterovs_momentum_is_added_before_a_codec() -> None:
    """With a codec that sends all, momentum before it is momentum behind it: what MXNet's NAG does."""
    net = new_net()
    given = {"compressor": "topk", "k": 0.999999, "ef": "vanilla", "momentum": "nesterov"}
    trainer = trainer_of(net, compression_params=given)
    assert trainer.optimizer.momentum == 0
    np.testing.assert_allclose(train(net, trainer, [bps.rank()]), alone("nag"), rtol=1e-4, atol=1e-6)


@case
def byteps_codecs_train() -> None:
    expected = alone("sgd")
    for given in (
        {"compressor": "onebit", "scaling": True, "ef": "vanilla"},
        {"compressor": "randomk", "k": 0.5, "seed": 3, "ef": "vanilla"},
        {"compressor": "dithering", "k": 127, "seed": 3},
        "int8",
    ):
        net = new_net()
        found = train(net, trainer_of(net, compression_params=given), [bps.rank()])
        table = mx.nd.array(found)
        bps.broadcast_parameters({"weights": table}, root_rank=0)
        require_equal(table, found)  # all ranks have the same
        assert not np.array_equal(found, expected)
        assert np.abs(found - expected).max() < 0.5


@case
def an_optimizer_updates_by_the_mean() -> None:
    weight = filled(1.0)
    optimizer = bps.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0))
    mx.optimizer.get_updater(optimizer)(0, filled(float(bps.rank())), weight)
    require_equal(weight, 1.0 - (bps.size() - 1) / 2)


if __name__ == "__main__":
    with raises(ValueError, r"call bps\.init\(\) first"):
        bps.rank()
    bps.init()
    run_cases()
