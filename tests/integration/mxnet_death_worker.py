"""A worker of MXNet whose fellow dies: rank 1 ends without a word, and rank 0 prints what its next calls say."""

import json
import os

import gradwire.mxnet

gradwire.mxnet.patch()

import gradwire  # noqa: E402
import mxnet as mx  # noqa: E402

kv = mx.kv.create("dist_sync")
kv.init(1, mx.nd.zeros((4,)))
value = mx.nd.ones((4,))
said = []
for step in range(4):
    if kv.rank == 1 and step == 2:
        os._exit(3)
    try:
        kv.pushpull(1, value)
        value.wait_to_read()  # MXNet's wait ends, though the sum is not there
    except gradwire.TransportError as error:
        said.append(str(error))
print(json.dumps({"rank": kv.rank, "said": said}), flush=True)
