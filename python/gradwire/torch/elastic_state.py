"""TorchState: a State with models and optimizers of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gradwire.elastic.state import State, Stateful
from gradwire.stores.store import KVStore
from gradwire.torch.broadcast import broadcast_optimizer_state, broadcast_parameters
from gradwire.torch.exchange import STATE_KEY
from gradwire.torch.local.steps import steps_apart
from gradwire.torch.optimizer import _Distributed
from gradwire.torch.session import own_store
from gradwire.torch.shared_state import shared_lines

__all__ = ["TorchState"]


class TorchState(State):
    """A State with models and optimizers of PyTorch.

    The model's weights and buffers and the optimizer's state are sent through the store as they are. This worker's
    residuals, and with momentum_correction its momentum, stay its own. A commit keeps them, and restores them.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        store: KVStore | None = None,
        **values: Any,
    ) -> None:
        """
        Args:
            model, optimizer: torch's, the optimizer from DistributedOptimizer; others by any name.
            store: as for State. Default: the optimizer's, or the one that is open.
            values: as for State.

        Raises:
            ValueError: an optimizer with warm_up or compression="auto", whose codecs change step by step; or a
                LocalStepOptimizer, whose workers have each their own model between rounds.
        """
        given = {"model": model, "optimizer": optimizer}
        for name, value in (given | values).items():
            _require_that_it_steps_together(name, value)
        present = {name: value for name, value in given.items() if value is not None}
        if store is None:
            store = getattr(optimizer, "_store", None) or own_store(None)
        super().__init__(store, **present, **values)
        for own in self._optimizers():
            own.require_movable()

    def _optimizers(self) -> Iterator[_Distributed]:
        for name in self._names:
            if isinstance(value := getattr(self, name), _Distributed):
                yield value

    def _on_rejoined(self) -> None:
        for optimizer in self._optimizers():
            optimizer.move_to(self.store)

    def _load(self, name: str, value: Stateful, kept: Any) -> None:
        if isinstance(value, torch.optim.Optimizer) and "rank" in kept.get(STATE_KEY, {}):
            kept[STATE_KEY]["rank"] = self.store.rank  # this worker's own, whatever its rank was then
        value.load_state_dict(kept)

    def _is_plain(self, name: str) -> bool:
        return not isinstance(getattr(self, name), torch.nn.Module | torch.optim.Optimizer)

    def _broadcast(self, root: int) -> None:
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, torch.nn.Module):
                broadcast_parameters(value.state_dict(), root, self.store)
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, root, self.store)
        super()._broadcast(root)

    def _own(self) -> list[tuple[_Distributed, Any]]:
        return [(optimizer, optimizer.own_momentum()) for optimizer in self._optimizers()]

    def _put_back_own(self, own: list[tuple[_Distributed, Any]]) -> None:
        for optimizer, momentum in own:
            optimizer.set_own_momentum(momentum)

    def _shared_lines(self) -> list[str]:
        found = super()._shared_lines()
        for name in self._names:
            if isinstance(value := getattr(self, name), torch.nn.Module | torch.optim.Optimizer):
                found += shared_lines(name, value)
        return found


def _require_that_it_steps_together(name: str, value: object) -> None:
    if steps_apart(value):
        raise ValueError(
            f"gradwire.elastic: TorchState does not take {name}, a LocalStepOptimizer: workers that go on without one "
            "that died would have to agree on a round of which each has done another part; use DistributedOptimizer, "
            "or go on in a new job from gradwire.torch.save_checkpoint()"
        )
