"""What each rank does in mxnet_doors_test.py with gradwire.horovod.mxnet; NumPy and MXNet itself are the oracles.

python mxnet_horovod_cases.py    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

import pickle
import time
import warnings
from typing import Any

import gradwire.horovod.mxnet as hvd
import gradwire.mxnet
import mxnet as mx
import numpy as np
from gradwire.horovod import session
from gradwire.mxnet.memory import view_of
from mxnet_programs import case, filled, raises, require_equal, require_signature, run_cases

BATCH = 8

# horovod/mxnet of Horovod 0.28: parameters with their defaults, where a script may give them; set is the global one.
SIGNATURES = {
    "init": "comm=None, process_sets=None",
    "shutdown": "",
    "allreduce": "tensor, average=None, name=None, priority=0, prescale_factor=1.0, postscale_factor=1.0, "
    "process_set=set, op=None",
    "grouped_allreduce_": "tensors, average=None, name=None, priority=0, prescale_factor=1.0, postscale_factor=1.0, "
    "process_set=set, op=None",
    "allgather": "tensor, name=None, priority=0, process_set=set",
    "grouped_allgather": "tensors, name=None, priority=0, process_set=set",
    "broadcast": "tensor, root_rank, name=None, priority=0, process_set=set",
    "broadcast_": "tensor, root_rank, name=None, priority=0, process_set=set",
    "alltoall": "tensor, splits=None, name=None, priority=0, process_set=set",
    "reducescatter": "tensor, op=0, name=None, priority=0, process_set=set, prescale_factor=1.0, postscale_factor=1.0",
    "grouped_reducescatter": "tensors, op=0, name=None, priority=0, process_set=set, prescale_factor=1.0, "
    "postscale_factor=1.0",
    "broadcast_object": "obj, root_rank=0, name=None",
    "allgather_object": "obj, name=None",
    "broadcast_parameters": "params, root_rank=0, prefix=None",
    "DistributedOptimizer": "optimizer, gradient_predivide_factor=1.0, num_groups=0, process_set=set",
    "DistributedTrainer": "params, optimizer, optimizer_params=None, compression=none, gradient_predivide_factor=1.0, "
    "prefix=None, num_groups=0, process_set=set",
}


def mine(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> tuple[Any, list[Any]]:
    """This rank's tensor, and those of all."""
    draws = np.random.RandomState(seed)
    everyone = [(draws.uniform(-50, 50, shape)).astype(dtype) for _ in range(hvd.size())]
    return mx.nd.array(everyone[hvd.rank()], dtype=dtype), everyone


@case
def calls_of_horovods_can_be_made() -> None:
    """Ours may take more, behind what Horovod's takes."""
    words = {hvd.global_process_set: "set", hvd.Compression.none: "none"}
    for name, theirs in SIGNATURES.items():
        require_signature(getattr(hvd, name), theirs, words)
    require_signature(hvd.allreduce_, SIGNATURES["allreduce"], words)
    require_signature(hvd.grouped_allreduce, SIGNATURES["grouped_allreduce_"], words)


# ---- sums ----------------------------------------------------------------------------------------------------


@case
def sums_means_and_extremes_of_all_dtypes() -> None:
    for dtype in ("int8", "int32", "int64", "float16", "float32", "float64"):
        tensor, everyone = mine((3, 5), dtype)
        before = tensor.asnumpy()
        wide = [each.astype("float32") if dtype == "float16" else each for each in everyone]
        total = sum(wide[1:], wide[0]).astype(dtype)
        exact = sum(each.astype("int64") for each in everyone) if "int" in dtype else sum(wide[1:], wide[0])
        mean = np.trunc(exact / hvd.size()) if "int" in dtype else exact / hvd.size()  # which does not wrap
        for op, expected in (
            (hvd.Sum, total),
            (hvd.Average, mean),
            (hvd.Min, np.minimum.reduce(everyone)),
            (hvd.Max, np.maximum.reduce(everyone)),
        ):
            result = hvd.allreduce(tensor, op=op, name=f"{dtype} {op}")
            assert result.dtype == tensor.dtype
            require_equal(result, expected.astype(dtype))
        require_equal(tensor, before)
        assert hvd.allreduce_(tensor, average=False) is tensor
        require_equal(tensor, total)
    largest = filled(127, dtype="int8")
    require_equal(hvd.allreduce(largest, op=hvd.Average), largest.asnumpy())
    truth = mx.np.array([True, False])
    found = hvd.allreduce(truth, op=hvd.Max)
    assert isinstance(found, mx.np.ndarray)
    assert found.asnumpy().tolist() == [True, False]


