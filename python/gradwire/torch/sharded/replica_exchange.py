"""ReplicaExchange: shards of gradients go to the sum of their replicas and come back as means, while backward() runs.

backward() ends when all means are there; module_shards.py says where they go. Pipelines reduce gradients after their
backward passes: there each module waits for its means, and the step ends with the last module that is trained.

Threading: on autograd's thread, one at a time. Sums only start to be sent; what backward() ends with waits for them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradwire.torch.backward_pass import BackwardPass, is_running
from gradwire.torch.exchange import Exchange
from gradwire.torch.exchange_options import ExchangeOptions, warn_of_nonfinite
from gradwire.torch.process_group import any_of, naming_ranks
from gradwire.torch.sharded.module_shards import ModuleShards, Shard
from gradwire.torch.sharded.replica_group import SumInPlace
from gradwire.torch.sharded.scatter import factor_of
from gradwire.torch.slots import encodable

if TYPE_CHECKING:
    from gradwire import _core
    from gradwire.kv import KVStore


@dataclass
class _Sum:
    """What one module has sent.

    Attributes:
        runs: what is on its way.
        tickets: by index.
        factor: the mean is to be multiplied by it.
        targets: where the means are to be copied; None: they are there, or p.grad is added to.
        is_gradient: the runs are p.grad's memory.
    """

    runs: list[tuple[Shard, torch.Tensor]]
    tickets: dict[int, _core.Ticket]
    factor: float
    targets: list[torch.Tensor] | None
    is_gradient: bool


class ReplicaExchange:
    """The modules of one model at one store."""

    sync = True  # as a Listener of BackwardPass

    def __init__(self, store: KVStore, options: ExchangeOptions, others: Sequence[dist.ProcessGroup]) -> None:
        """A collective.

        Args:
            store: its workers are the replicas of this rank's shard.
            options: codecs, and what to do in a step in which any rank met a NaN or an infinity.
            others: one after the other they reach the ranks that have other parts of the same replica.
        """
        self._store = store
        self._options = options
        self._others = others
        self._exchange = Exchange(store, options, has_slots=False)
        self._exchange.program_step = 1
        self._backward = BackwardPass(self, store, after_callbacks=True)
        self._modules: list[ModuleShards] = []
        self._sums: dict[ModuleShards, _Sum] = {}  # on their way
        self._taking_part: dict[ModuleShards, None] = {}  # in the step in progress
        self._has_failed = False
        self._is_outside = False  # a step is in progress, and no backward() ends it

    def add(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Declares shards, in the order of the forward pass. A collective.

        Args:
            named: names of parameters, and tensors of the shards' shapes and of the dtype in which they are summed.
        """
        self._exchange.add(named, [None] * len(named), range(len(named)))

    def join(self, module: ModuleShards) -> SumInPlace:
        """Has a module take part. Returns what sums its gradients; FSDP calls it through a ReplicaGroup."""
        self._modules.append(module)
        return functools.partial(self._sum_in_place, module)

    @torch.no_grad()
    def _sum_in_place(self, module: ModuleShards, output: torch.Tensor, op: Any) -> None:
        """Begins to sum a module's gradients.

        Args:
            output: (elements,), of any floating dtype, or a complex one's (elements, 2).
            op: ReduceOp.SUM or ReduceOp.AVG.
        """
        is_in_backward = is_running()
        self._enter(module, is_in_backward)
        if module in self._sums:  # it took part in the forward pass twice
            self._deliver(module)
        numbers = output.shape[1] if output.dim() == 2 else 1  # of an element
        at_once = not is_in_backward or numbers > 1 or module.needs_mean_at_once(output)
        flat = output.view(-1)
        staged = encodable(flat)
        is_gradient = not at_once and staged is flat and module.becomes_gradients(output)
        if staged is flat and not at_once and not is_gradient:
            staged = flat.clone()
        places = module.cut(flat, numbers)
        runs = places if staged is flat else module.cut(staged, numbers)
        self._taking_part[module] = None
        self._sums[module] = _Sum(
            runs,
            {shard.index: self._exchange.submit(shard.index, run) for shard, run in runs},
            factor_of(op, self._store.num_workers) * self._store.num_workers,
            [place for _, place in places] if at_once else None,
            is_gradient,
        )
        if at_once:
            self._deliver(module)
        elif not is_gradient:
            flat.zero_()
        if not is_in_backward and self._is_complete() and self._end_step() and places:
            places[0][1][0] = math.nan  # these are no gradients yet

    def _enter(self, module: ModuleShards, is_in_backward: bool) -> None:
        """Begins a step if this is the first sum of one."""
        if is_in_backward:
            self._backward.enter()
        elif not self._is_outside or module in self._taking_part:
            self._settle()
            self._is_outside = True

    def _is_complete(self) -> bool:
        """Whether all modules that are reduced have taken part in the step."""
        return all(each in self._taking_part or not each.is_reduced for each in self._modules)

    def _deliver(self, module: ModuleShards) -> None:
        """Waits for a module's means, and hands them over."""
        done = self._sums.pop(module)
        with naming_ranks(self._store):
            self._exchange.take_in(done.tickets)
        for number, (shard, run) in enumerate(done.runs):
            if done.factor != 1.0:
                run.mul_(done.factor)
            if done.targets is not None:
                if run.data_ptr() != done.targets[number].data_ptr():
                    done.targets[number].copy_(run)
            elif not done.is_gradient:
                shard.add(run)

    # -- as a Listener of BackwardPass -----------------------------------------------------------------

    def on_backward_begin(self) -> None:
        """Ends a step that has had no end, before the next one's first sum."""
        self._settle()

    def on_backward_end(self) -> None:
        """Nothing is to be done: all is sent."""

    def on_all_sent(self) -> None:
        """Waits for all means, and ends the step."""
        self._end_step()

    def on_backward_failed(self) -> None:
        """Enters no collective: the other ranks may be in one of the backward() that goes on there."""
        self._has_failed = True

    def _settle(self) -> None:
        """Ends a step that has had no end. One of a backward() that has failed ends as on ranks where it did not. Where
        it has failed on some ranks alone, their next sums have another number than those for which the others wait: all
        get an error.
        """
        if self._has_failed or self._is_outside:
            self._has_failed = False
            self._end_step(is_late=True)

    @torch.no_grad()
    def _end_step(self, *, is_late: bool = False) -> bool:
        """Returns whether it is not to be taken: some gradient is NaN then on each rank that has one.

        Args:
            is_late: p.grad may be the next step's. Default: it is this one's.
        """
        self._is_outside = False
        for module in list(self._sums):
            self._deliver(module)
        nonfinite = self._exchange.finish(self._met_by_others)
        is_spoilt = nonfinite and self._options.vetoes
        if is_spoilt and not is_late:
            _spoil(self._taking_part)
        self._taking_part.clear()
        self._exchange.program_step += 1
        self._exchange.advance()
        self._exchange.count_step()
        if nonfinite and self._options.grad_scaler is None and self._options.on_nonfinite != "ignore":
            warn_of_nonfinite(self._options.on_nonfinite)
        return is_spoilt

    def _met_by_others(self, own: bool) -> bool:
        for group in self._others:
            own = any_of(group, own)
        return own

    # -- checkpoints -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What this rank has not sent yet."""
        self._settle()
        return self._exchange.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on from it."""
        self._settle()
        self._exchange.load(state)

    def load_codecs(self, state: Mapping[str, Any]) -> None:
        """As Exchange's."""
        self._exchange.load_codecs(state)


def _spoil(modules: Iterable[ModuleShards]) -> None:
    """Has a GradScaler find that the step is not to be taken."""
    for module in modules:
        for shard in module.trained:
            if shard.elements and (gradient := shard.gradient) is not None:
                gradient.view(-1)[0] = math.nan
                break
