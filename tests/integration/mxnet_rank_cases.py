"""What each rank does in mxnet_ranks_test.py: MXNet 1.9.1 on gradwire's dist_sync, with two workers and two servers.

python mxnet_rank_cases.py FOLDER    as one rank of a gradwire job; prints "CASE passed" after each
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gradwire.mxnet
import mxnet as mx
import mxnet_trainer_cases  # noqa: F401 (its cases are in the table)
import numpy as np
from mxnet_programs import case, filled, raises, require_equal, run_cases, wait_for_file

RANKS = 2
TOTAL = 3  # of rank + 1
FOLDER = Path()
_keys = iter(range(100, 10_000))


def new_keys(kv: Any, *values: Any) -> list[int]:
    """Keys that no other case uses, initialised."""
    keys = [next(_keys) for _ in values]
    kv.init(keys, list(values))
    return keys


def gradients(kv: Any, shape: tuple[int, ...], rounds: int) -> list[list[Any]]:
    """By round and rank; every rank knows all."""
    draws = np.random.RandomState(5)
    return [[draws.uniform(-1, 1, shape).astype(np.float32) for _ in range(RANKS)] for _ in range(rounds)]


# ---- sums ----------------------------------------------------------------------------------------------------


@case
def it_is_what_it_was_created_as(kv: Any) -> None:
    assert isinstance(kv, mx.kvstore.KVStore)
    assert kv.type == "dist_sync"
    assert kv.num_workers == RANKS
    assert kv.rank in range(RANKS)
    assert mx.kv.create("dist_sync") is kv  # as a Trainer would that is given the name
    assert kv.is_capable("optimizer")
    assert kv.is_capable("gradient_compression:2bit")
    assert kv.get_num_dead_node(0, timeout=1) == 0


@case
def first_values_are_those_of_rank_0(kv: Any) -> None:
    key, other = new_keys(kv, filled(kv.rank + 5), filled(kv.rank + 7))
    out, beside = filled(0), filled(0)
    kv.pull([key, other], out=[out, beside])
    require_equal(out, 5)
    require_equal(beside, 7)


@case
def pulls_are_the_sums_of_pushes(kv: Any) -> None:
    (key,) = new_keys(kv, filled(0))
    out = filled(0)
    for step in range(3):
        kv.push(key, filled((kv.rank + 1) * (step + 1)), priority=-1)
        kv.pull(key, out=out, priority=-1)
        require_equal(out, TOTAL * (step + 1))


@case
def devices_are_added_up_first(kv: Any) -> None:
    key, other = new_keys(kv, filled(0), filled(0))
    outs = [[filled(0, device=device) for device in range(2)] for _ in range(2)]
    values = [[filled(kv.rank + 1, device=device) for device in range(3)] for _ in range(2)]
    kv.push([key, other], values)
    kv.pull([key, other], out=outs)
    for its in outs:
        for out in its:
            require_equal(out, 3 * TOTAL)


@case
def a_key_may_be_repeated_in_a_list(kv: Any) -> None:
    (key,) = new_keys(kv, filled(0))
    out, again = filled(0), filled(0)
    kv.push([key, key], [filled(1), filled(kv.rank)])
    kv.pull([key, key], out=[out, again])
    require_equal(out, 2 + 1)
    require_equal(again, 2 + 1)


@case
def pushpull_writes_to_the_value_itself(kv: Any) -> None:
    (key,) = new_keys(kv, filled(0))
    value, out = filled(kv.rank + 1), filled(0)
    kv.pushpull(key, value)
    require_equal(value, TOTAL)
    kv.pull(key, out=out)
    require_equal(out, TOTAL)
    both = [filled(kv.rank + 1), filled(kv.rank + 1, device=1)]
    kv.pushpull(key, both)
    require_equal(both[0], 2 * TOTAL)
    require_equal(both[1], 2 * TOTAL)


@case
def pushpull_leaves_the_value_where_there_is_an_out(kv: Any) -> None:
    (key,) = new_keys(kv, filled(0))
    value, out = filled(kv.rank + 1), filled(0)
    kv.pushpull(key, value, out=out)
    require_equal(out, TOTAL)
    require_equal(value, kv.rank + 1)


@case
def half_precision_is_summed_in_float32(kv: Any) -> None:
    (key,) = new_keys(kv, filled(0, dtype="float16"))
    values = [filled(2050 if kv.rank else 0.5, dtype="float16"), *[filled(0.5, dtype="float16")] * 3]
    out = filled(0, dtype="float16")
    kv.pushpull(key, values, out=out)
    require_equal(out, np.float32(2053.5))  # rounded at the end: float16 cannot add 0.5 to 2050
    assert out.dtype == np.dtype("float16")


@case
def double_precision_is_summed_in_64_bits(kv: Any) -> None:
    fine = 1 + 2.0**-40  # 1 in float32
    (key,) = new_keys(kv, filled(fine, dtype="float64"))
    out = filled(0, dtype="float64")
    kv.pull(key, out=out)
    require_equal(out, fine)
    kv.push(key, [filled(fine, dtype="float64"), filled(fine, dtype="float64", device=1)])
    kv.pull(key, out=out)
    require_equal(out, 2 * RANKS * fine)
    for value in (filled(fine, dtype="float64"), filled(fine + 1, dtype="float64")):
        expected = RANKS * value.asnumpy()
        kv.pushpull(key, value)  # where it lies
        require_equal(value, expected)
    kv.pushpull(key, filled(1), out=out)  # of float32, as it comes
    require_equal(out, RANKS)
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    (weight,) = new_keys(kv, filled(fine, dtype="float64"))
    kv.pushpull(weight, filled(-fine, dtype="float64"), out=out)
    require_equal(out, (1 + RANKS) * fine)
    kv._updater = None


@case
def what_is_still_computed_is_waited_for(kv: Any) -> None:
    (key,) = new_keys(kv, filled(0, (300, 300)))
    value = filled(1, (300, 300))
    for _ in range(20):
        value = mx.nd.dot(value, filled(1 / 300, (300, 300)))
    expected = value.asnumpy()
    again = filled(1, (300, 300))
    for _ in range(20):
        again = mx.nd.dot(again, filled(1 / 300, (300, 300)))
    out = filled(0, (300, 300))
    kv.push(key, again)
    again[:] = -1  # MXNet puts this off until the value has left
    kv.pull(key, out=out)
    require_equal(out, expected + expected)


@case
def a_call_returns_before_the_others_have_made_theirs(kv: Any) -> None:
    (key,) = new_keys(kv, filled(0))
    value, mark = filled(kv.rank + 1), FOLDER / "pushed"
    if kv.rank == 0:
        kv.pushpull(key, value)
        mark.touch()
    else:
        wait_for_file(mark)
        kv.pushpull(key, value)
    require_equal(value, TOTAL)


@case
def ranks_may_go_through_keys_in_different_orders(kv: Any) -> None:
    keys = new_keys(kv, *(filled(0) for _ in range(6)))
    values = {key: filled(0) for key in keys}
    for step in range(5):
        for key in keys if kv.rank == 0 else reversed(keys):
            values[key][:] = (kv.rank + 1) * (key + step)
            kv.pushpull(key, values[key])
    for key in keys:
        require_equal(values[key], TOTAL * (key + 4))


@case
def convolutions_gradients_are_taken_as_they_lie(kv: Any) -> None:
    weight = mx.nd.ones((8, 4, 3, 3)) / 10
    (key,) = new_keys(kv, weight)
    weight.attach_grad()
    images = mx.nd.random.uniform(shape=(2, 4, 9, 9))
    with mx.autograd.record():
        loss = mx.nd.Convolution(images, weight, kernel=(3, 3), num_filter=8, no_bias=True).sum()
    loss.backward()
    alone, out = weight.grad.asnumpy(), mx.nd.zeros(weight.shape)
    kv.push(key, weight.grad)
    kv.pull(key, out=out)
    everyone = kv.gradwire.collectives.all_reduce(alone)
    require_equal(out, everyone)


# ---- optimizers ----------------------------------------------------------------------------------------------


def sgd(**parameters: Any) -> Any:
    return mx.optimizer.SGD(momentum=0.9, wd=0.01, rescale_grad=0.5, **parameters)


@case
def the_optimizer_gives_mxnets_own_weights(kv: Any) -> None:
    """Momentum, decay, a scheduler: beside MXNet's updater on the sum, bit for bit."""

    def make() -> Any:
        return sgd(lr_scheduler=mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.1))

    expected = mx.nd.ones((50,))
    updater = mx.optimizer.get_updater(make())
    (key,) = new_keys(kv, expected.copy())
    kv.set_optimizer(make())
    out = mx.nd.zeros((50,))
    for of_ranks in gradients(kv, (50,), 6):
        updater(key, mx.nd.array(of_ranks[0] + of_ranks[1]), expected)
        kv.pushpull(key, mx.nd.array(of_ranks[kv.rank]), out=out)
        require_equal(out, expected.asnumpy())
    kv.push(key, mx.nd.array(of_ranks[kv.rank]))
    updater(key, mx.nd.array(of_ranks[0] + of_ranks[1]), expected)
    kv.pull(key, out=out)
    require_equal(out, expected.asnumpy())
    kv._updater = None