@case
def factors_come_before_and_after_the_sum() -> None:
    tensor, everyone = mine((4,), "float64")
    result = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    require_equal(result, sum(0.5 * each for each in everyone) * 3.0)
    half, everyone = mine((64,), "float16")
    once = np.float32(sum(each.astype("float32") for each in everyone)) * np.float32(0.3)
    require_equal(hvd.allreduce(half, op=hvd.Sum, postscale_factor=0.3), once.astype("float16"))
    share = hvd.reducescatter(half, op=hvd.Sum, postscale_factor=0.3)
    require_equal(share, np.array_split(once.astype("float16"), hvd.size())[hvd.rank()])


@case
def adasum_keeps_what_is_common_once() -> None:
    if hvd.size() != 2:
        with raises(ValueError, "op=Adasum combines ranks in pairs, and there are 3; use a power of two"):
            hvd.allreduce(filled(3.0), op=hvd.Adasum)
        return
    require_equal(hvd.allreduce(filled(3.0), op=hvd.Adasum), 3.0)
    with raises(ValueError, "Adasum is of floating point tensors"):
        hvd.allreduce(filled(3, dtype="int32"), op=hvd.Adasum)


@case
def a_sum_in_place_is_made_where_the_array_lies() -> None:
    tensor, everyone = mine((7,))
    tensor.wait_to_read()
    address = view_of(tensor).ctypes.data
    seen = []
    coordinator = session.current().coordinator
    submit = coordinator.submit

    def watched(request: Any, payload: Any = None) -> Any:
        seen.extend(array.ctypes.data for array in [*payload.given, *payload.targets])
        return submit(request, payload)

    coordinator.submit = watched
    try:
        hvd.allreduce_(tensor, op=hvd.Sum)
        require_equal(tensor, sum(everyone[1:], everyone[0]))
    finally:
        coordinator.submit = submit
    assert seen == [address, address]


@case
def groups_are_ready_together_and_may_share_memory() -> None:
    whole, everyone = mine((2, 3))
    rows = [whole[0], whole[1]]
    assert hvd.grouped_allreduce_(rows, op=hvd.Sum)[0] is rows[0]
    require_equal(whole, sum(everyone[1:], everyone[0]))
    ones = hvd.grouped_allreduce([filled(1), filled(2, dtype="int32")])
    require_equal(ones[0], 1)
    require_equal(ones[1], 2)
    with raises(ValueError, "given no tensor"):
        hvd.grouped_allreduce([])


@case
def calls_return_before_other_ranks_have_made_them() -> None:
    tensor = filled(hvd.rank() + 1)
    if hvd.rank() == 0:
        hvd.allreduce_(tensor, op=hvd.Sum, name="early on 0")
    hvd.allgather(filled(1), name="between")
    if hvd.rank() != 0:
        hvd.allreduce_(tensor, op=hvd.Sum, name="early on 0")
    require_equal(tensor, sum(range(1, hvd.size() + 1)))


@case
def ranks_submit_in_any_order() -> None:
    tensors = {f"any order {i}": filled(i) for i in range(20)}
    names = list(tensors)
    for name in names if hvd.rank() else reversed(names):
        hvd.allreduce_(tensors[name], name=name)
    for i, tensor in enumerate(tensors.values()):
        require_equal(tensor, i)


@case
def an_operation_waits_for_what_computes_its_tensor() -> None:
    tensor = filled(1.0, (200, 200))
    for _ in range(20):
        tensor = mx.nd.dot(tensor, filled(1.0, (200, 200))) / 200
    hvd.allreduce_(tensor, op=hvd.Sum)
    require_equal(tensor + 1, hvd.size() + 1)


