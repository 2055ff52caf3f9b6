"""What each rank does in mxnet_agreement_test.py: optimizers that come to differ, after which a job cannot go on.

python mxnet_agreement_cases.py NAME CASE    as one rank of a gradwire job; prints "CASE passed"
"""

from __future__ import annotations

import sys
from typing import Any

import gradwire.mxnet
import mxnet as mx
from mxnet_programs import case, raises, run_cases


class Training:
    """One weight, by a Trainer over the store of that name."""

    def __init__(self, name: str, **options: Any) -> None:
        self.weight = mx.gluon.Parameter("weight", shape=(4,))
        self.weight.initialize(init="ones")
        self.trainer = mx.gluon.Trainer([self.weight], "sgd", {"learning_rate": 1.0}, kvstore=name, **options)
        self.trainer._init_kvstore()
        self.rank = self.trainer._kvstore.rank

    def step(self, batch_size: int) -> None:
        with mx.autograd.record():
            loss = ((self.rank + 1) * self.weight.data()).sum()
        loss.backward()
        self.trainer.step(batch_size)
        self.weight.data().wait_to_read()


@case
def batches_that_differ(name: str) -> None:
    training = Training(name)
    for batch_size in (2, 2, 4):  # all alike
        training.step(batch_size)
    said = "step 4: rescale_grad of the optimizer was 0.5 on rank 0 and 0.25 on rank 1; .*the same on all workers"
    with raises(gradwire.mxnet.KVStoreError, said):
        training.step(2 * (training.rank + 1))
        for _ in range(3):
            training.step(2)
    with raises(gradwire.mxnet.KVStoreError, said):  # for good
        training.step(2)


@case
def a_rate_that_one_worker_changes(name: str) -> None:
    training = Training(name)
    training.trainer.set_learning_rate(0.5)  # all alike
    training.step(1)
    if training.rank == 1:
        training.trainer.set_learning_rate(0.25)
    said = "step 2: learning_rate of the optimizer was 0.5 on rank 0 and 0.25 on rank 1; .*in the same step"
    with raises(gradwire.mxnet.KVStoreError, said):
        for _ in range(3):
            training.step(1)


@case
def batches_that_differ_where_the_trainer_updates(name: str) -> None:
    training = Training(name, update_on_kvstore=False)
    training.step(2)
    with raises(
        gradwire.mxnet.KVStoreError, "step 2: rescale_grad of the optimizer was 0.5 on rank 0 and 0.25"
    ):
        training.step(2 * (training.rank + 1))
        for _ in range(3):
            training.step(2)


@case
def the_last_step_differs(name: str) -> None:
    """No call follows: closing the store says so."""
    training = Training(name)
    training.step(1)
    if training.rank == 1:
        training.trainer.optimizer.clip_gradient = 0.25
    training.step(1)
    with raises(
        gradwire.mxnet.KVStoreError, "step 2: clip_gradient of the optimizer was None on rank 0 and 0.25"
    ):
        training.trainer._kvstore.close()


if __name__ == "__main__":
    gradwire.mxnet.patch()
    run_cases(sys.argv[1], only=sys.argv[2])
