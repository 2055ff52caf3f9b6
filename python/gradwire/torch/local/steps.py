"""LocalStepOptimizer: any torch optimizer that steps on this worker alone, and synchronizes every H steps."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from gradwire.kv import KVStore
from gradwire.torch import optimizer_wrapper, session
from gradwire.torch.codecs.adam_warning import warn_of_adam
from gradwire.torch.distributed_checkpoint import (
    is_for_distributed_checkpoint,
    of_rank,
    optimizer_by_rank,
    with_own_state,
)
from gradwire.torch.exchange import STATE_KEY, has_free_slots
from gradwire.torch.exchange_options import GivenOptions, agree_on_options
from gradwire.torch.local.fragments import require_layers
from gradwire.torch.local.rounds import LocalRounds, MakeOuter, Schedule
from gradwire.torch.optimizer_options import refuse_unknown
from gradwire.torch.parameter_names import (
    GroupMembers,
    name_parameters,
    require_real,
    require_whole,
)

_MIXING_WITH_OVERLAP = 0.5  # Streaming DiLoCo's


def nesterov(weights: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Makes DiLoCo's outer optimizer: SGD with Nesterov momentum 0.9 and learning rate 0.7.

    Source: Douillard et al., DiLoCo, 2023, section 3.1.
    """
    return torch.optim.SGD(weights, lr=0.7, momentum=0.9, nesterov=True)


def LocalStepOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: session.Wanted | None = None,
    store: Any = None,
    *,
    sync_every: int,
    outer: MakeOuter = nesterov,
    fragments: int = 1,
    merge_after: int = 0,
    mixing: float | None = None,
    codecs: Mapping[str, session.Wanted] | None = None,
    **others: Any,
) -> Any:
    """Wraps an optimizer that steps on this worker's gradients alone, and exchanges every `sync_every` steps (DiLoCo).

    For links that are far too slow to exchange every gradient. A collective: every worker calls it at the same place,
    and calls step() equally often. The result is an instance of the given optimizer's class and shares its parameter
    groups and state. Use the result, and no longer the optimizer that was given. All workers start from the same
    weights (`broadcast_parameters`); the first step checks it.

    Workers' parameters differ between rounds. The outer optimizer holds the shared weights: `with
    optimizer.shared_weights():` shows them, and `synchronize()` ends all rounds at once. Optimizer state and buffers
    (running means of norms) stay each worker's own.

    Args:
        optimizer: the inner optimizer, any torch.optim.Optimizer. Parameters may be float32, or bfloat16, float16 and
            float64 (sent as float32), on any device.
        named_parameters: `model.named_parameters()`, as for DistributedOptimizer. Default: parameters by number.
        compression: codec of the outer gradient, which is shared weights minus this worker's, as for
            DistributedOptimizer. "int4" and "2bit" take the place of the paper's 4-bit floats. Residuals are sent with
            the next round. Default: the compression that was set on the store, else "none".
        store: a store from `gradwire.kv.create()`. Default: as for DistributedOptimizer.
        sync_every: local steps between two exchanges of a parameter. The papers use 30 to 500.
        outer: makes the outer optimizer from the shared weights, which are float32 (float64 for float64 parameters). It
            is then `optimizer.outer`. `lambda weights: torch.optim.SGD(weights, lr=1.0)` averages parameters. Default:
            SGD with Nesterov momentum 0.9 and learning rate 0.7.
        fragments: number of parts of the model that are exchanged at different steps, so that the link carries less at
            a time. Layers stay whole. At most sync_every, and at most the number of layers. Default: 1.
        merge_after: local steps that are taken while a fragment is in flight, before its mean is merged; below
            sync_every. 0: step() waits for it. Default: 0.
        mixing: share of its own parameters that a worker keeps in the merge, 0 to 1. Default: 0.5 with merge_after, so
            that the steps taken meanwhile count, else 0.
        codecs: codecs for some parameters, by shell patterns of their names, as for DistributedOptimizer. Default:
            none.
        others: not accepted. An option of HookState is rejected with what to use here.

    Returns: the optimizer, of a subclass of the given one's class.

    Raises:
        ValueError: an argument is not valid; a parameter is sharded; ranks differ, also in these options and in the
            class and numbers of the outer optimizer, in which case all get the same text; the store's servers have an
            optimizer, and so return weights.
        TypeError: an argument has the wrong type or an unknown name.

    Memory: three times the parameters as float32: shared weights, their momentum, outer gradients.

    A frozen parameter is not sent until it requires a gradient. A parameter that is frozen later, on all ranks before
    the same step, is sent once more if it was trained since the last exchange. A GradScaler skips step() only on the
    rank that has an infinity, so train in bfloat16.

    `state_dict()` holds, under "gradwire", shared weights, the outer optimizer's state, means that are not merged yet
    and this rank's residuals. Servers' residuals and agreed scales are not in it. `save_checkpoint()` holds everything:
    a run that continues from it has the bits of one that never stopped.

    Source: Douillard et al., DiLoCo, 2023 (arXiv 2311.08105); Streaming DiLoCo, 2025 (arXiv 2501.18512).
    """
    refuse_unknown(LocalStepOptimizer, others)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"gradwire.torch: optimizer is a {type(optimizer).__name__}, expected a torch.optim.Optimizer"
        )
    _require_count("sync_every", sync_every, 1, None)
    _require_count("fragments", fragments, 1, sync_every)
    _require_count("merge_after", merge_after, 0, sync_every - 1)
    if mixing is None:
        mixing = _MIXING_WITH_OVERLAP if merge_after else 0.0
    if not (isinstance(mixing, numbers.Real) and 0 <= mixing <= 1):
        raise ValueError(f"gradwire.torch: mixing={mixing!r}: expected a number from 0 to 1")
    given = GivenOptions("LocalStepOptimizer", compression, codecs=codecs)
    if given.auto is not None:
        raise ValueError(
            "gradwire.torch: compression='auto' chooses codecs for gradients that are sent every step; name one for "
            "outer gradients, such as 'int4'"
        )
    named = name_parameters(optimizer, named_parameters)
    require_whole("LocalStepOptimizer", named)
    require_real(named)
    require_layers(named, fragments)
    store = session.own_store(store)
    options = given.at(store, [name for name, _ in named])
    schedule = Schedule(sync_every, fragments, merge_after, float(mixing))
    agree_on_options(store, "LocalStepOptimizer", dataclasses.asdict(schedule))
    # What is wrong has been said, but of what is made only now: from here on another that is taken over has ended.
    result = optimizer_wrapper.take_over(optimizer, _LocalSteps)
    result._loan = object()
    if given.default is not None and has_free_slots(store):
        store.lend(given.default, result._loan)  # the engine cuts tensors by it
    result._store, result._members = store, GroupMembers(result.param_groups)
    result._rounds = LocalRounds(store, named, options, schedule, outer)
    agree_on_options(store, "LocalStepOptimizer's outer optimizer", _described(result._rounds.outer))
    warn_of_adam(result._rounds.outer, named, options, store)  # the inner one steps on whole gradients
    return result


def _described(outer: torch.optim.Optimizer) -> dict[str, object]:
    """Returns the class of an optimizer, and the numbers in its groups by name."""
    found: dict[str, object] = {"class": f"{type(outer).__module__}.{type(outer).__qualname__}"}
    for index, group in enumerate(outer.param_groups):
        for name, value in sorted(group.items()):
            values = value if isinstance(value, tuple) else (value,)
            if name != "params" and all(isinstance(each, numbers.Real) for each in values):
                found[f"{name} of group {index}"] = value
    return found


def steps_apart(optimizer: object) -> bool:
    """Returns True for what LocalStepOptimizer() returns: most of its steps send nothing."""
    return isinstance(optimizer, _LocalSteps)


def _require_count(name: str, given: object, least: int, most: int | None) -> None:
    fits = isinstance(given, int) and not isinstance(given, bool) and given >= least
    if not fits or (most is not None and given > most):  # type: ignore[operator]
        expected = f"{least} or more" if most is None else f"{least} to {most}, for sync_every"
        raise ValueError(f"gradwire.torch: {name}={given!r}: expected {expected}")