@case
def a_learning_rate_may_change(kv: Any) -> None:
    (key,) = new_keys(kv, filled(0))
    optimizer, out = mx.optimizer.SGD(learning_rate=1.0), filled(0)
    kv.set_optimizer(optimizer)
    kv.pushpull(key, filled(kv.rank + 1), out=out)
    require_equal(out, -TOTAL)
    optimizer.set_learning_rate(0.5)
    kv.pushpull(key, filled(kv.rank + 1), out=out)
    require_equal(out, -1.5 * TOTAL)
    kv.set_learning_rate(2.0)
    kv.pushpull(key, filled(kv.rank + 1), out=out)
    require_equal(out, -3.5 * TOTAL)
    kv._updater = None


@case
def optimizers_are_alike_whatever_the_order_of_keys(kv: Any) -> None:
    """With a scheduler's rate, which depends on the pushes that this worker has made."""
    keys = new_keys(kv, *(filled(0) for _ in range(3)))
    kv.set_optimizer(sgd(lr_scheduler=mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=1.0)))
    outs = {key: filled(0) for key in keys}
    for _ in range(5):
        for key in keys if kv.rank == 0 else reversed(keys):
            kv.pushpull(key, filled(kv.rank + 1), out=outs[key])
    first, *others = (outs[key].asnumpy() for key in keys)
    for other in others:
        require_equal(other, first)
    kv._updater = None


