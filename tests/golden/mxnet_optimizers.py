"""Runs MXNet 1.9.1's optimizers and writes the weights that they make to mxnet191_optimizers.npz beside this file.

Usage: PYTHON -I tests/golden/mxnet_optimizers.py    (a Python that has mxnet==1.9.1 and numpy==1.23.5)

Each case is an optimizer of mx.optimizer with its parameters, set on a store "local": gradients are pushed, weights are
pulled, and from step CHANGE on the learning rate is another one.
"""

import json
import sys
from pathlib import Path

import mxnet
import numpy as np

ELEMENTS, STEPS, CHANGE = 96, 8, 5
BOTH = {"wd": 0.01, "rescale_grad": 0.25, "clip_gradient": 0.5}
CLIPPED = {"rescale_grad": 0.25, "clip_gradient": 0.5}

# name of the case: MXNet's optimizer, its parameters
CASES = {
    "test": ("test", {"rescale_grad": 0.25}),
    "sgd": ("sgd", {}),
    "sgd decayed and clipped": ("sgd", BOTH),
    "sgd with momentum": ("sgd", {"momentum": 0.9}),
    "sgd with momentum, decayed and clipped": ("sgd", {"momentum": 0.9, **BOTH}),
    "nag": ("nag", {"momentum": 0.9}),
    "nag clipped": ("nag", {"momentum": 0.9, **CLIPPED}),
    "adam": ("adam", {}),
    "adam with other betas": ("adam", {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-7}),
    "adam decayed and clipped": ("adam", BOTH),
    "adagrad": ("adagrad", {"eps": 0.0}),
    "adagrad clipped": ("adagrad", {"eps": 0.0, **CLIPPED}),
}


def gradients() -> np.ndarray:
    """Between 0.5 and 4 in absolute value: half of them are clipped, and none is so small that where an optimizer adds
    its epsilon matters.
    """
    random = np.random.default_rng(191)
    sizes = np.exp(random.uniform(np.log(0.5), np.log(4), (STEPS, ELEMENTS)))
    return (sizes * random.choice([-1, 1], (STEPS, ELEMENTS))).astype(np.float32)


def run(name: str, parameters: dict, weight: np.ndarray, grads: np.ndarray) -> np.ndarray:
    rates = {} if name == "test" else {"learning_rate": 0.1}
    optimizer = mxnet.optimizer.create(name, **rates, **parameters)
    store = mxnet.kv.create("local")
    store.init(0, mxnet.nd.array(weight))
    store.set_optimizer(optimizer)
    out, weights = mxnet.nd.zeros(ELEMENTS), []
    for step, grad in enumerate(grads):
        if step == CHANGE and rates:
            optimizer.set_learning_rate(0.02)
        store.push(0, mxnet.nd.array(grad))
        store.pull(0, out=out)
        weights.append(out.asnumpy())
    return np.stack(weights)


def main() -> None:
    assert mxnet.__version__ == "1.9.1", mxnet.__version__
    weight = np.random.default_rng(3).normal(size=ELEMENTS).astype(np.float32)
    grads = gradients()
    arrays = {f"weights {case}": run(*CASES[case], weight, grads) for case in CASES}
    record = {"cases": CASES, "learning_rates": [0.1] * CHANGE + [0.02] * (STEPS - CHANGE)}
    np.savez_compressed(
        Path(__file__).with_name("mxnet191_optimizers.npz"),
        about=np.frombuffer(json.dumps(record).encode(), np.uint8),
        weight=weight,
        gradients=grads,
        **arrays,
    )


if __name__ == "__main__":
    sys.exit(main())
