"""LocalStepOptimizer: any torch optimizer that steps on this worker alone, and meets the others every H steps."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from gradwire.kv import KVStore
from gradwire.torch import optimizer_wrapper, session
from gradwire.torch.exchange import STATE_KEY, has_free_slots
from gradwire.torch.exchange_options import GivenOptions, agree_on_options
from gradwire.torch.local.fragments import require_layers
from gradwire.torch.local.rounds import LocalRounds, MakeOuter, Schedule
from gradwire.torch.optimizer_options import warn_of_adam
from gradwire.torch.parameter_names import GroupMembers, name_parameters, require_real, warn_of_ddp

_MIXING_WITH_OVERLAP = 0.5  # Streaming DiLoCo's


def nesterov(weights: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Makes DiLoCo's outer optimizer: SGD with Nesterov's momentum 0.9, learning rate 0.7.

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
) -> Any:
    """Makes an optimizer that steps on this worker's gradients alone, and every `sync_every` steps on what all workers
    have learned (DiLoCo): for links that are far too slow to exchange every gradient.

    A collective: every worker calls it at the same place, and step() as often as the others. The result is an instance
    of the given optimizer's class and shares its parameter groups and state; use it, and not the one given, from here
    on. Every worker starts from the same weights (`broadcast_parameters`), which the first step checks.

    Workers' parameters differ between rounds. What they share is the outer optimizer's: `with
    optimizer.shared_weights():` shows it, `synchronize()` ends all rounds at once. Optimizer state and buffers
    (running means of norms) stay each worker's own.

    Args:
        optimizer: the inner one, any torch.optim.Optimizer. Parameters may be float32, or bfloat16, float16 and float64
            (sent as float32), on any device.
        named_parameters, compression, store, codecs: as for DistributedOptimizer. What is compressed is the outer
            gradient: shared weights minus this worker's. "int4" and "2bit" are for it what 4-bit floats are in the
            paper; what a codec has not sent yet is kept and sent with the next round.
        sync_every: local steps between two exchanges of a parameter; the papers take 30 to 500.
        outer: makes the outer optimizer of the shared weights, which are float32 (float64 where the parameter is);
            it is `optimizer.outer` then. `lambda weights: torch.optim.SGD(weights, lr=1.0)` averages parameters.
        fragments: the model is exchanged in so many parts, layers staying whole, at different steps, so that a link
            carries less at a time and more often. At most sync_every, and at most as many as there are layers.
        merge_after: local steps that are taken while a fragment is under way, before its mean is merged; below
            sync_every. 0: step() waits for it.
        mixing: share of its own parameters that a worker keeps in the merge, 0 to 1. Default: 0.5 with merge_after, so
            that local steps taken meanwhile count, else 0.

    Memory: three times the parameters as float32: shared weights, their momentum, outer gradients.

    A frozen parameter is not sent until it requires a gradient. One that is frozen later, on all ranks before the same
    step, is sent once more if it was trained since the last time; then it stays. A GradScaler skips step() on the rank
    that met an infinity, and not on the others, so train in bfloat16. `state_dict()` holds, under "gradwire", shared
    weights, the outer optimizer's state, means that are to be merged yet and what this rank has not sent. Servers'
    residuals and agreed scales are not in it: `save_checkpoint()` holds all, and a run that goes on from it has the
    bits of one that never stopped.

    Raises:
        ValueError: an argument is not valid; ranks that differ, in these options too (of the outer optimizer in its
            class and in what is a number in its groups), all of which get the same text; a store that gives weights in
            the place of sums.
        TypeError: an argument is of another kind.

    Source: Douillard et al., DiLoCo, 2023 (arXiv 2311.08105); Streaming DiLoCo, 2025 (arXiv 2501.18512).
    """
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
    warn_of_ddp(named)
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
    """Its class, and what is a number, or numbers, in its groups: by name."""
    found: dict[str, object] = {"class": f"{type(outer).__module__}.{type(outer).__qualname__}"}
    for index, group in enumerate(outer.param_groups):
        for name, value in sorted(group.items()):
            values = value if isinstance(value, tuple) else (value,)
            if name != "params" and all(isinstance(each, numbers.Real) for each in values):
                found[f"{name} of group {index}"] = value
    return found


def steps_apart(optimizer: object) -> bool:
    """True for what LocalStepOptimizer() returns: most steps of it send nothing."""
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
        """The outer optimizer, for its learning rate; None after close()."""
        return None if self._rounds is None else self._rounds.outer

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the wrapped optimizer's step on this worker's gradients; ends or begins rounds where it is time.

        Raises:
            ValueError: at the first step, ranks that start from different weights; torch's process group was made after
                the optimizer, which trains alone.
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        session.require_company(self._store)
        self._note_step()
        self._take_in_added()  # by another way than add_param_group()
        if self._rounds is not None:
            self._rounds.begin_step()
        loss = super().step() if closure is None else super().step(closure)
        if self._rounds is not None:
            self._rounds.end_step()
        return loss

    # Torch wraps step() of classes that do not say so, to call the hooks of the user; super().step() calls them.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Ends all rounds now: sends what the workers have done since the last ones and merges it, so that every
        parameter is the shared weight, the same on all ranks. A collective; at the end of a training, or nothing that
        was learned since the last round is in the shared weights. Where no step was taken since a parameter was sent,
        nothing is sent of it and the outer optimizer does not step on it.

        Raises:
            ValueError: ranks have taken different numbers of steps; every rank gets the same text.
            gradwire.TransportError, gradwire.TimeoutError: the job has failed; names the rank at fault.
        """
        if self._rounds is not None:
            self._rounds.synchronize()

    @contextlib.contextmanager
    def shared_weights(self) -> Iterator[None]:
        """Has the parameters be, inside, what all workers share, for an evaluation or to save a model; not for a step.
        After it they are the worker's own again.
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
        """As torch's. A collective: every rank adds the same parameters, of the same values, between steps."""
        super().add_param_group(param_group)
        self._take_in_added()

    def _take_in_added(self) -> None:
        added = self._members.added(self.param_groups)
        require_real(added)
        if added and self._rounds is not None:
            self._rounds.add(added)

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the rounds under "gradwire". Waits for means that are under way."""
        state = super().state_dict()
        if self._rounds is not None:
            state[STATE_KEY] = self._rounds.state()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As torch's, on all ranks at the same place; load the model's state too. A state without rounds (of a plain
        optimizer) lets them begin anew. Residuals of another rank are left, with a warning.

        Raises:
            ValueError: the state is of other parameters, or of the middle of a round with another schedule.
        """
        if self._rounds is not None:
            self._rounds.load(state_dict.get(STATE_KEY, {}))
        self.load_shared_state(state_dict)

    def load_shared_state(self, state_dict: Mapping[str, Any]) -> None:
        """As load_state_dict(), but for the rounds."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != STATE_KEY})

    def close(self) -> None:
        """Ends the exchange: parameters stay what they are, each worker's own but after synchronize(). On all ranks at
        the same place: waits for what is under way.
        """
        if self._rounds is not None:
            self._store.give_back(self._loan)
            self._rounds.close()
            self._rounds = None