class _LocalSteps(optimizer_wrapper.Front):
    """What LocalStepOptimizer adds to an optimizer's class."""

    prefix = "LocalStep"
    _store: KVStore
    _members: GroupMembers
    _rounds: LocalRounds | None
    _loan: object  # of the store's compression

    @property
    def outer(self) -> torch.optim.Optimizer | None:
        """The outer optimizer, for example to change its learning rate; None after close()."""
        return None if self._rounds is None else self._rounds.outer

    def step(self, closure: Callable[[], Any] | None = None, **others: Any) -> Any:
        """Takes the wrapped optimizer's step on this worker's gradients, and starts or ends rounds that are due.

        Args:
            closure: computes gradients and returns the loss, as for torch's step().
            others: what else the wrapped class's step() takes.

        Returns: the closure's loss; None without a closure.

        Raises:
            ValueError: in the first step, ranks start from different weights; torch's process group was made after the
                optimizer, which trains alone.
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        session.require_company(self._store)
        self._note_step()
        self._take_in_added()  # by another way than add_param_group()
        if self._rounds is not None:
            self._rounds.begin_step()
        loss = super().step(**others) if closure is None else super().step(closure, **others)
        if self._rounds is not None:
            self._rounds.end_step()
        return loss

    # Torch wraps step() of classes that do not say so, to call the hooks of the user; super().step() calls them.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Ends all rounds now, so that every parameter is the shared weight, the same on all ranks. A collective.

        Call it at the end of a training: otherwise the shared weights lack what was learned since the last round. If no
        step was taken since a parameter was sent, nothing is sent of it, and the outer optimizer takes no step on it.

        Raises:
            ValueError: ranks have taken different numbers of steps; every rank gets the same text.
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        if self._rounds is not None:
            self._rounds.synchronize()

    @contextlib.contextmanager
    def shared_weights(self) -> Iterator[None]:
        """Sets the parameters to the shared weights inside the block, to evaluate or save a model; not for a step.

        After the block they are the worker's own again.
        """
        rounds = self._rounds
        if rounds is None:
            yield
            return
        own = rounds.swap()
        try:
            yield
        finally:
            rounds.put_back(own)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. A collective: every rank adds the same parameters with the same values, between steps."""
        super().add_param_group(param_group)
        self._take_in_added()

    def _take_in_added(self) -> None:
        added = self._members.added(self.param_groups)
        require_whole("LocalStepOptimizer", added)
        require_real(added)
        if added and self._rounds is not None:
            self._rounds.add(added)

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the rounds under "gradwire". Waits for means that are in flight.

        torch.distributed.checkpoint keeps one copy of what all ranks name alike, so it gets the rounds as bytes by
        rank, with the optimizer's state. It keeps one worker's model: save that after synchronize().
        """
        state = super().state_dict()
        if self._rounds is not None:
            own = self._rounds.state()
            state[STATE_KEY] = optimizer_by_rank(own, state) if is_for_distributed_checkpoint() else own
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As torch's, on all ranks at the same place. Load the model's state too.

        A state without rounds, as that of a plain optimizer, starts the rounds again. Residuals of another rank are
        ignored, with a warning.

        Raises:
            ValueError: the state has other parameters, or was saved in the middle of a round with another schedule; or
                torch.distributed.checkpoint saved it with another number of ranks.
        """
        if self._rounds is not None:
            own = of_rank(state_dict.get(STATE_KEY, {}))
            self._rounds.load(own)
            state_dict = with_own_state(state_dict, own)
        self.load_shared_state(state_dict)

    def load_shared_state(self, state_dict: Mapping[str, Any]) -> None:
        """As load_state_dict(), without the rounds."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != STATE_KEY})

    def close(self) -> None:
        """Ends the exchange, on all ranks at the same place. Waits for what is in flight.

        Parameters stay as they are, each worker's own, or the shared weights after synchronize().
        """
        if self._rounds is not None:
            self._store.give_back(self._loan)
            self._rounds.close()
            self._rounds = None
