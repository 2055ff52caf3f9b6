"""GuardedParameter: a parameter that tells its keeper before anything of torch's reads or writes it.

The class of a tensor can be exchanged while it lives, as torch does itself when a lazy parameter learns its shape
(UninitializedTensorMixin.materialize in torch/nn/parameter.py). A class with __torch_function__ then hears of every
call of torch's that the tensor takes part in, whoever calls: a layer, its parent, an average of weights, a checkpoint.
A parameter that is not guarded has torch's own class, and costs what it always did. What transforms of torch.func wrap
is heard of by transforms.py.

Not heard are those who do not go through torch's functions: memory taken earlier (`p.data`, a state_dict), and C++
extensions that are handed the parameter itself.

Threading: the keeper is told on the thread that reads. Others may release what one has just found guarded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Protocol, TypeVar

import torch
from torch._guards import TracingContext
from torch.optim.optimizer import _foreach_supported_types

_Result = TypeVar("_Result")

_KEEPER = "_gradwire_keeper"  # in the parameter's __dict__, while it is guarded


class Access(Enum):
    """What somebody is about to do with a parameter."""

    VALUE = "value"  # read or write its elements, or anything that is not known to leave them alone
    GRADIENT = "gradient"  # read, set or delete its grad
    DESCRIPTION = "description"  # ask for its shape, its type, where it lies


class Keeper(Protocol):
    """Who is told."""

    def before(self, parameters: Sequence[torch.Tensor], access: Access) -> None:
        """Hears that a call on these parameters begins when this returns. May release them."""

    def letting_go(self, parameter: torch.Tensor) -> AbstractContextManager[None]:
        """Has a parameter be torch's own meanwhile, with no other thread beside; guards it after, if still need be."""


def is_guardable(parameter: torch.Tensor) -> bool:
    """False for subclasses, whose own __torch_function__ would be lost, and for leaves that are no Parameter."""
    return type(parameter) is torch.nn.Parameter


def guard(parameter: torch.Tensor, keeper: Keeper) -> None:
    """Has keeper told, and kept alive, from now on. Requires is_guardable()."""
    vars(parameter)[_KEEPER] = keeper
    parameter.__class__ = GuardedParameter


def release(parameter: torch.Tensor) -> None:
    """Makes it torch's own again. No-op where it is."""
    if type(parameter) is GuardedParameter:
        parameter.__class__ = torch.nn.Parameter  # type: ignore[assignment]
        del vars(parameter)[_KEEPER]


def keeper_of(parameter: torch.Tensor) -> Keeper | None:
    """Returns who is told of it; None where it is not guarded."""
    return vars(parameter).get(_KEEPER)


class GuardedParameter(torch.nn.Parameter):
    """What guard() makes of a parameter; nobody else makes one."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Iterable[type],
        arguments: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
    ) -> Any:
        keywords = keywords or {}
        guarded = list(_guarded((arguments, keywords)))
        tell_keepers(guarded, _access(function))
        if not any(type(parameter) is cls for parameter in guarded):
            return function(*arguments, **keywords)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments, **keywords)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._as_parameter(lambda parameter: copy.deepcopy(parameter, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._as_parameter(lambda parameter: parameter.__reduce_ex__(protocol))

    def _as_parameter(self, use: Callable[[Any], _Result]) -> _Result:
        """Calls use with the parameter, which is torch's own then: copies are not guarded."""
        keeper = keeper_of(self)
        if keeper is None:  # another thread has released it
            return use(self)
        keeper.before([self], Access.VALUE)
        with keeper.letting_go(self):
            return use(self)


# An optimizer steps parameters while they are guarded; on CUDA all of one call by one kernel, if it knows their class.
_foreach_supported_types.append(GuardedParameter)


def is_traced() -> bool:
    """Whether this call is part of what torch.compile or torch.export traces, or of its tracing.

    torch.compiler.is_compiling() is also true while another thread traces. In traced code is_dynamo_compiling() is a
    constant, and what follows it is not looked at; the context is the thread's own.
    """
    if torch.compiler.is_dynamo_compiling():
        return True
    return torch.compiler.is_compiling() and TracingContext.try_get() is not None


def tell_keepers(guarded: Iterable[torch.Tensor], access: Access) -> None:
    """Tells the keepers of guarded parameters that a call on these begins.

    Raises: what they do; RuntimeError: in what torch.compile traces.
    """
    if is_traced():  # nobody can be asked to wait while code is traced
        raise RuntimeError(
            "gradwire.torch: a compiled function reads a parameter whose sum is on its way (overlap_step); call "
            "optimizer.synchronize() before it, or compile the module by torch.compile(model), which waits"
        )
    for keeper, parameters in _by_keeper(guarded):
        keeper.before(parameters, access)


def _by_keeper(guarded: Iterable[torch.Tensor]) -> list[tuple[Keeper, list[torch.Tensor]]]:
    found: dict[int, tuple[Keeper, list[torch.Tensor]]] = {}
    for parameter in guarded:
        keeper = keeper_of(parameter)
        if keeper is None:  # another thread has released it since it was found
            continue
        found.setdefault(id(keeper), (keeper, []))[1].append(parameter)
    return list(found.values())


def _guarded(values: Any) -> Iterator[torch.Tensor]:
    """The guarded ones among arguments, which torch's functions also take in lists and by name."""
    if type(values) is GuardedParameter:
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _guarded(value)
    elif isinstance(values, dict):
        yield from _guarded(list(values.values()))


def _accessors(method: str, *names: str) -> set[Any]:
    return {getattr(getattr(torch.Tensor, name), method) for name in names}


_GRADIENT = _accessors("__get__", "grad") | _accessors("__set__", "grad") | _accessors("__delete__", "grad")
_DESCRIPTION = (
    _accessors("__get__", "shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad_fn")
    | _accessors("__get__", "is_cuda", "is_sparse", "is_quantized", "is_meta")
    | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.stride}
    | {torch.Tensor.is_floating_point, torch.Tensor.is_complex, torch.Tensor.is_contiguous}
)


def _access(function: Callable[..., Any]) -> Access:
    if function in _GRADIENT:
        return Access.GRADIENT
    return Access.DESCRIPTION if function in _DESCRIPTION else Access.VALUE
