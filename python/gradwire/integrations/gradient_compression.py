"""GradientCompression: the communication hooks that one integration registers, and their part of its checkpoints."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch
from gradwire.torch import HookState, ddp_hook, session
from gradwire.torch.ddp.local_shards import require_local_group
from gradwire.torch.exchange_options import GivenOptions

OPTIONS = ("codecs", "warm_up", "on_nonfinite", "budget", "row_column_scales", "local_group")
"""What integrations take besides the codec. HookState documents them."""


class GradientCompression:
    """The compression of the models that one framework trains."""

    def __init__(self, who: str, codec: session.Wanted, options: Mapping[str, Any]) -> None:
        """Checks what needs no other rank.

        Args:
            who: what the user called, for error texts.
            codec: of gradients.
            options: those of OPTIONS that the user gave.

        Raises:
            ValueError: a bad codec, or a bad value of an option.
            TypeError: an option that is unknown, or has the wrong type.
        """
        if unknown := [name for name in options if name not in OPTIONS]:
            raise TypeError(
                f"gradwire.integrations: {who} has no option {unknown[0]!r}; it has codec, {', '.join(OPTIONS)}"
            )
        require_local_group(options.get("local_group"))
        GivenOptions(who, codec, **{name: value for name, value in options.items() if name != "local_group"})
        self._codec = codec
        self._options = dict(options)
        # Each with the module inside its model.
        self._registered: list[tuple[HookState, weakref.ref[torch.nn.Module]]] = []

    @property
    def states(self) -> list[HookState]:
        """A HookState for each DistributedDataParallel, in the order in which the framework wrapped them. Empty before
        that, and in a job of one process.
        """
        return [state for state, _ in self._registered]

    def register(self, model: DistributedDataParallel, grad_scaler: Any) -> None:
        """Registers a hook with a model that has taken no step. A collective.

        Args:
            model: has no communication hook yet.
            grad_scaler: the GradScaler that scales the loss, or None.

        Raises: as HookState().
        """
        state = HookState(
            self._codec,
            named_parameters=model.module.named_parameters(),
            grad_scaler=grad_scaler,
            **self._options,
        )
        model.register_comm_hook(state, ddp_hook)
        self._registered.append((state, weakref.ref(model.module)))

    def close(self, kept: Sequence[torch.nn.Module] = ()) -> None:
        """Ends the use of the models so far, before the framework wraps another one. A collective.

        Args:
            kept: modules inside DistributedDataParallels that the framework goes on to train. Default: none.
        """
        registered, self._registered = self._registered, []
        for state, module in registered:
            if any(module() is each for each in kept):
                self._registered.append((state, module))
            else:
                state.close()

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes what the codecs have not sent yet; the framework writes the rest. A collective.

        Args:
            folder: one that all machines see.

        Raises: as gradwire.torch.save_checkpoint().
        """
        if self.states:
            gradwire.torch.save_checkpoint(folder, torch.nn.Module(), self.states)

    def load(self, folder: str | PathLike[str], refused: str | None = None) -> None:
        """Continues from what save() wrote. A collective. Warns on rank 0 where that cannot be, and begins without.

        Args:
            folder: that save() was given.
            refused: why the framework's part says that it is the wrong one; rank 0's counts. Default: it is right.

        Raises: as gradwire.torch.load_checkpoint().
        """
        if not self.states:
            return
        # Rank 0 decides: ranks that differ would wait for each other.
        told = [refused or self._reason_not_to_load(Path(folder)) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(told)
        reason = told[0]
        if reason is None:
            try:
                gradwire.torch.load_checkpoint(folder, torch.nn.Module(), self.states)
                return
            except ValueError as error:  # it does not fit: all ranks have the same error
                reason = str(error)
        for state in self.states:
            state.load_state_dict({})
        if dist.get_rank() == 0:
            warnings.warn(
                f"gradwire.integrations: {reason}; training continues, and what the codec had not sent when the "
                "checkpoint was saved is lost",
                stacklevel=3,
            )

    def _reason_not_to_load(self, folder: Path) -> str | None:
        if not folder.is_dir():
            return (
                f"the checkpoint has no folder {str(folder)!r}: it was saved without gradwire, or moved without this "
                "folder"
            )
        try:
            self.states[0].checkpoint_part(self.states, torch.nn.Module()).require_layout(folder)
        except ValueError as error:
            return str(error)
        if self.states[0].stats(residuals=False)["bytes_encoded"]:
            return (
                "this process has sent gradients already, so it cannot restore residuals; resume in a new process to "
                "continue bit for bit"
            )
        return None


def missing(framework: str) -> ImportError:
    """Returns the error of a module whose framework is not installed."""
    packages = (
        f"{framework} accelerate" if framework == "transformers" else framework
    )  # its Trainer needs both
    return ImportError(
        f"gradwire.integrations.{framework} needs the package {framework!r}, which is not installed: "
        f"pip install {packages}"
    )