@case
def nothing_of_it_is_recorded() -> None:
    weight = filled(2.0)
    weight.attach_grad()
    with mx.autograd.record():
        hvd.allreduce(filled(1.0))
        loss = (weight * weight).sum()
    loss.backward()
    require_equal(weight.grad, 4.0)


# ---- what goes wrong --------------------------------------------------------------------------------------------


@case
def who_reads_what_has_failed_is_told_and_the_job_goes_on() -> None:
    tensor = filled(1.0, (2 + hvd.rank(),))
    result = hvd.allreduce(tensor, name="differs")
    with raises(
        mx.MXNetError, r"HorovodInternalError: allreduce 'differs': rank 0 has float32 of shape \(2,\)"
    ):
        result.wait_to_read()
    hvd.allreduce_(tensor, name="differs in place")
    with raises(hvd.HorovodInternalError, "'differs in place'.*give the same on all ranks"):
        (tensor + 1).asnumpy()
    with raises(hvd.HorovodInternalError, "allgather 'differs'"):
        hvd.allgather(filled(1.0, (1, 2 + hvd.rank())), name="differs")
    require_equal(hvd.allreduce(filled(5.0)), 5.0)
    mx.nd.waitall()


def wait_until_under_way(name: str) -> None:
    coordinator = session.current().coordinator
    end = time.monotonic() + 60
    while not any(key.name == name for key in [*coordinator._handles, *coordinator._under_way]):
        assert time.monotonic() < end, name
        time.sleep(0.001)


@case
def a_name_is_under_way_once() -> None:
    first, second = filled(1.0), filled(2.0)
    if hvd.rank() == 0:
        hvd.allreduce_(first, name="twice")
        wait_until_under_way("twice")  # MXNet has several threads, and begins what is ready in any order
        hvd.allreduce_(second, name="twice")
        with raises(mx.MXNetError, "'twice' was submitted before"):
            second.wait_to_read()
    hvd.allgather(filled(1), name="after twice")
    if hvd.rank() != 0:
        hvd.allreduce_(first, name="twice")
    require_equal(first, 1.0)


@case
def what_cannot_be_is_said_by_the_call() -> None:
    with raises(TypeError, "given a ndarray, expected an NDArray"):
        hvd.allreduce(np.ones(2))
    with raises(ValueError, "row_sparse; give tensor.tostype"):
        hvd.allreduce(mx.nd.sparse.zeros("row_sparse", (2, 2)))
    with raises(ValueError, "op and average were both given"):
        hvd.allreduce(filled(1), average=True, op=hvd.Sum)
    with raises(ValueError, r"3 rows cannot be split evenly among \d+ members|do not fit"):
        hvd.alltoall(filled(1, (3, 1)), None if hvd.size() == 2 else [2, 2, 2])
    with raises(ValueError, "invalid params of type"):
        hvd.broadcast_parameters([filled(1)])
    with raises(TypeError, "expected an optimizer of MXNet's"):
        hvd.DistributedOptimizer("sgd")
    with raises(hvd.HorovodInternalError, "Adasum is of whole gradients"):
        hvd.reducescatter(filled(1), op=hvd.Adasum)


# ---- rows ------------------------------------------------------------------------------------------------------


@case
def rows_are_gathered_exchanged_and_shared_out() -> None:
    rank, size = hvd.rank(), hvd.size()
    gathered = hvd.allgather(filled(rank, (rank + 1, 2), "int32"))
    require_equal(gathered, [[r, r] for r in range(size) for _ in range(r + 1)])
    rows = mx.nd.array(np.arange(size * 2).reshape(-1, 1) + 100 * rank, dtype="float64")
    received, counts = hvd.alltoall(rows, splits=mx.nd.array([2] + [0] * (size - 1), dtype="int32"))
    expected = np.array([[100 * r + i] for r in range(size) for i in range(2)] if rank == 0 else [])
    assert received.shape == ((2 * size if rank == 0 else 0), 1)
    if rank == 0:
        require_equal(received, expected)
    assert counts.asnumpy().tolist() == [2 if rank == 0 else 0] * size
    whole, everyone = mine((size + 1, 3))
    total = sum(everyone[1:], everyone[0])
    require_equal(hvd.reducescatter(whole, op=hvd.Sum), np.array_split(total, size)[rank])
    pair = hvd.grouped_reducescatter([whole, whole], op=hvd.Max)
    require_equal(pair[1], np.array_split(np.maximum.reduce(everyone), size)[rank])