@case
def half_precision_weights_are_kept_in_float32(kv: Any) -> None:
    (key,) = new_keys(kv, filled(1, dtype="float16"))
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=2.0**-12, multi_precision=True))
    out = filled(0, dtype="float16")
    for _ in range(4):
        kv.pushpull(key, filled(-1, dtype="float16"), out=out)
    require_equal(
        out, np.float16(1 + 4 * RANKS * 2.0**-12)
    )  # in float16 each of these steps would round to nothing
    kv._updater = None


@case
def optimizers_that_differ_are_refused_on_all_ranks(kv: Any) -> None:
    with raises(gradwire.mxnet.KVStoreError, r"lr is 0\.1 on rank 0 and 0\.2 on rank 1"):
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1 * (kv.rank + 1)))
    with raises(mx.MXNetError, "class is Adam on rank 0 and SGD on rank 1"):
        kv.set_optimizer(mx.optimizer.Adam() if kv.rank == 0 else mx.optimizer.SGD(learning_rate=0.001))


@case
def a_function_may_update_too(kv: Any) -> None:
    (key,) = new_keys(kv, filled(10))

    def update(which: Any, total: Any, weight: Any) -> None:
        assert which == key
        weight[:] = weight * 2 + total

    kv._set_updater(update)
    out = filled(0)
    kv.push(key, filled(kv.rank + 1))
    kv.pull(key, out=out)
    require_equal(out, 20 + TOTAL)
    with raises(gradwire.mxnet.KVStoreError, "set_learning_rate: .*a function.*set_optimizer"):
        kv.set_learning_rate(0.1)
    with raises(gradwire.mxnet.KVStoreError, "there is no optimizer in this worker"):
        kv.save_optimizer_states(str(FOLDER / "none"))
    kv._updater = None


