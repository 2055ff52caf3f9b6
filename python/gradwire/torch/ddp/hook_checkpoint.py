"""What gradwire.torch.save_checkpoint() writes of DDP's hooks, and of FSDP2's reduce-scatters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch

from gradwire.stores.checkpoint import Restored
from gradwire.torch.checkpoint import Part, Read, beside_the_store, read_model

if TYPE_CHECKING:
    from gradwire.torch.ddp.bucket_exchange import BucketExchange
    from gradwire.torch.sharded.fsdp import ReduceScatters


_LEFT_OVER = "left_over"  # of a hook's state: residuals whose parameters no bucket has told yet


class HooksPart(Part):
    """Hooks of DDP models that share a store. Their parameters come with the first buckets, but residuals before: so
    what the checkpoint has is declared when it is loaded, in the order that it had.
    """

    kind = "hooks"

    def __init__(self, exchanges: Sequence[BucketExchange], model: torch.nn.Module) -> None:
        """
        Args:
            exchanges: in the order in which they were made.
            model: tells the names of parameters where no DistributedDataParallel does.
        """
        self._exchanges = exchanges
        self._model = model
        self.store = exchanges[0].store
        shards = exchanges[0].shards
        self.shard, self.peers = (shards.place, shards.count), shards.peers

    def model_state(self, model: torch.nn.Module) -> Any:
        return model.state_dict()

    def load_model(self, model: torch.nn.Module, saved: Any, folder: str | PathLike[str]) -> None:
        model.load_state_dict(saved)

    def saved(self) -> dict[str, Any]:
        states = []
        for exchange in self._exchanges:
            if exchange.is_waiting:
                raise ValueError(
                    "gradwire.torch: save_checkpoint: a HookState has been given a state by load_state_dict(), and no "
                    "step has been taken with it; take one first"
                )
            own = {"parameters": exchange.labels, _LEFT_OVER: exchange.left_over}
            states.append({**beside_the_store(exchange.state()), **own})
        return {"states": states}

    def fitting(self, saved: dict[str, Any], restored: Restored, read: Read) -> dict[str, Any]:
        states = saved["states"]
        if len(states) != len(self._exchanges):
            raise ValueError(
                f"gradwire.torch: the checkpoint is of {len(states)} HookStates and {len(self._exchanges)} are given; "
                "give all that share the store, in the order in which they were made"
            )
        named = dict(self._model.named_parameters())
        for exchange, state in zip(self._exchanges, states, strict=True):
            exchange.require_known(state["parameters"], named)
        left_over = self._inherited(saved, restored, read)
        return {"states": [{**state, _LEFT_OVER: own} for state, own in zip(states, left_over, strict=True)]}

    def _inherited(
        self, saved: dict[str, Any], restored: Restored, read: Read
    ) -> list[dict[str, torch.Tensor]]:
        """Returns what this rank has left over of each exchange. With other ranks it is shared out as the store does it
        with residuals.
        """
        here, there = self.store.num_workers, restored.num_workers
        theirs = [saved] if here == there else [read(rank) for rank in range(self.store.rank, there, here)]
        return [
            _added_up([each["states"][place].get(_LEFT_OVER, {}) for each in theirs])
            for place in range(len(self._exchanges))
        ]

    def prepare(self, saved: Mapping[str, Any]) -> None:
        named = dict(self._model.named_parameters())
        for exchange, state in zip(self._exchanges, saved["states"], strict=True):
            exchange.begin_with(state["parameters"], named)
            exchange.load_codecs(state)

    def take_over(self, saved: Mapping[str, Any]) -> None:
        for exchange, state in zip(self._exchanges, saved["states"], strict=True):
            exchange.keep(state[_LEFT_OVER])


class ScattersPart(Part):
    """The reduce-scatters of one FSDP2 model."""

    kind = "reduce_scatters"

    def __init__(self, scatters: ReduceScatters) -> None:
        self._scatters = scatters
        self.store = scatters.store

    def model_state(self, model: torch.nn.Module) -> Any:
        """The job's first rank has all of it; a collective of the meshes that the model is sharded over."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        whole = {}
        for name, value in get_model_state_dict(model).items():
            gathered = _gathered(value)
            if self.store.rank == 0:  # torch's own gathering leaves it to rank 0 of all ranks
                whole[name] = gathered.cpu() if isinstance(gathered, torch.Tensor) else gathered
        return whole

    def load_model(self, model: torch.nn.Module, saved: Any, folder: str | PathLike[str]) -> None:
        from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

        whole = saved if self.store.rank == 0 else read_model(folder, 0)
        there = get_model_state_dict(model)
        # torch's own way would scatter what the mesh's first rank has, which may be in another job.
        set_model_state_dict(model, {name: _cut(value, there.get(name)) for name, value in whole.items()})

    def saved(self) -> dict[str, Any]:
        return self._scatters.own_state()

    def fitting(self, saved: dict[str, Any], restored: Restored, read: Read) -> dict[str, Any]:
        ranks = self.store.num_workers
        if restored.num_workers == ranks:
            states = [saved]
        else:
            states = [read(rank) for rank in range(self.store.rank, restored.num_workers, ranks)]
        for state in states:
            self._scatters.require_modules(state)
        return {"is_same": restored.num_workers == ranks, "states": states}

    def prepare(self, saved: Mapping[str, Any]) -> None:
        """Nothing of it is the engine's."""

    def take_over(self, saved: Mapping[str, Any]) -> None:
        if saved["is_same"]:
            self._scatters.load_state_dict(saved["states"][0])
        else:
            self._scatters.inherit(saved["states"])


def _added_up(states: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    total: dict[str, torch.Tensor] = {}
    for state in states:
        for name, residual in state.items():
            total[name] = total[name] + residual if name in total else residual
    return total


def _gathered(value: Any) -> Any:
    """Returns a whole tensor of a sharded one. A collective of its mesh, on the mesh's devices."""
    from torch.distributed.tensor import DTensor

    if not isinstance(value, DTensor):
        return value
    there: Any = value.to(value.device_mesh.device_type)  # a DTensor, which the stub does not say
    return there.full_tensor()


def _cut(value: Any, there: Any) -> Any:
    """Returns this rank's part of a whole tensor where the model has a sharded one."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(there, DTensor):
        return value
    own = distribute_tensor(value, there.device_mesh, there.placements, src_data_rank=None)
    return own.clone()  # else a view, which would keep the whole on the device
