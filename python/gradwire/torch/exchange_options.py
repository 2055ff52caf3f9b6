"""ExchangeOptions: how gradients are exchanged, whoever hands them over."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gradwire.torch.parameter_codecs import ParameterCodecs
from gradwire.torch.warm_up import WarmUp

if TYPE_CHECKING:
    from gradwire.compress import Compression
    from gradwire.controller import Controller
    from gradwire.kv import KVStore

OnNonfinite = Literal["warn", "skip_step", "ignore"]
SparseGradients = Literal["rows", "dense", "warn"]


@dataclass(frozen=True)
class ExchangeOptions:
    """What both front ends take.

    Attributes:
        codecs: which codec each parameter has.
        default: which codec the others have; None: that of the store.
        warm_up: which codec the others have in the first steps, or None.
        grad_scaler: torch's GradScaler, where the loss is scaled: what is sent is divided by its scale, so that
            residuals, and thresholds, do not change their meaning when it changes.
        on_nonfinite: what to do in a step in which any rank met a NaN or an infinity.
        controller: what chooses the others' codecs, or None.
        sparse_gradients: "rows": their rows travel; "dense": they are summed as dense ones; "warn": so too, said once.
        sparse_parameters: names of those whose gradients are known to be sparse; of others the first step tells.
    """

    codecs: ParameterCodecs
    default: Compression | None = None
    warm_up: WarmUp | None = None
    grad_scaler: Any = None
    on_nonfinite: OnNonfinite = "warn"
    controller: Controller | None = None
    sparse_gradients: SparseGradients = "warn"
    sparse_parameters: frozenset[str] = frozenset()

    @property
    def vetoes(self) -> bool:
        """True where a step with a NaN is not taken, so that what was sent in it has to be taken back."""
        return self.on_nonfinite == "skip_step" or self.grad_scaler is not None


def agree_on_options(
    store: KVStore,
    options: ExchangeOptions,
    overlap_step: bool,
    max_grad_norm: float | None,
    momentum_correction: bool,
) -> None:
    """Compares what all ranks must do alike: else they would wait for each other in vain, or their weights would part.
    A collective.

    Raises:
        ValueError: ranks differ; names the first option in which they do, the same on all.
    """
    alike = {
        "overlap_step": overlap_step,
        "max_grad_norm": max_grad_norm,
        "momentum_correction": momentum_correction,
        "skips steps with a NaN": options.vetoes,
        "sends sparse gradients as rows": options.sparse_gradients == "rows",
        "sparse_parameters": sorted(options.sparse_parameters),
    }
    lines = "".join(f"{name}={value!r}\n" for name, value in alike.items())
    store.engine.agree("options of DistributedOptimizer", lines)


def enabled_scaler(given: Any) -> Any:
    """Returns a GradScaler that is in use, else None.

    Raises:
        TypeError: something else.
    """
    if given is None:
        return None
    if not (hasattr(given, "is_enabled") and hasattr(given, "get_scale")):
        raise TypeError(f"gradwire.torch: grad_scaler is {given!r}, expected a torch.amp.GradScaler, or None")
    return given if given.is_enabled() else None


def warn_of_nonfinite(what_then: OnNonfinite) -> None:
    warnings.warn(
        "gradwire.torch: a worker's gradient held a NaN or an infinity"
        + ("; no rank takes this step" if what_then == "skip_step" else ""),
        RuntimeWarning,
        stacklevel=3,
    )