@case
def optimizer_states_are_saved_and_loaded(kv: Any) -> None:
    (key,) = new_keys(kv, filled(0))
    before, after, path = filled(0), filled(0), str(FOLDER / f"states{kv.rank}")

    def make() -> Any:
        return mx.optimizer.SGD(learning_rate=0.5, momentum=0.5)

    kv.set_optimizer(make())
    kv.pushpull(key, filled(1), out=before)
    kv.save_optimizer_states(path, dump_optimizer=True)
    kv.pushpull(key, filled(1), out=after)
    require_equal(after - before, -1.5)
    kv.set_optimizer(make())  # begins anew, and has no momentum
    kv.load_optimizer_states(path)
    kv.pushpull(key, filled(1), out=before)
    require_equal(before - after, -1.5)
    kv._updater = None


# ---- rows ----------------------------------------------------------------------------------------------------


def some_rows(ids: list[int], value: float, shape: tuple[int, int] = (6, 2)) -> Any:
    data = mx.nd.full((len(ids), shape[1]), value)
    return mx.nd.sparse.row_sparse_array((data, mx.nd.array(ids, dtype="int64")), shape=shape)


@case
def rows_are_summed_over_the_union_of_their_ids(kv: Any) -> None:
    (key,) = new_keys(kv, mx.nd.ones((6, 2)).tostype("row_sparse"))
    out = mx.nd.sparse.zeros("row_sparse", (6, 2))
    kv.row_sparse_pull(key, out=out, row_ids=mx.nd.array([5, 0, 5]))
    expected = np.zeros((6, 2))
    expected[[0, 5]] = 1
    require_equal(out, expected)
    kv.push(key, some_rows([1, 3 + kv.rank], kv.rank + 1))
    kv.row_sparse_pull(key, out=out, row_ids=mx.nd.array([[4, 3], [1, 1]]))
    expected = np.zeros((6, 2))
    expected[1], expected[3], expected[4] = TOTAL, 1, 2
    require_equal(out, expected)
    kv.row_sparse_pull(key, out=out, row_ids=mx.nd.array([]))
    require_equal(out, 0)


@case
def an_optimizer_updates_the_rows_that_were_pushed(kv: Any) -> None:
    (key,) = new_keys(kv, mx.nd.ones((6, 2)).tostype("row_sparse"))
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, wd=0.5))
    out = mx.nd.sparse.zeros("row_sparse", (6, 2))
    kv.push(key, some_rows([1, 3 + kv.rank], kv.rank + 1))
    kv.row_sparse_pull(key, out=[out], row_ids=mx.nd.arange(6))
    expected = np.ones((6, 2))
    expected[1], expected[3], expected[4] = (
        0.5 - TOTAL,
        0.5 - 1,
        0.5 - 2,
    )  # others do not decay: MXNet's lazy update
    require_equal(out, expected)
    dense = mx.nd.zeros((6, 2))
    kv.pull(key, out=dense)
    require_equal(dense, expected)
    kv._updater = None


@case
def a_dense_weight_takes_gradients_of_rows(kv: Any) -> None:
    (key,) = new_keys(kv, mx.nd.ones((6, 2)))
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    out = mx.nd.zeros((6, 2))
    for step in range(2):
        kv.push(key, some_rows([1, 3 + kv.rank], kv.rank + 1))
        kv.pull(key, out=out)
        expected = np.ones((6, 2))
        for row, total in ((1, TOTAL), (3, 1), (4, 2)):
            expected[row] -= total * (step + 1)
        require_equal(out, expected)
    kv._updater = None
    kv.push(key, some_rows([2], 1))
    kv.pull(key, out=out)
    expected = np.zeros((6, 2))
    expected[2] = RANKS
    require_equal(out, expected)


