"""Compressed gradients for Lightning.

    trainer = Trainer(strategy=CompressedDDPStrategy(codec="int8"), devices=2)

A checkpoint `NAME.ckpt` has what the codec has not sent yet beside it, in the folder `NAME.ckpt.gradwire`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from gradwire.integrations.gradient_compression import OPTIONS, GradientCompression, missing
from gradwire.torch import HookState, session

try:
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.utilities import rank_zero_warn
except ModuleNotFoundError as error:
    if error.name not in ("lightning", "lightning.pytorch"):
        raise
    raise missing("lightning") from error

__all__ = ["CompressedDDPStrategy"]


class CompressedDDPStrategy(DDPStrategy):
    """Lightning's DDPStrategy whose gradient sums are compressed.

    `trainer.save_checkpoint()`, ModelCheckpoint and `trainer.fit(ckpt_path=...)` include what the codec has not sent
    yet. Removing a checkpoint removes its folder.
    """

    def __init__(self, codec: session.Wanted = "int8", **options: Any) -> None:
        """
        Args:
            codec: as of HookState. With Adam and AdamW use "int8". Default: "int8".
            options: codecs, warm_up, on_nonfinite, budget, row_column_scales and local_group, as of HookState. All
                others are those of DDPStrategy, such as find_unused_parameters. Default: as there.

        Raises:
            ValueError: an option of HookState is not valid; or ddp_comm_hook is given, and DistributedDataParallel
                takes one hook.
            TypeError: an option of HookState has the wrong type.
        """
        if given := [name for name in options if name.startswith("ddp_comm_")]:
            raise ValueError(
                f"gradwire.integrations: CompressedDDPStrategy: {given[0]} was given, and a DistributedDataParallel "
                "takes one communication hook; leave it out, or use DDPStrategy"
            )
        of_hook = {name: options.pop(name) for name in OPTIONS if name in options}
        self._compression = GradientCompression("CompressedDDPStrategy", codec, of_hook)
        self._resumed_from: str | None = None
        super().__init__(**options)

    @property
    def hook_state(self) -> HookState | None:
        """The HookState of the model that is trained, such as for `stats()`; None before `fit()`."""
        return self._compression.states[-1] if self._compression.states else None

    def configure_ddp(self) -> None:
        """Wraps the model and registers the hook. Called by Lightning."""
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        self._compression.close()  # of an earlier fit()
        self._compression.register(self.model, getattr(self.precision_plugin, "scaler", None))

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Writes a checkpoint, and its folder unless it has weights alone. Called by Lightning on all ranks.

        Args:
            checkpoint: what the Trainer has gathered.
            filepath: where to write it. At a URL, such as s3://..., it has no folder, with a warning.
            storage_options: of Lightning's CheckpointIO. Default: None.
        """
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if "optimizer_states" not in checkpoint:
            return
        if _is_elsewhere(filepath):
            rank_zero_warn(
                f"gradwire.integrations: CompressedDDPStrategy: {filepath} is no local file, so the checkpoint lacks "
                "what the codec has not sent yet; save to a folder that all machines see to keep it"
            )
        else:
            self._compression.save(_folder_of(filepath))

    def load_checkpoint(
        self, checkpoint_path: str | os.PathLike[str], weights_only: bool | None = None
    ) -> Any:
        """Reads a checkpoint. Called by Lightning on all ranks, before the model is wrapped.

        Args:
            checkpoint_path: its file.
            weights_only: as of torch.load(). Default: as Lightning's.
        """
        self._resumed_from = os.fspath(checkpoint_path)
        return super().load_checkpoint(checkpoint_path, weights_only)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restores optimizers, and what the codec had not sent. Called by Lightning when fit() resumes."""
        super().load_optimizer_state_dict(checkpoint)
        assert self._resumed_from is not None
        self._compression.load(_folder_of(self._resumed_from))

    def remove_checkpoint(self, filepath: str | os.PathLike[str]) -> None:
        """Removes a checkpoint and its folder. Called by Lightning on all ranks."""
        super().remove_checkpoint(filepath)
        if self.is_global_zero and not _is_elsewhere(filepath):
            shutil.rmtree(_folder_of(filepath), ignore_errors=True)


def _is_elsewhere(filepath: str | os.PathLike[str]) -> bool:
    """Whether a checkpoint is at a URL, such as s3://..., which Lightning can write."""
    return "://" in os.fspath(filepath)


def _folder_of(filepath: str | os.PathLike[str]) -> str:
    """Returns the folder beside a checkpoint; last.ckpt may be a link to one."""
    return f"{os.path.realpath(filepath)}.gradwire"
