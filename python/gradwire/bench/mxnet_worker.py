"""Any process of an MXNet job in `gradwire bench ... --peer mxnet`: worker, server or scheduler, as DMLC_ROLE says.

Run by MXNet's own Python, in isolated mode (-I): nothing of gradwire but rounds.py, beside this file, is there.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any


def _beside(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main(text: str) -> None:
    import mxnet  # a server or scheduler serves the job here and ends the process

    if os.environ["DMLC_ROLE"] != "worker":
        return
    rounds = _beside("rounds")
    task = rounds.Task.parse(text)
    store = mxnet.kv.create("dist_sync")
    if task.threshold is not None:
        store.set_gradient_compression({"type": "2bit", "threshold": task.threshold})
    source = mxnet.nd.array(rounds.gradient(store.rank, task.elements))
    grad = mxnet.nd.zeros((task.elements,))
    total = mxnet.nd.zeros((task.elements,))
    store.init(0, total)

    def prepare() -> None:
        source.copyto(grad)  # MXNet writes what it pulls over what was pushed
        grad.wait_to_read()

    def exchange() -> None:
        store.push(0, grad)
        store.pull(0, out=total)
        total.wait_to_read()

    actions = rounds.Actions(store._barrier, prepare, exchange, total.asnumpy)
    # It adds in the order of arrival.
    expectation = task.known_expectation(store.rank)
    rounds.run(task, store.rank, actions, rounds.matches(expectation, task.share(store.rank), tolerance=1e-5))


if __name__ == "__main__":
    main(sys.argv[1])
