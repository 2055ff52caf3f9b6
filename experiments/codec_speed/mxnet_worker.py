"""Any process of an MXNet job that pushes with 2 bits, one worker and one server; the worker times its quantizer.

Run by MXNet's own Python, in isolated mode: nothing of gradwire is there. The worker prints one line of JSON, the
milliseconds of each QuantizeCPU that MXNet's own profiler saw.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile


def main(elements: int, rounds: int) -> None:
    import mxnet  # a server or scheduler serves the job here and ends the process

    if os.environ["DMLC_ROLE"] != "worker":
        return
    import numpy

    store = mxnet.kv.create("dist_sync")
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    values = numpy.random.default_rng(0).uniform(-0.6, 0.6, elements).astype(numpy.float32)
    gradient, total = mxnet.nd.array(values), mxnet.nd.zeros((elements,))
    store.init(0, total)
    milliseconds = []
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.json")
        mxnet.profiler.set_config(profile_all=True, aggregate_stats=True, filename=trace)
        for round_ in range(rounds + 1):
            mxnet.profiler.set_state("run")
            store.push(0, gradient)
            store.pull(0, out=total)
            total.wait_to_read()
            mxnet.nd.waitall()
            mxnet.profiler.set_state("stop")
            seen = find(json.loads(mxnet.profiler.dumps(reset=True, format="json")), "QuantizeCPU")
            if round_ > 0:  # the first warms up
                milliseconds.append(seen["Total"])
    print(json.dumps({"quantize_ms": milliseconds}), flush=True)


def find(tree: dict, name: str) -> dict:
    """Returns the profiler's entry of that name, wherever it stands."""
    for key, value in tree.items():
        if key == name:
            return value
        if isinstance(value, dict) and (found := find(value, name)):
            return found
    return {}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