# ---- first values and objects ------------------------------------------------------------------------------------


@case
def broadcasts_are_the_roots_bits() -> None:
    bits = np.array([-0.0, np.nan, 1e-42, np.inf], np.float32)
    values = bits if hvd.rank() == 1 else np.zeros(4, np.float32)
    found = hvd.broadcast(mx.nd.array(values), root_rank=1)
    assert found.asnumpy().tobytes() == bits.tobytes()
    with raises(mx.MXNetError, "root_rank=9 is no member"):
        hvd.broadcast_(filled(1), root_rank=9).wait_to_read()


@case
def parameters_are_rank_0s_also_those_without_a_shape_yet() -> None:
    mx.random.seed(hvd.rank())
    net = mx.gluon.nn.Sequential(prefix="deferred_")
    net.add(mx.gluon.nn.Dense(3, in_units=2), mx.gluon.nn.Dense(2))
    net.initialize()
    hvd.broadcast_parameters(net.collect_params())
    net(filled(1.0, (1, 2)))
    for parameter in net.collect_params().values():
        everyone = hvd.allgather_object(parameter.data().asnumpy())
        require_equal(parameter.data(), everyone[0])
    table = {"a": filled(hvd.rank()), ("b" if hvd.rank() else "c"): filled(1)}
    with raises(ValueError, "ranks 0 and [12] have different parameters.*'[bc]'"):
        hvd.broadcast_parameters(table)


@case
def objects_travel() -> None:
    given = {"rank": hvd.rank(), "array": np.arange(hvd.rank() + 1)}
    assert hvd.broadcast_object(given, root_rank=1)["rank"] == 1
    assert [len(each["array"]) for each in hvd.allgather_object(given)] == list(range(1, hvd.size() + 1))


@case
def process_sets_operate_among_themselves() -> None:
    alone = hvd.add_process_set([1])
    if hvd.rank() == 1:
        require_equal(hvd.allreduce(filled(7.0), op=hvd.Sum, process_set=alone), 7.0)
    else:
        with raises(ValueError, "rank [02] is no member"):
            hvd.allreduce(filled(7.0), process_set=alone)
    require_equal(hvd.allreduce(filled(1.0), op=hvd.Sum), hvd.size())
    assert hvd.remove_process_set(alone)


# ---- training ----------------------------------------------------------------------------------------------------


def new_net() -> Any:
    mx.random.seed(3)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(16, activation="tanh", in_units=5), mx.gluon.nn.Dense(2, in_units=16))
    net.initialize(mx.init.Xavier())
    return net


def batch_of(step: int, rank: int) -> tuple[Any, Any]:
    draws = np.random.RandomState(100 * step + rank)
    return draws.normal(size=(BATCH, 5)).astype("float32"), draws.normal(size=(BATCH, 2)).astype("float32")


def train(net: Any, trainer: Any, ranks: list[int]) -> Any:
    for step in range(5):
        parts = zip(*(batch_of(step, rank) for rank in ranks), strict=True)
        inputs, labels = (mx.nd.array(np.concatenate(part)) for part in parts)
        with mx.autograd.record():
            loss = mx.gluon.loss.L2Loss()(net(inputs), labels)
        loss.backward()
        trainer.step(len(inputs))
    return np.concatenate([p.data().asnumpy().ravel() for p in net.collect_params().values()])


def trained(**options: Any) -> Any:
    net = new_net()
    trainer = hvd.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, **options
    )
    weights = train(net, trainer, [hvd.rank()])
    assert all(np.array_equal(each, weights) for each in hvd.allgather_object(weights))
    return weights