@case
def sparse_outs_are_left_alone_or_get_all_rows(kv: Any) -> None:
    (key,) = new_keys(kv, mx.nd.ones((6, 2)).tostype("row_sparse"))
    out = mx.nd.sparse.zeros("row_sparse", (6, 2))
    kv.pull(key, out=out)
    require_equal(out, 0)
    kv.pull(key, out=out, ignore_sparse=False)
    require_equal(out, 1)
    with raises(mx.MXNetError, "row_ids of key .* hold 6, and it has 6 rows"):
        kv.row_sparse_pull(key, out=out, row_ids=mx.nd.array([6]))


# ---- misuse --------------------------------------------------------------------------------------------------


@case
def misuse_is_an_error_that_both_worlds_catch(kv: Any) -> None:
    (key,) = new_keys(kv, filled(0))
    for kind in (mx.MXNetError, ValueError):
        with raises(kind, "push: key 77777 has not been initialised"):
            kv.push(77777, filled(1))
    with raises(mx.MXNetError, "declared before"):
        kv.init(key, filled(0))
    with raises(mx.MXNetError, "mixed key types"):
        kv.init("word", filled(0))
    with raises(mx.MXNetError, r"has shape \(2, 3\), \(3, 2\) given"):
        kv.push(key, filled(1, (3, 2)))
    with raises(mx.MXNetError, "2 keys but 1 values"):
        kv.push([key, key], [filled(1)])
    with raises(mx.MXNetError, "expected an NDArray of MXNet"):
        kv.push(key, np.zeros((2, 3)))
    with raises(mx.MXNetError, "int32, expected one of float32"):
        kv.init(next(_keys), filled(0, dtype="int32"))
    with raises(mx.MXNetError, "pull: there is no out"):
        kv.pull(key)
    with raises(mx.MXNetError, "take no commands"):
        kv._send_command_to_servers(0, "")


# ---- compression, last: it stays ------------------------------------------------------------------------------


def two_bit(gradient: Any, residual: Any, threshold: float) -> Any:
    """MXNet's rule (Strom 2015): what leaves of gradient + residual; residual is updated."""
    residual += gradient
    sent = np.where(residual >= threshold, threshold, np.where(residual <= -threshold, -threshold, 0))
    sent = sent.astype(np.float32)
    residual -= sent
    return sent


@case
def two_bits_are_mxnets_in_push_and_in_pushpull(kv: Any) -> None:
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    shape = (37, 11)
    key, first = new_keys(kv, filled(0, shape), filled(0.3, shape))
    out = filled(0, shape)
    kv.pull(first, out=out)
    require_equal(out, np.float32(0.3))  # first values are not compressed
    residuals = [np.zeros(shape, np.float32) for _ in range(RANKS)]
    for step, of_ranks in enumerate(gradients(kv, shape, 6)):
        expected = sum(two_bit(g, r, 0.5) for g, r in zip(of_ranks, residuals, strict=True))
        mine = mx.nd.array(of_ranks[kv.rank])
        if step % 2:
            kv.pushpull(key, mine, out=out)
        else:
            kv.push(key, mine)
            kv.pull(key, out=out)
        require_equal(out, expected)


@case
def a_nan_that_two_bits_cannot_send_is_in_the_sum_of_all_ranks(kv: Any) -> None:
    """As without a codec, and in that round alone."""
    (key,) = new_keys(kv, filled(0, (4,)))
    out = filled(0, (4,))
    bad = mx.nd.array([1.0, np.nan if kv.rank == 1 else 1.0, 1.0, 1.0])
    kv.push(key, bad)
    kv.pull(key, out=out)
    require_equal(out, np.nan)
    kv.pushpull(key, mx.nd.ones((4,)), out=out)
    require_equal(out, 0.5 * RANKS)
    kv.pushpull(key, bad, out=out)
    require_equal(out, np.nan)
    kv.pushpull(key, bad)  # in place
    require_equal(bad, np.nan)


def main() -> None:
    global FOLDER
    FOLDER = Path(sys.argv[1])
    gradwire.mxnet.patch()
    run_cases(mx.kv.create("dist_sync"))


if __name__ == "__main__":
    main()
