"""What gradwire.torch.save_checkpoint() writes of HSDP: a folder for each shard, whose replicas are one job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from gradwire.stores.checkpoint import Restored
from gradwire.torch.checkpoint import Part, Read, beside_the_store

if TYPE_CHECKING:
    from gradwire.kv import KVStore
    from gradwire.torch.sharded.replica_exchange import ReplicaExchange


class ReplicasPart(Part):
    """The all-reduces of one model, on the ranks that have one shard."""

    kind = "all_reduces"

    def __init__(
        self,
        store: KVStore,
        exchange: ReplicaExchange,
        shard: tuple[int, int],
        peers: Sequence[dist.ProcessGroup],
    ) -> None:
        """
        Args:
            store: its workers are the replicas of the shard.
            exchange: of the model.
            shard, peers: as of Part.
        """
        self.store = store
        self.shard, self.peers = shard, peers
        self._exchange = exchange

    def folder_in(self, folder: str | PathLike[str]) -> str | PathLike[str]:
        return self._shard_folder(folder)  # of one shard, too

    def model_state(self, model: torch.nn.Module) -> Any:
        """Every rank has its own shard."""
        return {name: _own(value) for name, value in model.state_dict().items()}

    @torch.no_grad()
    def load_model(self, model: torch.nn.Module, saved: Any, folder: str | PathLike[str]) -> None:
        there = model.state_dict()
        if there.keys() != saved.keys():
            name = sorted(there.keys() ^ saved.keys())[0]
            raise RuntimeError(
                f"gradwire.torch: the checkpoint and the model differ in {name!r}, which one of them lacks; make the "
                "same model"
            )
        for name, value in there.items():
            if not isinstance(value, torch.Tensor):
                continue
            own = _own(value)
            if own.shape != saved[name].shape:
                raise RuntimeError(
                    f"gradwire.torch: the checkpoint has {tuple(saved[name].shape)} as this rank's shard of {name!r}, "
                    f"and the model {tuple(own.shape)}; make the same model"
                )
            own.copy_(saved[name])

    def saved(self) -> dict[str, Any]:
        return beside_the_store(self._exchange.state())

    def fitting(self, saved: dict[str, Any], restored: Restored, read: Read) -> dict[str, Any]:
        return saved

    def prepare(self, saved: Mapping[str, Any]) -> None:
        self._exchange.load_codecs(saved)


def _own(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value