@case
def a_trainer_takes_the_steps_of_one_process_with_all_batches() -> None:
    net = new_net()
    oracle = mx.gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=None
    )
    expected = train(net, oracle, list(range(hvd.size())))
    untrained = np.concatenate([p.data().asnumpy().ravel() for p in new_net().collect_params().values()])
    assert np.abs(expected - untrained).max() > 0.05
    for options in ({}, {"num_groups": 2}, {"num_groups": 9}, {"gradient_predivide_factor": 2.0}):
        np.testing.assert_allclose(trained(**options), expected, rtol=1e-4, atol=1e-6)
    for options in ({"compression": hvd.Compression.fp16}, {"compression": "int8"}, {"compression": "int8"}):
        found = trained(**options)
        np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.02)
        assert not np.array_equal(found, trained())


@case
def a_trainers_mistakes_are_said() -> None:
    parameters = new_net().collect_params()
    with raises(ValueError, "unknown codec"):
        hvd.DistributedTrainer(parameters, "sgd", compression="3bit")
    with raises(ValueError, "leave num_groups and process_set out"):
        hvd.DistributedTrainer(parameters, "sgd", compression="int8", num_groups=2)
    with raises(ValueError, "gradient_predivide_factor=0"):
        hvd.DistributedTrainer(parameters, "sgd", gradient_predivide_factor=0)
    sparse = mx.gluon.nn.Embedding(4, 2, sparse_grad=True)
    sparse.initialize()
    with raises(ValueError, "is row_sparse; train by gradwire.mxnet.patch"):
        hvd.DistributedTrainer(sparse.collect_params(), "sgd")


@case
def an_optimizer_updates_by_the_mean() -> None:
    weight, gradient = filled(1.0), filled(float(hvd.rank()))
    inner = mx.optimizer.create("sgd", learning_rate=1.0, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(inner)
    optimizer.rescale_grad = 0.5
    assert inner.rescale_grad == 0.5
    updater = mx.optimizer.get_updater(optimizer)
    updater([0, 1], [gradient, filled(1.0)], [weight, filled(0.0)])
    mean = (hvd.size() - 1) / 2
    np.testing.assert_allclose(weight.asnumpy(), 1.0 - 0.5 * mean)
    again = pickle.loads(pickle.dumps(optimizer))
    assert again.momentum == 0.5
    gradient = filled(float(hvd.rank()))
    again.update(0, filled(1.0), gradient, again.create_state(0, filled(1.0)))
    np.testing.assert_allclose(gradient.asnumpy(), mean)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        distributed = hvd.DistributedOptimizer(mx.optimizer.SGD())
        trainer = hvd.DistributedTrainer(new_net().collect_params(), distributed)
    assert type(trainer.optimizer) is mx.optimizer.SGD
    assert "takes the optimizer inside" in str(told[0].message)


@case
def optimizers_that_differ_are_named_in_the_next_step() -> None:
    net = new_net()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, prefix="differ")
    inputs = mx.nd.ones((2, 5))

    def step(batch_size: int) -> None:
        with mx.autograd.record():
            loss = net(inputs).sum()
        loss.backward()
        trainer.step(batch_size)

    step(2)
    step(2 * (hvd.rank() + 1))
    with raises(
        gradwire.mxnet.KVStoreError,
        r"step 2: rescale_grad of .* 0\.5 on rank 0 and 0\.25 on rank 1; .*batch_size",
    ):
        step(2)


# ---- the end of a session ------------------------------------------------------------------------------------------


@case
def a_session_ends_and_another_begins() -> None:
    tensor, size = filled(1.0), hvd.size()
    hvd.allreduce_(tensor, op=hvd.Sum)
    hvd.shutdown()
    require_equal(tensor, size)
    assert not hvd.is_initialized()
    with raises(ValueError, r"use hvd.init\(\)"):
        hvd.allreduce(tensor)
    hvd.init()
    require_equal(hvd.allreduce(filled(1.0), op=hvd.Sum), hvd.size())


if __name__ == "__main__":
    hvd.init()
    hvd.init()  # no-op
    run_cases()
