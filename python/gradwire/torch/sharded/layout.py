"""Where each parameter's elements are in what an FSDP module reduce-scatters: residuals belong to parameters, and move
when those are frozen or thawed, or sharded over other ranks.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from gradwire.torch.elements import real_shape


def in_words(name: str) -> str:
    """Returns what errors and warnings call an FSDP module. name: in the model; empty for the model."""
    return f"the FSDP module {name!r}" if name else "the model itself"


@dataclass(frozen=True)
class Piece:
    """One parameter.

    Attributes:
        name: within the FSDP module.
        shape: of its real elements, whole.
        dimension: along which it is cut into shards.
    """

    name: str
    shape: tuple[int, ...]
    dimension: int

    def shard_shape(self, ranks: int) -> tuple[int, ...]:
        """Of each shard, the last ones padded."""
        longest = -(-self.shape[self.dimension] // ranks)
        return (*self.shape[: self.dimension], longest, *self.shape[self.dimension + 1 :])

    def shard_elements(self, ranks: int) -> int:
        return math.prod(self.shard_shape(ranks))


@dataclass(frozen=True)
class Layout:
    """The parameters of one reduce-scatter, in order; each rank's shard holds a shard of each, one behind the other."""

    ranks: int
    pieces: tuple[Piece, ...]

    @property
    def elements(self) -> int:
        """Of a rank's shard."""
        return sum(piece.shard_elements(self.ranks) for piece in self.pieces)

    def split(self, shards: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns parameters by name, of their shapes, out of all ranks' shards: (ranks, elements)."""
        sizes = [piece.shard_elements(self.ranks) for piece in self.pieces]
        parts = shards.split(sizes, dim=1)  # type: ignore[no-untyped-call]
        found = {}
        for piece, part in zip(self.pieces, parts, strict=True):
            padded = torch.cat([one.view(piece.shard_shape(self.ranks)) for one in part], dim=piece.dimension)
            found[piece.name] = padded.narrow(piece.dimension, 0, piece.shape[piece.dimension]).clone()
        return found

    def join(self, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """As split(), the other way round; zeros for parameters that are not there."""
        shards = torch.zeros(self.ranks, self.elements, dtype=torch.float32, device="cpu")
        at = 0
        for piece in self.pieces:
            shape, count = piece.shard_shape(self.ranks), piece.shard_elements(self.ranks)
            if (whole := parameters.get(piece.name)) is not None and count > 0:
                # Of few rows, ranks from some one on have none.
                for rank, part in enumerate(whole.split(shape[piece.dimension], dim=piece.dimension)):  # type: ignore[no-untyped-call]
                    padded = torch.zeros(shape, dtype=torch.float32, device="cpu")
                    padded.narrow(piece.dimension, 0, part.shape[piece.dimension]).copy_(part)
                    shards[rank, at : at + count] = padded.view(-1)
            at += count
        return shards

    def written(self) -> dict[str, Any]:
        """As a checkpoint has it: numbers and text."""
        pieces = [{"name": p.name, "shape": list(p.shape), "dimension": p.dimension} for p in self.pieces]
        return {"ranks": self.ranks, "pieces": pieces}


def read_layout(written: Mapping[str, Any]) -> Layout:
    """Reads what Layout.written() returned."""
    pieces: Sequence[Mapping[str, Any]] = written["pieces"]
    return Layout(
        written["ranks"], tuple(Piece(p["name"], tuple(p["shape"]), p["dimension"]) for p in pieces)
    )


def sharded_modules(who: str, model: torch.nn.Module) -> dict[str, FSDPModule]:
    """As fsdp_modules().

    Raises:
        ValueError: there are none.
    """
    if not (found := fsdp_modules(who, model)):
        raise ValueError(
            f"{who}: no module of the model is an FSDPModule; call torch.distributed.fsdp.fully_shard(model) first"
        )
    return found


def fsdp_modules(who: str, model: torch.nn.Module) -> dict[str, FSDPModule]:
    """Returns the FSDP modules of a model that have parameters of their own, by name.

    Args:
        who: begins an error's text.

    Raises:
        TypeError: it is no module.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{who}: model is a {type(model).__name__}, expected a torch.nn.Module")
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, FSDPModule) and parameter_groups(module)
    }


def parameter_groups(module: FSDPModule) -> list[Any]:
    """FSDP's parameter groups of a module: each reduce-scatters its gradients as one."""
    state = module._get_fsdp_state()
    # PyTorch before 2.12 has one, or None.
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def finder(parameter: Any) -> Callable[[], torch.Tensor | None]:
    """Returns what finds the tensor that an optimizer has of one of FSDP's parameters: FSDP replaces it where a model
    is loaded. It does not keep the parameter alive.
    """
    own = weakref.ref(parameter)
    return lambda: None if (there := own()) is None else there.sharded_param


class TrainedParameters:
    """Those of one FSDP module: what it reduce-scatters, where parameters that got no gradient take part."""

    def __init__(self, module: FSDPModule, ranks: int) -> None:
        assert isinstance(module, torch.nn.Module)
        self._module = module
        self._ranks = ranks
        self._prefixes = {part: f"{name}." if name else "" for name, part in module.named_modules()}
        self._layouts: dict[tuple[bool, ...], Layout] = {}  # by which are not frozen

    @property
    def layout(self) -> Layout:
        """As of now: it changes where parameters are frozen or thawed."""
        parameters = [
            parameter for group in parameter_groups(self._module) for parameter in group.fsdp_params
        ]
        trained = tuple(parameter.sharded_param.requires_grad for parameter in parameters)
        if trained not in self._layouts:
            pieces = [
                self._piece(number, parameter)
                for number, parameter in enumerate(parameters)
                if trained[number]
            ]
            self._layouts[trained] = Layout(self._ranks, tuple(pieces))
        return self._layouts[trained]

    def _piece(self, number: int, parameter: Any) -> Piece:
        whole = torch.empty(parameter._orig_size, dtype=parameter.sharded_param.dtype, device="meta")
        own = parameter._module_info
        prefix = self._prefixes.get(own.module, f"{number}.")  # fully_shard([one, another]) has others' in it
        return Piece(prefix + own.param_name, tuple(real_shape(whole)), parameter.fsdp_placement.dim)
