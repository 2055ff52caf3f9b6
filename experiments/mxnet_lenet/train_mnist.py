"""Trains LeNet on Fashion-MNIST in MXNet, and knows nothing of gradwire: MXNet's train_mnist.py, whose loop pushes and
pulls each key, since MXNet 1.9.1 compresses nowhere else (Module.fit and Trainer raise).

    launch.py -n 2 -s 1 --launcher local python train_mnist.py --network lenet --kv-store dist_sync --gc-type 2bit
    gradwire run -n 2 -s 1 python -m gradwire.mxnet train_mnist.py --network lenet --kv-store dist_sync --gc-type 2bit

Every worker takes its own share of the images. Rank 0 prints one line of JSON.
"""

import argparse
import gzip
import hashlib
import json
import struct
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--network", choices=("lenet",), default="lenet")
parser.add_argument("--kv-store", default="dist_sync")
parser.add_argument("--gc-type", default="none")
parser.add_argument("--gc-threshold", type=float, default=0.5)
parser.add_argument("--batch-size", type=int, default=64, help="per worker")
parser.add_argument("--num-epochs", type=int, default=1)
parser.add_argument("--num-examples", type=int, default=6400, help="training images, of all workers together")
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--mom", type=float, default=0.9)
parser.add_argument("--wd", type=float, default=0.0001)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--warm-up", type=int, default=5, help="steps before the clock starts")
parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
args = parser.parse_args()


def read(name):
    raw = gzip.decompress((args.data / name).read_bytes())
    shape = struct.unpack(f">{raw[3]}I", raw[4 : 4 + 4 * raw[3]])
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def lenet():
    """MXNet's example/image-classification/symbols/lenet.py: 431 080 parameters."""
    layer = mx.sym.var("data")
    for filters in (20, 50):
        layer = mx.sym.Convolution(layer, kernel=(5, 5), num_filter=filters)
        layer = mx.sym.Activation(layer, act_type="tanh")
        layer = mx.sym.Pooling(layer, pool_type="max", kernel=(2, 2), stride=(2, 2))
    layer = mx.sym.FullyConnected(mx.sym.Flatten(layer), num_hidden=500)
    layer = mx.sym.FullyConnected(mx.sym.Activation(layer, act_type="tanh"), num_hidden=10)
    return mx.sym.SoftmaxOutput(layer, name="softmax")


kv = mx.kv.create(args.kv_store)
if args.gc_type != "none":
    kv.set_gradient_compression({"type": args.gc_type, "threshold": args.gc_threshold})

images = read("train-images-idx3-ubyte.gz")[: args.num_examples, None].astype(np.float32) / 255
labels = read("train-labels-idx1-ubyte.gz")[: args.num_examples].astype(np.float32)
order = np.random.RandomState(args.seed).permutation(len(images))[kv.rank :: kv.num_workers]

np.random.seed(args.seed)
mx.random.seed(args.seed)
model = mx.mod.Module(lenet(), context=mx.cpu())
batch = (args.batch_size, *images.shape[1:])
model.bind([("data", batch)], [("softmax_label", batch[:1])])
model.init_params(mx.init.Xavier(magnitude=2.0))
executor = model._exec_group
parameters = [
    (name, arrays[0]) for name, arrays in zip(executor.param_names, executor.param_arrays, strict=True)
]
gradients = [arrays[0] for arrays in executor.grad_arrays]
sums = [mx.nd.zeros(gradient.shape) for gradient in gradients]
sgd = mx.optimizer.SGD(
    learning_rate=args.lr,
    momentum=args.mom,
    wd=args.wd,
    rescale_grad=1 / (args.batch_size * kv.num_workers),
    param_idx2name=dict(enumerate(executor.param_names)),
)
update = mx.optimizer.get_updater(sgd)
for key, total in enumerate(sums):
    kv.init(key, total)


def step(index):
    mine = order[index * args.batch_size : (index + 1) * args.batch_size]
    model.forward(mx.io.DataBatch([mx.nd.array(images[mine])], [mx.nd.array(labels[mine])]), is_train=True)
    model.backward()
    for key, (gradient, total) in enumerate(zip(gradients, sums, strict=True)):
        kv.push(key, gradient, priority=-key)
        kv.pull(key, out=total, priority=-key)
    for key, ((_, weight), total) in enumerate(zip(parameters, sums, strict=True)):
        update(key, total, weight)


steps = len(order) // args.batch_size
began = None
for epoch in range(args.num_epochs):
    for index in range(steps):
        if (epoch, index) == (0, args.warm_up):
            mx.nd.waitall()
            kv._barrier()
            began = time.monotonic()
        step(index)
mx.nd.waitall()
kv._barrier()
seconds = time.monotonic() - began
if kv.rank == 0:
    timed = args.num_epochs * steps - args.warm_up
    test = read("t10k-images-idx3-ubyte.gz")[:, None].astype(np.float32) / 255
    answers = read("t10k-labels-idx1-ubyte.gz").astype(np.float32)
    score = model.score(mx.io.NDArrayIter(test, answers, args.batch_size), "acc")
    digest = hashlib.sha256(b"".join(weight.asnumpy().tobytes() for _, weight in parameters)).hexdigest()
    record = {
        "store": f"{type(kv).__module__}.{type(kv).__name__}",
        "images_per_second": timed * args.batch_size * kv.num_workers / seconds,
        "accuracy": 100 * dict(score)["accuracy"],
        "weights": digest[:12],
        "steps": timed,
    }
    sys.stdout.write(json.dumps(record) + "\n")
