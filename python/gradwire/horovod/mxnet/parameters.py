"""broadcast_parameters: the same initial values for all ranks."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict

from gradwire.horovod import session
from gradwire.horovod.mxnet.broadcasts import broadcast_
from gradwire.horovod.mxnet.submission import start
from gradwire.horovod.objects import allgather_bytes
from gradwire.horovod.process_sets import global_process_set
from gradwire.mxnet.no_autograd import no_autograd


@no_autograd
def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Overwrites parameters in place with those of one rank, bit for bit. A collective of all ranks, which waits.

    gluon parameters without a shape are overwritten when they get one, in their first forward pass.

    Args:
        params: Block.collect_params(), Module.get_params()'s dicts, or a dict of NDArrays or Parameters by name; the
            same names, shapes and dtypes on all ranks.
        root_rank: the rank whose values all get. Default: 0.
        prefix: prefix of the names. Needed if the parameters of several models have the same names and no shape yet.
            Default: none.

    Raises:
        ValueError: params has another type; ranks differ in names (the same text on all); init() was not called.
        HorovodInternalError: ranks differ in shapes, dtypes or root_rank, or it is not a rank.
    """
    if not isinstance(params, Mapping | ParameterDict):
        raise ValueError(
            f"hvd.broadcast_parameters: invalid params of type: {type(params)}; expected a dict of NDArrays or "
            "Parameters by name, such as net.collect_params() or module.get_params()[0]"
        )
    prefix = prefix or ""
    ready, deferred = _sorted_out(params)
    _require_agreement(prefix, [name for name, _ in ready], [name for name, _ in deferred])
    for name, parameter in deferred:
        _broadcast_once_initialised(parameter, root_rank, f"{prefix}{name}")
    if ready and session.current().store.num_workers > 1:
        tensors = [tensor for _, tensor in ready]
        start(
            "broadcast",
            tensors,
            name=f"{prefix}broadcast_parameters",
            process_set=global_process_set,
            in_place=True,
            priority=0,
            root=int(root_rank),
        )
        for tensor in tensors:
            tensor.wait_to_read()


def _sorted_out(params: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Returns names with arrays, and those with parameters that have no shape yet; in the order of names."""
    ready: list[tuple[str, Any]] = []
    deferred: list[tuple[str, Any]] = []
    for name, value in sorted(params.items()):
        if not isinstance(value, Parameter):
            ready.append((str(name), value))
            continue
        try:
            ready.append((str(name), value.data()))
        except DeferredInitializationError:
            deferred.append((str(name), value))
    return ready, deferred


def _require_agreement(prefix: str, ready: Sequence[str], deferred: Sequence[str]) -> None:
    names = json.dumps([list(ready), list(deferred)]).encode()
    told = allgather_bytes(names, f"{prefix}broadcast_parameters.names")
    everyone = [json.loads(each) for each in told]
    for rank, other in enumerate(everyone):
        if other != everyone[0]:
            differing = sorted(set(map(str, other[0])) ^ set(map(str, everyone[0][0]))) or other[1]
            raise ValueError(
                f"hvd.broadcast_parameters: ranks 0 and {rank} have different parameters, or not the same ones "
                f"without a shape yet; one is {differing[0]!r}; give the same on all ranks"
            )


def _broadcast_once_initialised(parameter: Any, root_rank: int, name: str) -> None:
    """Has what gluon calls when it knows the shape broadcast the values."""
    initialise = parameter._init_impl

    def and_broadcast(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(*args, **kwargs)
        with mx.autograd.pause():
            broadcast_(self.data(), root_rank, name)

    parameter._init_impl = types.MethodType(and_broadcast, parameter)
