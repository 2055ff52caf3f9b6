"""An old script: trains by MXNet's Module on MXNet's key-value store, and knows nothing of gradwire.

Rank 0 trains on one half of the images and rank 1 on the other; each prints what it has at the end.
"""

import argparse
import hashlib
import json
import sys

import mxnet as mx
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--kv-store", default="device")
parser.add_argument("--gc-type", default="none")
parser.add_argument("--gc-threshold", type=float, default=0.5)
args = parser.parse_args()

kv = mx.kvstore.create(args.kv_store)
if args.gc_type != "none":
    kv.set_gradient_compression({"type": args.gc_type, "threshold": args.gc_threshold})

draws = np.random.RandomState(3)
images = draws.uniform(-1, 1, (400, 20)).astype(np.float32)
labels = (images[:, :10].sum(1) > images[:, 10:].sum(1)).astype(np.float32)
mine = slice(kv.rank, None, kv.num_workers)
train = mx.io.NDArrayIter(images[mine], labels[mine], batch_size=20)

np.random.seed(kv.rank)
mx.random.seed(kv.rank)  # rank 0's first weights count
hidden = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16), act_type="relu")
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=2), name="softmax")
model = mx.mod.Module(net, context=mx.cpu())
model.fit(
    train,
    num_epoch=8,
    kvstore=kv,
    optimizer="sgd",
    optimizer_params={"learning_rate": 0.2, "momentum": 0.9, "wd": 0.0001},
    initializer=mx.init.Xavier(),
)
accuracy = dict(model.score(mx.io.NDArrayIter(images, labels, batch_size=20), "acc"))["accuracy"]
weights = model.get_params()[0]
digest = hashlib.sha256(b"".join(weights[name].asnumpy().tobytes() for name in sorted(weights))).hexdigest()
store = f"{type(kv).__module__}.{type(kv).__name__}"
# In one write: mpirun puts the ranks' pieces together as they come.
record = {"rank": kv.rank, "accuracy": accuracy, "weights": digest, "store": store}
sys.stdout.write(json.dumps(record) + "\n")
