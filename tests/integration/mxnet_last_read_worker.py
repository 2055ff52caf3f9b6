"""A worker of MXNet whose fellow dies during its last exchange: rank 0 reads the result, and calls the store no more.

python mxnet_last_read_worker.py exit|close    how the script ends: by itself, or with kv.close(), whose error it prints
"""

import os
import sys

import gradwire.mxnet

gradwire.mxnet.patch()

import gradwire  # noqa: E402
import mxnet as mx  # noqa: E402

kv = mx.kv.create("dist_sync")
kv.init(1, mx.nd.zeros((4,)))
kv.barrier()
if kv.rank == 1:
    os._exit(3)
value = mx.nd.ones((4,))
kv.pushpull(1, value)
value.asnumpy()
if sys.argv[1] == "close":
    try:
        kv.close()
    except gradwire.TransportError as error:
        print("close said:", error, flush=True)
