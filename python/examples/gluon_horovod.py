"""A gluon script for Horovod; only its import has changed. Needs MXNet 1.9.1, NumPy 1.23.5, Python 3.10 or 3.11.

Start: gradwire run -n 2 python gluon_horovod.py
"""

import gradwire.horovod.mxnet as hvd  # was: import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

hvd.init()
draws = np.random.RandomState(hvd.rank())  # each rank has its own examples
inputs = draws.normal(size=(64, 8)).astype("float32")
labels = np.tanh(inputs[:, :1])

net = mx.gluon.nn.Sequential()
net.add(mx.gluon.nn.Dense(16, activation="tanh"), mx.gluon.nn.Dense(1))
net.initialize()
net(mx.nd.array(inputs))
hvd.broadcast_parameters(net.collect_params(), root_rank=0)
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, compression="2bit")

for step in range(60):
    with mx.autograd.record():
        loss = mx.gluon.loss.L2Loss()(net(mx.nd.array(inputs)), mx.nd.array(labels))
    loss.backward()
    trainer.step(len(inputs))
    if step % 20 == 0:
        print(f"rank {hvd.rank()} step {step}: loss {loss.mean().asscalar():.4f}", flush=True)
hvd.shutdown()
